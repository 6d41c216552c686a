//! Figures of the code that is shipped, without tests and generated code:
//! `cargo test -p revd --test tidy figures -- --nocapture`. Nothing here can fail but the counting.

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{tokens, without_tests};
use super::{docs, function_lengths, sources};

/// Files of ours that end up in a program, without the tests at their ends.
fn shipped() -> Vec<(String, String)> {
    let is_shipped =
        |name: &str| name.contains("/src/") && !name.starts_with("bench/") && !name.contains("generated");
    let cut = |(name, text): (String, String)| (name, without_tests(&text).to_owned());
    sources().into_iter().filter(|(name, _)| is_shipped(name)).map(cut).collect()
}

fn percentile(sorted: &[usize], percent: usize) -> usize {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// Comment lines of a hundred lines that are not empty.
fn comment_share(files: &[(String, String)]) -> f64 {
    let lines = || files.iter().flat_map(|(_, text)| text.lines()).map(str::trim);
    let comments = lines().filter(|line| line.starts_with("//")).count();
    100.0 * comments as f64 / lines().filter(|line| !line.is_empty()).count() as f64
}

/// Assertions that are on in what is shipped, in a thousand lines.
fn assertions(files: &[(String, String)]) -> f64 {
    let words = ["assert", "assert_eq", "assert_ne"];
    let in_file = |text: &str| {
        tokens(text).windows(2).filter(|pair| words.contains(&pair[0].text) && pair[1].text == "!").count()
    };
    let found: usize = files.iter().map(|(_, text)| in_file(text)).sum();
    let lines: usize = files.iter().map(|(_, text)| text.lines().count()).sum();
    1000.0 * found as f64 / lines as f64
}

/// Names of types that several files define, with those files.
fn shared_names(files: &[(String, String)]) -> BTreeMap<String, BTreeSet<&str>> {
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (file, text) in files {
        for pair in tokens(text).windows(2) {
            if matches!(pair[0].text, "struct" | "enum" | "trait" | "union") && pair[1].is_word() {
                found.entry(pair[1].text.to_owned()).or_default().insert(file);
            }
        }
    }
    found.retain(|_, files| files.len() > 1);
    found
}

#[test]
fn figures() {
    let files = shipped();
    let engine: Vec<_> = files.iter().filter(|(name, _)| name.starts_with("engine/")).cloned().collect();
    let mut lengths: Vec<usize> =
        files.iter().flat_map(|(_, text)| function_lengths(text)).map(|(_, lines)| lines).collect();
    lengths.sort_unstable();
    let mut sizes: Vec<usize> = files.iter().map(|(_, text)| text.lines().count()).collect();
    sizes.sort_unstable();
    println!("{} files of {} lines, {} functions", files.len(), sizes.iter().sum::<usize>(), lengths.len());
    let [p50, p90, p99] = [50, 90, 99].map(|percent| percentile(&lengths, percent));
    println!(
        "lines of a function: p50 {p50}, p90 {p90}, p99 {p99}, at most {}",
        lengths.last().unwrap_or(&0)
    );
    println!("lines of a file: p50 {}, p90 {}", percentile(&sizes, 50), percentile(&sizes, 90));
    println!("comments: {:.1} % of the lines; engine {:.1} %", comment_share(&files), comment_share(&engine));
    println!("assertions in 1,000 lines: engine {:.1}, all {:.1}", assertions(&engine), assertions(&files));
    for path in docs::code_paths() {
        println!("{}: {} files, {} functions", path.name, path.files(), path.functions.len());
    }
    let shared = shared_names(&files);
    let count: usize = shared.values().map(BTreeSet::len).sum();
    println!("{} names stand for {count} types:", shared.len());
    for (name, files) in shared {
        println!("    {name}: {}", files.into_iter().collect::<Vec<_>>().join(", "));
    }
    assert!(p50 > 0 && p50 <= p90 && p90 <= p99);
}
