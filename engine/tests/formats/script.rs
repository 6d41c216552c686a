//! A script of entries and checkpoints, and the store that it makes. Nothing here is newer than
//! format 1: the commits that wrote older formats run this file too (`write.sh`).

use std::path::PathBuf;
use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, KeyRange, SmallTable, Store};
use revd_engine::random::Random;

/// Pages are small: few keys make many of them.
const OPTIONS: DbOptions = DbOptions { page_bytes_if_new: 256 };

/// How a version is told that few keys are a large store. Versions before ranges of the index, or
/// before dead records, cannot be told.
#[derive(Clone, Copy)]
pub(crate) struct Knobs {
    /// So many keys of the index are saved at a time.
    pub(crate) steps: fn(&mut Store, u64),
    /// Compactions of more records than that leave dead ones.
    pub(crate) large: fn(&mut Store, u64),
}

/// A store and how it is to be opened again.
pub(crate) struct Session {
    path: PathBuf,
    knobs: Knobs,
    steps: Option<u64>,
    large: Option<u64>,
    store: Option<Store>,
}

impl Session {
    pub(crate) fn open(path: PathBuf, knobs: Knobs) -> Self {
        let mut session = Self { path, knobs, steps: None, large: None, store: None };
        session.reopen();
        session
    }

    pub(crate) fn store(&mut self) -> &mut Store {
        self.store.as_mut().unwrap()
    }

    /// As after a crash: what no checkpoint holds is gone, and here that is nothing.
    fn reopen(&mut self) {
        assert!(self.store.take().is_none_or(|store| !store.has_unsaved()), "a checkpoint is missing");
        let disk = MmapDisk::open(&self.path).unwrap();
        let mut store = Store::open(Arc::new(disk), OPTIONS).unwrap();
        self.steps.inspect(|keys| (self.knobs.steps)(&mut store, *keys));
        self.large.inspect(|records| (self.knobs.large)(&mut store, *records));
        self.store = Some(store);
    }

    fn applied(&mut self) {
        let index = self.store().applied().index + 1;
        self.store().set_applied(Applied { index, term: 1 + index / 100 });
    }

    /// A value says which entry has put it.
    fn value(&mut self, bytes: usize) -> Vec<u8> {
        let entry = format!("{}.", self.store().applied().index + 1);
        entry.bytes().cycle().take(bytes).collect()
    }

    fn put(&mut self, key: &[u8], bytes: usize, lease: i64) {
        let value = self.value(bytes);
        let mut txn = self.store().begin();
        txn.put(key, &value, lease);
        txn.commit();
        self.applied();
    }

    fn save(&mut self, kind: CheckpointKind) {
        if let Some(checkpoint) = self.store().checkpoint(kind) {
            let written = checkpoint.write().unwrap();
            self.store().finish_checkpoint(written);
        }
    }

    /// Chores go on to their end.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            while self.store().forget_compacted(7) {}
            let store = self.store();
            if !(store.compaction_pending() || store.is_sweeping() || store.is_defragmenting()) {
                return;
            }
            self.save(CheckpointKind::Auto);
        }
        panic!("chores do not end");
    }

    /// Runs the lines of a script; `see` is shown the store behind each `reopen`.
    pub(crate) fn run(&mut self, script: &str, see: &mut dyn FnMut(&mut Store)) {
        for line in script.lines() {
            let words: Vec<&str> = line.split('#').next().unwrap().split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            if words == ["reopen"] {
                self.reopen();
                see(self.store());
            } else {
                self.run_line(&words);
            }
        }
    }

    fn run_line(&mut self, words: &[&str]) {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let bytes = |at: usize| usize::try_from(number(at)).unwrap();
        match words[0] {
            "steps" => {
                self.steps = Some(number(1));
                (self.knobs.steps)(self.store(), number(1));
            }
            "large" => {
                self.large = Some(number(1));
                (self.knobs.large)(self.store(), number(1));
            }
            "put" => self.put(&key(words[1]), bytes(2), words.get(3).map_or(0, |id| id.parse().unwrap())),
            "fill" => (number(1)..number(2)).for_each(|at| self.put(&numbered(at), bytes(3), 0)),
            "hot" => (0..number(2)).for_each(|_| self.put(&key(words[1]), 0, 0)),
            "random" => self.random(number(1), number(2), number(3), bytes(4)),
            "delete" => {
                let (from, end) = (key(words[1]), words.get(2).map_or(Vec::new(), |end| key(end)));
                let mut txn = self.store().begin();
                assert!(!txn.delete_range(KeyRange::from_wire(&from, &end)).is_empty(), "{words:?}");
                txn.commit();
                self.applied();
            }
            "txn" => self.txn(&words[1..]),
            "row" => {
                self.store().table_put(table(words[1]), words[2].as_bytes(), words[3].as_bytes());
                self.applied();
            }
            "unrow" => {
                self.store().table_remove(table(words[1]), words[2].as_bytes());
                self.applied();
            }
            "compact" => {
                let at = self.store().revision() - i64::try_from(number(1)).unwrap();
                self.store().compact(at).unwrap();
                self.applied();
            }
            "save" if words.get(1) == Some(&"all") => self.save(CheckpointKind::WithIndex),
            "save" => self.save(CheckpointKind::Auto),
            "settle" => self.settle(),
            "defragment" => {
                self.store().defragment().unwrap();
                self.settle();
            }
            _ => panic!("no verb: {words:?}"),
        }
    }

    /// Puts and deletes one key after another, all in one revision.
    fn txn(&mut self, keys: &[&str]) {
        let value = self.value(9);
        let mut txn = self.store().begin();
        for name in keys {
            match name.strip_prefix('-') {
                Some(name) => drop(txn.delete_range(KeyRange::One(&key(name)))),
                None => drop(txn.put(&key(name), &value, 0)),
            }
        }
        txn.commit();
        self.applied();
    }

    /// So many puts of so many keys, a few deletes among them, and a checkpoint after some.
    fn random(&mut self, seed: u64, puts: u64, keys: u64, bytes_max: usize) {
        let mut random = Random::new(seed);
        for _ in 0..puts {
            let (key, bytes) = (numbered(random.below(keys)), random.below(bytes_max as u64));
            if random.one_in(9) {
                let mut txn = self.store().begin();
                txn.delete_range(KeyRange::One(&key));
                txn.commit();
                self.applied();
            } else {
                self.put(&key, usize::try_from(bytes).unwrap(), 0);
            }
            if random.one_in(12) {
                self.save(CheckpointKind::Auto);
            }
        }
        self.save(CheckpointKind::Auto);
    }
}

fn table(number: &str) -> SmallTable {
    match number {
        "1" => SmallTable::Members,
        "2" => SmallTable::Cluster,
        "3" => SmallTable::Alarms,
        "4" => SmallTable::Leases,
        "5" => SmallTable::LeaseKeys,
        _ => panic!("no table: {number}"),
    }
}

fn numbered(number: u64) -> Vec<u8> {
    format!("key/{number:03}").into_bytes()
}

/// `name`; `name*100` is as long as that; `crc*100` and so on have one CRC-32C: whatever comes
/// first, four bytes behind it make it that.
fn key(word: &str) -> Vec<u8> {
    let Some((name, bytes)) = word.split_once('*') else { return word.as_bytes().to_vec() };
    let mut key = name.as_bytes().to_vec();
    key.resize(bytes.parse().unwrap(), b'x');
    if name.starts_with("crc") {
        let rest = !crc32c::crc32c(&key);
        key.extend_from_slice(&rest.to_le_bytes());
    }
    key
}
