//! Offline subcommands, for a member that is stopped, or a copy of its directory: `revd check`, `revd inspect`.

mod check;
mod inspect;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::Store;
use revd_member::wal::reader::Recovered;

use crate::disk::segments;

/// What `--help` says of the subcommands.
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
    Check(Place),
    /// Show what is there.
    Inspect(Place, Shown),
}

/// Where a member's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    data_dir: PathBuf,
    wal_dir: PathBuf,
}

/// What `inspect` shows besides the summary, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shown {
    records: bool,
    log: bool,
    json: bool,
}

/// Reads a command line; none if it is not one of a subcommand.
///
/// # Errors
/// What is wrong with it.
pub fn parse(args: &[String]) -> anyhow::Result<Option<Subcommand>> {
    let Some((name, args)) =
        args.split_first().filter(|(name, _)| ["check", "inspect"].contains(&name.as_str()))
    else {
        return Ok(None);
    };
    let (mut data_dir, mut wal_dir, mut shown) = (None, None, Shown::default());
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
    let place = Place { data_dir, wal_dir };
    Ok(Some(if name == "check" { Subcommand::Check(place) } else { Subcommand::Inspect(place, shown) }))
}

/// Carries a subcommand out; its text goes to standard output.
///
/// # Errors
/// What is damaged, or cannot be read.
pub fn run(subcommand: &Subcommand) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    match subcommand {
        Subcommand::Check(place) => check::run(place, &mut out),
        Subcommand::Inspect(place, shown) => inspect::run(place, *shown, &mut out),
    }
}

impl Place {
    fn tree(&self) -> PathBuf {
        self.data_dir.join("member").join("tree.revd")
    }

    /// Opens the store without changing anything, unless a process uses it.
    fn open_store(&self) -> anyhow::Result<Store> {
        let tree = self.tree();
        if !tree.exists() {
            bail!(
                "{} is not there: is {} a data directory of revd?",
                tree.display(),
                self.data_dir.display()
            );
        }
        if is_locked(&self.data_dir.join("lock")) {
            bail!("a process uses {}: stop it, or look at a copy of the directory", self.data_dir.display());
        }
        let context = || format!("opening {}", tree.display());
        let disk = MmapDisk::open(&tree).with_context(context)?;
        Store::open(std::sync::Arc::new(disk), DbOptions::default()).with_context(context)
    }

    fn read_log(&self) -> anyhow::Result<Recovered> {
        let log = segments::read(&self.wal_dir)?;
        log.with_context(|| format!("{} holds no log", self.wal_dir.display()))
    }
}

fn is_locked(path: &Path) -> bool {
    // No lock file: nobody can hold it.
    let Ok(file) = std::fs::File::open(path) else { return false };
    !fs4::fs_std::FileExt::try_lock_shared(&file).unwrap_or(true)
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
        let Some(Subcommand::Inspect(place, shown)) = parsed("inspect d --json --wal-dir w --log").unwrap()
        else {
            panic!("not understood")
        };
        assert_eq!((place.data_dir, place.wal_dir), (PathBuf::from("d"), PathBuf::from("w")));
        assert_eq!(shown, Shown { records: false, log: true, json: true });
        for wrong in ["check", "check a b", "check d --records", "inspect d --wal-dir"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
