//! The table of mutants in docs/TESTING.md.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::programs::Found;

const BEGIN: &str = "<!-- mutants: by cargo run -p revd-mutants -- --write -->\n";
const END: &str = "<!-- end of mutants -->\n";
const HEAD: &str = "| mutant | what it does | found by | seeds | seconds |\n|---|---|---|---|---|\n";

/// A mutant's row, behind its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row(String);

impl Row {
    pub(crate) fn new(sentence: &str, found: Option<&(String, Found)>) -> Self {
        let sentence = sentence.trim().trim_end_matches('.');
        Self(match found {
            None => format!(" {sentence} | not found | | "),
            Some((program, Found { test, seeds, seconds, .. })) => {
                let seeds = seeds.map_or_else(String::new, |seeds| seeds.to_string());
                format!(" {sentence} | `{program}`: `{test}` | {seeds} | {seconds} ")
            }
        })
    }

    /// The program that has found it.
    pub(crate) fn program(&self) -> Option<String> {
        let found = self.0.split('|').nth(1)?;
        found.split('`').nth(1).map(str::to_owned)
    }
}

fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (table, behind) = rest.split_once(END)?;
    Some((before, table, behind))
}

/// The rows that the page has, by mutant.
pub(crate) fn read(page: &Path) -> Result<BTreeMap<String, Row>> {
    let text = std::fs::read_to_string(page)?;
    let (_, table, _) = parts(&text).context("the page has no table of mutants")?;
    let rows = table.lines().filter_map(|line| {
        let (name, row) = line.strip_prefix("| `")?.split_once("` |")?;
        Some((name.to_owned(), Row(row.strip_suffix('|')?.to_owned())))
    });
    Ok(rows.collect())
}

/// Puts rows into the page, in the order of `all`.
pub(crate) fn write(page: &Path, rows: &BTreeMap<String, Row>, all: &[(&str, &str)]) -> Result<()> {
    let text = std::fs::read_to_string(page)?;
    let (before, _, behind) = parts(&text).context("the page has no table of mutants")?;
    let known = all.iter().filter_map(|(name, _)| Some((name, rows.get(*name)?)));
    let lines: String = known.map(|(name, Row(row))| format!("| `{name}` |{row}|\n")).collect();
    std::fs::write(page, [before, BEGIN, HEAD, &lines, END, behind].concat())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let page = std::env::temp_dir().join(format!("revd-mutants-{}.md", std::process::id()));
        std::fs::write(&page, ["before\n", BEGIN, END, "behind\n"].concat()).unwrap();
        let found = Found { test: "a_test".to_owned(), why: String::new(), seeds: Some(3), seconds: 7 };
        let rows = BTreeMap::from([
            ("A".to_owned(), Row::new(" It does A.", Some(&("sim".to_owned(), found)))),
            ("B".to_owned(), Row::new(" It does B.", None)),
        ]);
        write(&page, &rows, &[("B", ""), ("A", ""), ("C", "")]).unwrap();
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains(
            "| `B` | It does B | not found | | |\n| `A` | It does A | `sim`: `a_test` | 3 | 7 |\n"
        ));
        assert_eq!(read(&page).unwrap(), rows);
        assert_eq!((rows["A"].program(), rows["B"].program()), (Some("sim".to_owned()), None));
        std::fs::remove_file(&page).unwrap();
    }
}
