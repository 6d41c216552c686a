//! Memory that no reader needs any more.
//!
//! Views share what they are made of: index nodes, chunks of the tail, the map of the tree file.
//! The parts that the store has replaced since a View was made are freed with the View, by its last
//! holder, but for the nodes: those the store frees, when it finds that the View has ended. After a
//! few changes that is little. After millions, or when a checkpoint has emptied the tail, freeing
//! takes so long that a core that serves requests must not do it: then the memory is handed to a
//! collector, if the store has one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::limits;
use crate::limits::FREED_AT_ONCE_CHANGES;
use crate::mvcc::kept_puts::KeptPuts;
use crate::mvcc::key_index::{SharedIndex, UnneededNodes};
use crate::mvcc::tail::TailView;
use crate::pauses::Pauses;
use crate::snapshot::Snapshot;

/// Memory that nothing needs: dropping it frees it, however long that takes.
#[derive(Debug)]
pub struct Garbage(pub(crate) Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    /// All that a View leaves behind.
    View(SharedIndex, TailView, Snapshot),
    /// Nodes that the index and its shares have no more.
    Nodes(UnneededNodes),
    /// Notes of a compaction that is done.
    Notes(Arc<KeptPuts>),
}

type Collect = dyn Fn(Garbage) + Send + Sync;

/// Node view: shared by the store and its Views.
#[derive(Default)]
pub(crate) struct Collector {
    /// How much was replaced before the newest View was made.
    newest: AtomicU64,
    collect: OnceLock<Box<Collect>>,
}

/// How much the store has replaced since it was opened, counted in changes of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Replaced(u64);

impl Replaced {
    /// Counts one more change, of so many bytes.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.0 += 1 + (bytes / limits::FREED_BYTES_PER_CHANGE) as u64;
    }

    /// Counts a replacement that takes long to free by itself.
    pub(crate) fn count_much(&mut self) {
        self.0 += FREED_AT_ONCE_CHANGES + 1;
    }
}

impl Collector {
    /// A View was made after so much was replaced.
    pub(crate) fn made(&self, at: Replaced) {
        let before = self.newest.load(Ordering::Relaxed);
        debug_assert!(at.0 >= before, "a View is made after {} changes, the one before after {before}", at.0);
        self.newest.store(at.0, Ordering::Relaxed);
    }

    /// The collector for what a View of this moment leaves behind, if that is much.
    pub(crate) fn wanted(&self, at: Replaced) -> Option<&Collect> {
        let since = self.newest.load(Ordering::Relaxed).saturating_sub(at.0);
        self.get().filter(|_| since > FREED_AT_ONCE_CHANGES)
    }

    /// The collector, if there is one.
    pub(crate) fn get(&self) -> Option<&Collect> {
        self.collect.get().map(|collect| &**collect)
    }

    /// Sets the collector; a second one is not taken.
    pub(crate) fn set(&self, collect: impl Fn(Garbage) + Send + Sync + 'static) {
        let _ = self.collect.set(Box::new(collect));
    }
}

impl Garbage {
    /// Frees it with pauses: for a thread that no core waits for.
    pub fn free(self) {
        match self.0 {
            Kind::View(index, tail, tree) => {
                index.free(&mut Pauses::wanted());
                drop((tail, tree));
            }
            Kind::Nodes(nodes) => nodes.free(&mut Pauses::wanted()),
            Kind::Notes(kept) => KeptPuts::free(kept, &mut Pauses::wanted()),
        }
    }
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Collector({})", if self.collect.get().is_some() { "set" } else { "none" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::db::DbOptions;
    use crate::disk::SimDisk;
    use crate::mvcc::{CheckpointKind, Store, View};

    type Collected = Arc<Mutex<Vec<Garbage>>>;

    fn store() -> (Store, Collected) {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let collected = Collected::default();
        let pile = Arc::clone(&collected);
        store.collect_garbage(move |garbage| pile.lock().unwrap().push(garbage));
        (store, collected)
    }

    fn put(store: &mut Store, keys: impl Iterator<Item = u64>, value: &[u8]) {
        for key in keys {
            let mut txn = store.begin();
            txn.put(format!("k{key:06}").as_bytes(), value, 0);
            txn.commit();
        }
    }

    fn save(store: &mut Store) {
        let written = store.checkpoint(CheckpointKind::WithIndex).unwrap().write().unwrap();
        store.finish_checkpoint(written);
    }

    /// Drops a View as its last holder; whether it was not left to the collector.
    fn frees_at_once(view: View, collected: &Collected) -> bool {
        drop(view);
        let pile = std::mem::take(&mut *collected.lock().unwrap());
        assert!(pile.iter().all(|garbage| matches!(garbage.0, Kind::View(..))));
        let is_freed = pile.is_empty();
        pile.into_iter().for_each(Garbage::free);
        is_freed
    }

    #[test]
    fn memory_that_many_changes_have_replaced_is_left_to_the_collector() {
        let (mut store, collected) = store();
        put(&mut store, 0..20_000, b"1");
        for (changes, at_once) in [(1, true), (FREED_AT_ONCE_CHANGES, true), (20_000, false)] {
            let (view, clone) = (store.view(), store.view());
            put(&mut store, 0..changes, b"2");
            drop(clone); // not the last one of this moment, and nothing newer is published
            assert!(collected.lock().unwrap().is_empty());
            let newest = store.view();
            assert_eq!(frees_at_once(view, &collected), at_once, "{changes} changes");
            assert_eq!(newest.reader().count(crate::mvcc::KeyRange::From(b""), i64::MAX), 20_000);
        }
    }

    #[test]
    fn a_turn_has_a_bounded_number_of_bytes_of_keys_forget() {
        let (mut store, _) = store();
        let key = |number: u8| [&[b'k'; limits::FORGET_BYTES_PER_TURN / 4][..], &[number]].concat();
        for number in (0..10).chain(0..10) {
            let mut txn = store.begin();
            txn.put(&key(number), b"", 0);
            txn.commit();
        }
        store.to_compact.extend((0..10).map(key));
        for is_more in [true, true, false] {
            assert_eq!(store.forget_compacted(1_000), is_more);
        }
    }

    #[test]
    fn records_that_a_checkpoint_takes_from_memory_are_left_to_the_collector() {
        let (mut store, collected) = store();
        put(&mut store, 0..20, &[7; 1 << 20]);
        let view = store.view();
        save(&mut store);
        put(&mut store, std::iter::once(2), b"1");
        let _newest = store.view();
        assert!(!frees_at_once(view, &collected));
    }

    #[test]
    fn the_past_of_a_hot_key_is_left_to_the_collector() {
        let (mut store, collected) = store();
        put(&mut store, std::iter::repeat_n(1, 50_000), b"1");
        save(&mut store);
        store.compact(store.revision()).unwrap();
        while store.compaction_pending() {
            save(&mut store);
        }
        let view = store.view();
        while store.forget_compacted(1) {}
        put(&mut store, std::iter::once(2), b"1");
        let newest = store.view();
        drop(view);
        collected.lock().unwrap().clear();
        store.free_unneeded();
        let pile = std::mem::take(&mut *collected.lock().unwrap());
        assert!(matches!(pile[..], [Garbage(Kind::Nodes(_))]), "{} pieces", pile.len());
        pile.into_iter().for_each(Garbage::free);
        drop(newest);
        store.free_unneeded();
        assert!(collected.lock().unwrap().is_empty(), "other nodes are freed at once");
    }

    /// Few nodes are freed some at a time; many are not freed here.
    #[test]
    fn nodes_that_many_changes_have_replaced_are_left_to_the_collector() {
        let (mut store, collected) = store();
        put(&mut store, 0..200_000, b"1");
        for (changed, are_many) in [(20_000, false), (200_000, true)] {
            let view = store.view();
            put(&mut store, 0..changed, b"2");
            let _newest = store.view();
            drop(view);
            collected.lock().unwrap().clear();
            (0..200).for_each(|_| store.free_unneeded());
            let pile = std::mem::take(&mut *collected.lock().unwrap());
            let are_nodes = pile.iter().all(|garbage| matches!(garbage.0, Kind::Nodes(_)));
            assert!(are_nodes && pile.is_empty() != are_many, "{} pieces", pile.len());
            assert!(!store.may_have_unneeded());
        }
    }

    #[test]
    fn without_a_collector_everything_is_freed_at_once() {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        put(&mut store, 0..200_000, b"1");
        let view = store.view();
        put(&mut store, 0..200_000, b"2");
        let _newest = store.view();
        drop(view);
        (0..200).for_each(|_| store.free_unneeded());
        assert!(!store.may_have_unneeded());
    }
}
