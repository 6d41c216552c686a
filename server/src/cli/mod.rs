//! Offline subcommands, for a member that is stopped, or a copy of its directory: `revd check`,
//! `revd inspect`.

mod check;
mod inspect;
mod stopped_member;

use std::path::PathBuf;

use anyhow::{Context as _, bail};

pub use crate::cli::inspect::InspectOptions;
pub use crate::cli::stopped_member::StoppedMember;

/// The text of `--help` about subcommands.
pub const HELP: &str = "\
Subcommands, for a stopped member or a copy of its directory:
  revd check <data-dir> [--wal-dir DIR]
    \tProve that tree file and log are whole and belong together; exit status 1 if not.
  revd inspect <data-dir> [--wal-dir DIR] [--records] [--log] [--json]
    \tShow what is in them: tables and sizes; every record; every log entry.
";

/// A subcommand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subcommand {
    /// Prove that everything is whole.
    Check(StoppedMember),
    /// Show what is there.
    Inspect(StoppedMember, InspectOptions),
}

/// Reads a command line; none if it names no subcommand.
///
/// # Errors
/// The mistake in it.
pub fn parse(args: &[String]) -> anyhow::Result<Option<Subcommand>> {
    let Some((name, args)) =
        args.split_first().filter(|(name, _)| ["check", "inspect"].contains(&name.as_str()))
    else {
        return Ok(None);
    };
    let (mut data_dir, mut wal_dir, mut shown) = (None, None, InspectOptions::default());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--wal-dir" => wal_dir = Some(PathBuf::from(args.next().context("--wal-dir needs a directory")?)),
            "--records" if name == "inspect" => shown.records = true,
            "--log" if name == "inspect" => shown.log = true,
            "--json" if name == "inspect" => shown.json = true,
            dir if !dir.starts_with('-') && data_dir.is_none() => data_dir = Some(PathBuf::from(dir)),
            other => bail!("revd {name} does not know {other:?} (see revd --help)"),
        }
    }
    let data_dir =
        data_dir.with_context(|| format!("revd {name} needs a data directory (see revd --help)"))?;
    let wal_dir = wal_dir.unwrap_or_else(|| data_dir.join("member").join("wal"));
    let member = StoppedMember { data_dir, wal_dir };
    Ok(Some(if name == "check" { Subcommand::Check(member) } else { Subcommand::Inspect(member, shown) }))
}

/// Carries a subcommand out; its text goes to standard output.
///
/// # Errors
/// The damage, or the file that cannot be read.
pub fn run(subcommand: &Subcommand) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    match subcommand {
        Subcommand::Check(member) => check::run(member, &mut out),
        Subcommand::Inspect(member, shown) => inspect::run(member, *shown, &mut out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> anyhow::Result<Option<Subcommand>> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn subcommands_are_told_from_flags() {
        assert_eq!(parsed("--data-dir x").unwrap(), None);
        assert_eq!(parsed("").unwrap(), None);
        let Some(Subcommand::Inspect(member, shown)) = parsed("inspect d --json --wal-dir w --log").unwrap()
        else {
            panic!("not understood")
        };
        assert_eq!((member.data_dir, member.wal_dir), (PathBuf::from("d"), PathBuf::from("w")));
        assert_eq!(shown, InspectOptions { records: false, log: true, json: true });
        for wrong in ["check", "check a b", "check d --records", "inspect d --wal-dir"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
