//! Members that lag behind what is in memory are fed from the segments of the log.
//!
//! Raft asks for entries; those that are not in memory are *fetched*: an effect names them, they
//! are read, and an event brings them. One fetch per member is under way at a time, of about one
//! message, and no more than some bytes are with it unconfirmed, so that a member is fed as fast as
//! it writes, while the turns of this core stay short and what else goes to that member does not
//! wait behind much. Entries that were read count only if their terms are those of the log.

use raft::{ProgressState, StateRole};

use crate::limits;
use crate::raft::convert::to_raft;
use crate::raft::feed::{Feed, LogFetch, Unread};
use crate::raft::node::RaftNode;
use crate::wal::LogEntry;

impl RaftNode {
    /// Entries that are to be read for members that lag behind, if raft has asked for it.
    pub(super) fn fetches(&mut self) -> Vec<LogFetch> {
        if !self.raw.store().take_missed() || self.raw.raft.state != StateRole::Leader {
            return Vec::new();
        }
        let (own, store) = (self.raw.raft.id, self.raw.store());
        let (base, high) = (store.base(), store.memory_base() + 1);
        let members = self.raw.raft.prs().iter().filter(|(id, member)| {
            let is_fed = member.state != ProgressState::Snapshot && !member.is_paused();
            **id != own && is_fed && member.next_idx > base && member.next_idx < high
        });
        let members = members.map(|(id, member)| (*id, member.next_idx, member.matched));
        let mut members: Vec<(u64, u64, u64)> = members.collect();
        members.sort_unstable();
        let feeds = &mut self.raw.mut_store().feeds;
        let fetch = |(to, low, matched)| {
            let feed = feeds.entry(to).or_default();
            feed.confirm(matched);
            if !feed.has_room() {
                return None;
            }
            feed.fetch = Some(LogFetch { to, low, high, bytes_max: limits::LOG_FETCH_BYTES });
            feed.fetch
        };
        members.into_iter().filter_map(fetch).collect()
    }

    /// The entries of a fetch, or why they are not there. They are not trusted: only those of the
    /// log as it is now are sent. Those that the disk does not give are asked for again when the
    /// member answers the next heartbeat; in the end the log lets go of them, so that the member is
    /// sent a state.
    pub fn fetched(&mut self, fetch: LogFetch, entries: Result<Vec<LogEntry>, Unread>) {
        let store = self.raw.mut_store();
        if store.feeds.get(&fetch.to).and_then(|feed| feed.fetch) != Some(fetch) {
            return; // the log has begun again since
        }
        let is_log = |entries: &Vec<LogEntry>| {
            let in_row = entries.iter().zip(fetch.low..).all(|(entry, index)| entry.index == index);
            let is_known = |entry: &LogEntry| store.is_known(entry.index, entry.term);
            in_row && entries.iter().all(is_known)
        };
        let found = entries.and_then(|entries| match entries.is_empty() {
            true => Err(Unread::Released),
            false => Some(entries).filter(is_log).ok_or(Unread::Failed),
        });
        let feed = store.feeds.entry(fetch.to).or_default();
        feed.fetch = None;
        match found {
            Ok(entries) => feed.put(entries.iter().map(to_raft).collect()),
            Err(Unread::Failed) if feed.fail() => return,
            Err(Unread::Failed | Unread::Released) => store.release(fetch.low.min(store.memory_base())),
        }
        self.feed(fetch.to);
    }

    /// Sends a member as much as raft lets it have.
    fn feed(&mut self, to: u64) {
        let raft = &mut self.raw.raft;
        while raft.state == StateRole::Leader
            && let Some(next) = raft.prs().get(to).map(|member| member.next_idx)
            && next <= raft.raft_log.last_index()
        {
            raft.send_append(to);
            if raft.prs().get(to).is_none_or(|member| member.next_idx == next) {
                return;
            }
        }
    }

    /// Entries are read for this member, and it takes them.
    #[must_use]
    pub fn feeds(&self, member: u64) -> bool {
        self.raw.store().feeds.get(&member).is_some_and(Feed::is_active)
    }

    /// Entries are read for some member, and it takes them.
    pub(super) fn is_feeding(&self) -> bool {
        self.raw.store().feeds.values().any(Feed::is_active)
    }

    /// A step of the clock: what members do not need any more goes.
    pub(super) fn tick_feeds(&mut self) {
        if self.raw.store().feeds.is_empty() {
            return;
        }
        let (raft, store) = (&self.raw.raft, self.raw.store());
        let leads = raft.state == StateRole::Leader;
        let is_behind = |id: &u64| {
            leads && raft.prs().get(*id).is_some_and(|member| member.next_idx <= store.memory_base())
        };
        let behind: Vec<u64> = store.feeds.keys().copied().filter(is_behind).collect();
        self.raw.mut_store().feeds.retain(|id, feed| feed.tick(behind.contains(id)));
    }
}
