//! Runs the scripts in `tests/scripts`: commands, and what they are expected to print.
//! `UPDATE_GOLDENFILES=1 cargo test -p revd-engine --test scripts` writes what they print now; read
//! the difference.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use goldenscript::{Argument, Command, Context, Runner};
use revd_engine::check::check;
use revd_engine::db::{Db, DbOptions};
use revd_engine::disk::SimDisk;
use revd_engine::meta::Table;
use revd_engine::mvcc::{
    Applied, CheckpointKind, Direction, HashKv, KeyRange, Reader, Revision, Store, StoredRecord,
};

type Output = Result<String, Box<dyn Error>>;

fn positional(command: &Command) -> Vec<&str> {
    command
        .args
        .iter()
        .map(|argument| match argument {
            Argument::Positional(value) => value.as_str(),
            other => panic!("{other} is not a plain argument"),
        })
        .collect()
}

/// Long values are written `100*x`.
fn bytes_of(text: &str) -> Vec<u8> {
    match text.split_once('*') {
        Some((count, letter)) => letter.repeat(count.parse().unwrap()).into_bytes(),
        None => text.as_bytes().to_vec(),
    }
}

fn shown(bytes: &[u8]) -> String {
    if bytes.len() > 40 { format!("{} bytes", bytes.len()) } else { bytes.escape_ascii().to_string() }
}

/// A tree file with pages of 256 bytes; each command is a transaction, or looks at the file.
struct TreeRunner {
    disk: SimDisk,
    db: Db,
}

const TREE: DbOptions = DbOptions { page_bytes_if_new: 256 };
const TABLE: Table = Table(0);

impl TreeRunner {
    fn new() -> Self {
        let disk = SimDisk::new();
        Self { db: Db::open(Arc::new(disk.clone()), TREE).unwrap(), disk }
    }
}

impl Runner for TreeRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Output {
        let args = positional(command);
        let mut out = String::new();
        match command.name.as_str() {
            "put" => {
                let mut txn = self.db.begin()?;
                for pair in args.chunks(2) {
                    txn.put(TABLE, pair[0].as_bytes(), &bytes_of(pair[1]))?;
                }
                txn.commit()?;
            }
            "fill" => {
                let mut txn = self.db.begin()?;
                for number in args[0].parse::<u32>()?..=args[1].parse()? {
                    txn.put(TABLE, format!("{number:04}").as_bytes(), b"0123456789")?;
                }
                txn.commit()?;
            }
            "remove" => {
                let mut txn = self.db.begin()?;
                for key in args {
                    write!(out, "{} ", txn.remove(TABLE, key.as_bytes())?)?;
                }
                txn.commit()?;
            }
            "get" => {
                let snapshot = self.db.snapshot();
                let value = snapshot.get(TABLE, args[0].as_bytes())?;
                write!(out, "{}", value.map_or("none".to_owned(), shown))?;
            }
            "scan" => {
                let snapshot = self.db.snapshot();
                let mut cursor = snapshot.cursor(TABLE);
                cursor.seek(args.first().unwrap_or(&"").as_bytes())?;
                while let Some((key, value)) = cursor.next()? {
                    writeln!(out, "{} = {}", shown(key), shown(value))?;
                }
            }
            "check" => {
                let report = check(&self.db)?;
                write!(
                    out,
                    "transaction {}: {} pages reachable, {} unused, {} keys",
                    self.db.snapshot().txn(),
                    report.reachable,
                    report.unused,
                    report.keys
                )?;
            }
            "reopen" => self.db = Db::open(Arc::new(self.disk.clone()), TREE)?,
            "hex" => {
                let (start, len) = (args[0].parse::<usize>()?, args[1].parse::<usize>()?);
                for (row, line) in self.disk.bytes()[start..start + len].chunks(16).enumerate() {
                    let hex: String = line.iter().map(|byte| format!("{byte:02x} ")).collect();
                    writeln!(out, "{:5} {hex}|{}|", start + row * 16, line.escape_ascii())?;
                }
            }
            name => return Err(format!("unknown command {name}").into()),
        }
        Ok(out)
    }
}

/// A store with pages of 512 bytes.
struct StoreRunner {
    disk: SimDisk,
    store: Store,
}

const STORE: DbOptions = DbOptions { page_bytes_if_new: 512 };

impl StoreRunner {
    fn new() -> Self {
        let disk = SimDisk::new();
        Self { store: Store::open(Arc::new(disk.clone()), STORE).unwrap(), disk }
    }

    fn applied(&mut self) {
        let index = self.store.applied().index + 1;
        self.store.set_applied(Applied { index, term: 1 });
    }

    /// `put k v`, `del k [end]`, several joined by `and`: one revision.
    fn write(&mut self, args: &[&str]) -> Output {
        let mut out = String::new();
        let mut txn = self.store.begin();
        for op in args.split(|arg| *arg == "and") {
            match op {
                ["put", key, value] => {
                    let put = txn.put(key.as_bytes(), &bytes_of(value), 0);
                    writeln!(
                        out,
                        "{key}: version {}, created at {}",
                        put.meta.version, put.meta.create_revision
                    )?;
                }
                ["del", key, end @ ..] => {
                    let end = end
                        .first()
                        .map_or(&b""[..], |end| if *end == "end" { b"\0" } else { end.as_bytes() });
                    let deleted = txn.delete_range(KeyRange::from_wire(key.as_bytes(), end));
                    writeln!(out, "deleted {}", deleted.len())?;
                }
                other => return Err(format!("{other:?} is no operation").into()),
            }
        }
        write!(out, "at revision {}", txn.commit())?;
        self.applied();
        Ok(out)
    }
}

fn read(reader: Reader<'_>, args: &[&str]) -> Output {
    let at = args.iter().skip_while(|arg| **arg != "at").nth(1).map_or(0, |at| at.parse().unwrap());
    let at = reader.resolve(at)?;
    let direction = if args.contains(&"reverse") { Direction::Reverse } else { Direction::Forward };
    let mut out = String::new();
    for (key, meta) in reader.scan(KeyRange::ALL, at, direction) {
        let record = StoredRecord::parse(reader.record(meta.modified)?).unwrap();
        let Revision { main, sub } = meta.modified;
        let value = shown(record.value);
        writeln!(
            out,
            "{} = {value} ({main}.{sub}, created {}, version {})",
            shown(&key.to_vec()),
            meta.create_revision,
            meta.version
        )?;
    }
    write!(out, "{} keys of revision {at}", reader.count(KeyRange::ALL, at))?;
    Ok(out)
}

impl Runner for StoreRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Output {
        let args = positional(command);
        match command.name.as_str() {
            "write" => self.write(&args),
            "read" => read(self.store.view().reader(), &args),
            "compact" => {
                self.store.compact(args[0].parse()?)?;
                self.applied();
                Ok(String::new())
            }
            "checkpoint" => {
                let kind =
                    if args.contains(&"index") { CheckpointKind::WithIndex } else { CheckpointKind::Auto };
                let Some(checkpoint) = self.store.checkpoint(kind) else {
                    return Ok("nothing to do".to_owned());
                };
                let written = checkpoint.write()?;
                let durable = self.store.finish_checkpoint(written);
                Ok(format!(
                    "applied up to {}, compaction pending: {}",
                    durable.applied.index, durable.compaction_pending
                ))
            }
            "reopen" => {
                self.store = Store::open(Arc::new(self.disk.clone()), STORE)?;
                check(self.store.db().unwrap())?;
                Ok(format!(
                    "revision {}, applied up to {}",
                    self.store.revision(),
                    self.store.applied().index
                ))
            }
            "records" => {
                let view = self.store.view();
                let mut out = String::new();
                view.reader().each_record_after(Revision::default(), |key, bytes| {
                    let record = StoredRecord::parse(bytes).unwrap();
                    let Revision { main, sub } = key.revision;
                    let what = format!("{:?}", key.kind).to_lowercase();
                    writeln!(out, "{main}.{sub} {what} {} = {}", shown(record.key), shown(record.value))
                        .unwrap();
                    Ok(true)
                })?;
                Ok(out)
            }
            "hash" => {
                let mut hash =
                    HashKv::new(self.store.view(), args.first().map_or(0, |at| at.parse().unwrap()))?;
                let hashed = loop {
                    if let Some(hashed) = hash.step(1)? {
                        break hashed;
                    }
                };
                Ok(format!(
                    "{} up to {}, compacted at {}",
                    hashed.hash, hashed.revision, hashed.compact_revision
                ))
            }
            name => Err(format!("unknown command {name}").into()),
        }
    }
}

fn run_all<R: Runner>(folder: &str, new: impl Fn() -> R) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(folder);
    let mut count = 0;
    for script in std::fs::read_dir(folder).unwrap() {
        goldenscript::run(&mut new(), script.unwrap().path()).unwrap();
        count += 1;
    }
    assert!(count > 0, "no scripts");
}

#[test]
fn tree() {
    run_all("tree", TreeRunner::new);
}

#[test]
fn mvcc() {
    run_all("mvcc", StoreRunner::new);
}
