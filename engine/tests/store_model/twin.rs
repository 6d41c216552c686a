//! A naive store that keeps every record of every revision, and what it is told.

use std::collections::BTreeMap;

use revd_engine::mvcc::KeyRange;

/// One operation of a transaction.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>, Vec<u8>),
}

#[derive(Debug, Clone)]
pub(crate) enum ModelEntry {
    Txn(Vec<Op>),
    Reverted(Vec<Op>),
    Compact(i64),
    Table(u8),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kv {
    pub(crate) create: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
    pub(crate) value: Vec<u8>,
}

/// Everything that ever happened, the slow way.
#[derive(Clone)]
pub(crate) struct Twin {
    pub(crate) states: Vec<BTreeMap<Vec<u8>, Kv>>,
    /// (main, sub, key, put) in order.
    pub(crate) records: Vec<(i64, i64, Vec<u8>, Option<Kv>)>,
    pub(crate) compact: i64,
}

impl Twin {
    pub(crate) fn new() -> Self {
        Self { states: vec![BTreeMap::new(); 2], records: Vec::new(), compact: -1 }
    }

    pub(crate) fn revision(&self) -> i64 {
        i64::try_from(self.states.len()).unwrap() - 1
    }

    pub(crate) fn apply(&mut self, entry: &ModelEntry) {
        match entry {
            ModelEntry::Compact(at) if *at > self.compact && *at <= self.revision() => self.compact = *at,
            ModelEntry::Txn(ops) => {
                let main = self.revision() + 1;
                let mut state = self.states.last().unwrap().clone();
                let mut sub = 0;
                for op in ops {
                    match op {
                        Op::Put(key, value) => {
                            let old = state.get(key);
                            let kv = Kv {
                                create: old.map_or(main, |old| old.create),
                                modified: main,
                                version: old.map_or(1, |old| old.version + 1),
                                value: value.clone(),
                            };
                            self.records.push((main, sub, key.clone(), Some(kv.clone())));
                            state.insert(key.clone(), kv);
                            sub += 1;
                        }
                        Op::Delete(key, end) => {
                            let range = KeyRange::from_wire(key, end);
                            let doomed: Vec<_> =
                                state.keys().filter(|key| range.contains(key)).cloned().collect();
                            for key in doomed {
                                state.remove(&key);
                                self.records.push((main, sub, key, None));
                                sub += 1;
                            }
                        }
                    }
                }
                if sub > 0 {
                    self.states.push(state);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn hash(&self, at: i64) -> u32 {
        let mut crc = crc32c::crc32c(b"key");
        let is_empty = self.states[usize::try_from(at).unwrap()].is_empty();
        let kept_at = if is_empty { self.compact } else { at };
        for (position, (main, sub, key, kv)) in self.records.iter().enumerate() {
            if *main > at {
                break;
            }
            if *main <= self.compact {
                let later =
                    self.records[position + 1..].iter().any(|(main, _, k, _)| k == key && *main <= kept_at);
                if later || kv.is_none() {
                    continue;
                }
            }
            let mut form = main.to_be_bytes().to_vec();
            form.push(b'_');
            form.extend_from_slice(&sub.to_be_bytes());
            if kv.is_none() {
                form.push(b't');
            }
            crc = crc32c::crc32c_append(crc, &form);
            crc = crc32c::crc32c_append(crc, &encode(key, kv.as_ref()));
        }
        crc
    }
}

pub(crate) fn encode(key: &[u8], kv: Option<&Kv>) -> Vec<u8> {
    use revd_engine::mvcc::record::{Stamp, encode_put, encode_tombstone};
    match kv {
        None => encode_tombstone(key, |parts| parts.concat()),
        Some(kv) => {
            let stamp = Stamp {
                create_revision: kv.create,
                mod_revision: kv.modified,
                version: kv.version,
                lease: 0,
            };
            encode_put(key, &kv.value, stamp, |parts| parts.concat())
        }
    }
}
