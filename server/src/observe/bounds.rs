//! How often each bound of `limits.rs` was reached: the client is told by an error, the operator
//! sees it here.

use std::sync::atomic::{AtomicU64, Ordering};

use revd_http2::Limit;

use crate::observe::exposition::{Exposition, Kind};

/// A bound that can be reached while serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// `PROPOSALS`: commands of an edge on their way through the log.
    Proposals,
    /// `CONNECTIONS_PER_CORE_MAX` for each edge, or the process's limit of open files less
    /// `FILES_RESERVED` and `FILES_PER_CORE`.
    Connections,
    /// `PROPOSALS`: keepalives of an edge on their way; the stream waits.
    Keepalives,
    /// `PROPOSALS`: linearizable reads of an edge that wait.
    Reads,
    /// `UNAPPLIED_ENTRIES_MAX`: committed entries that are not applied here; writes are refused.
    Unapplied,
    /// `SORT_BYTES_MAX`: keys that one range sorts.
    SortBytes,
    /// `TXN_COMPARED_KEYS_MAX`
    TxnCompares,
    /// `TXN_READS_MAX`
    TxnReads,
    /// `WRITE_REPLY_BYTES_MAX`
    WriteReply,
    /// `RESETS_PER_SECOND`, `RESETS_IN_FIRST_SECOND`: the connection ends, as with the next three.
    Resets,
    /// `IDLE_FRAMES_PER_SECOND`
    IdleFrames,
    /// `SETTINGS_PER_SECOND`
    Settings,
    /// `HEADER_BLOCK_BYTES_MAX`
    HeaderBlock,
    /// `MemoryLimits::replies`: a reply found no room, and waits or is refused.
    ReplyBytes,
    /// `MemoryLimits::requests`: a request found no room and is refused.
    RequestBytes,
    /// `MemoryLimits::watches`: a watch stream found no room; its watchers fall behind until there
    /// is.
    WatchBytes,
    /// `UNFINISHED_LOOKS`: a request that was not ended while others had no room.
    UnfinishedRequests,
    /// `TAKEN_BYTES_MIN`: a client that took its replies slowly while others had no room.
    SlowReaders,
    /// `WAITING_CALL_BYTES_MAX` and `--max-concurrent-streams`: calls that wait on a connection.
    WaitingCalls,
    /// `FIRST_BYTES_DEADLINE`, `HTTP2_DEADLINE`: a connection that did not say what it is, or no
    /// settings.
    FirstBytes,
    /// `HANDSHAKE_DEADLINE`, `HANDSHAKES_PER_CORE_MAX`: a TLS handshake that was not done.
    Handshakes,
    /// `HTTP2_DEADLINE`: a header block that did not end.
    HeaderBlockTime,
    /// `HEARING_READS_MAX`: a lease ended while something that had come was not read.
    Unread,
    /// `GARBAGE_MAX`: what old Views leave behind is freed by the core that drops them.
    Garbage,
    /// `PEER_CONNECTIONS_MAX`, `PEER_CONNECTIONS_PART`: a connection to the peer port is closed.
    PeerConnections,
    /// `PEER_OUTBOX_BYTES`: messages to another member are dropped.
    PeerOutbox,
    /// `PEER_HELLO_DEADLINE`, `PEER_SILENT_PULSES_MAX`: a connection to the peer port on which
    /// nothing comes.
    PeerSilence,
}

impl From<Limit> for Bound {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::Resets => Self::Resets,
            Limit::IdleFrames => Self::IdleFrames,
            Limit::Settings => Self::Settings,
            Limit::HeaderBlock => Self::HeaderBlock,
        }
    }
}

impl Bound {
    /// Every bound, in the order of their declaration.
    pub const ALL: [Self; 27] = [
        Self::Proposals,
        Self::Connections,
        Self::Keepalives,
        Self::Reads,
        Self::Unapplied,
        Self::SortBytes,
        Self::TxnCompares,
        Self::TxnReads,
        Self::WriteReply,
        Self::Resets,
        Self::IdleFrames,
        Self::Settings,
        Self::HeaderBlock,
        Self::ReplyBytes,
        Self::RequestBytes,
        Self::WatchBytes,
        Self::UnfinishedRequests,
        Self::SlowReaders,
        Self::WaitingCalls,
        Self::FirstBytes,
        Self::Handshakes,
        Self::HeaderBlockTime,
        Self::Unread,
        Self::Garbage,
        Self::PeerConnections,
        Self::PeerOutbox,
        Self::PeerSilence,
    ];

    /// Its name among metrics.
    #[must_use]
    fn name(self) -> &'static str {
        match self {
            Self::Proposals => "proposals",
            Self::Connections => "connections",
            Self::Keepalives => "keepalives",
            Self::Reads => "reads",
            Self::Unapplied => "unapplied_entries",
            Self::SortBytes => "sort_bytes",
            Self::TxnCompares => "txn_compared_keys",
            Self::TxnReads => "txn_reads",
            Self::WriteReply => "write_reply_bytes",
            Self::Resets => "resets",
            Self::IdleFrames => "idle_frames",
            Self::Settings => "settings",
            Self::HeaderBlock => "header_block_bytes",
            Self::ReplyBytes => "reply_bytes",
            Self::RequestBytes => "request_bytes",
            Self::WatchBytes => "watch_bytes",
            Self::UnfinishedRequests => "unfinished_requests",
            Self::SlowReaders => "slow_readers",
            Self::WaitingCalls => "waiting_calls",
            Self::FirstBytes => "first_bytes",
            Self::Handshakes => "tls_handshakes",
            Self::HeaderBlockTime => "header_block_time",
            Self::Unread => "unread",
            Self::Garbage => "garbage",
            Self::PeerConnections => "peer_connections",
            Self::PeerOutbox => "peer_outbox_bytes",
            Self::PeerSilence => "peer_silence",
        }
    }
}

/// Node view. Any core adds to it, without a lock; nothing on the way of a call that is served
/// does.
#[derive(Debug)]
pub struct BoundCounters([AtomicU64; Bound::ALL.len()]);

impl Default for BoundCounters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Bound::ALL.len()])
    }
}

impl BoundCounters {
    /// The bound was reached.
    pub fn reached(&self, bound: Bound) {
        self.0[bound as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds their metrics.
    pub fn write(&self, to: &mut Exposition) {
        let help = "How often a bound was reached, and something refused, dropped or made to wait.";
        let mut family = to.family("revd_limit_reached_total", Kind::Counter, help);
        for bound in Bound::ALL {
            family.sample("", &[("limit", bound.name())], self.get(bound));
        }
    }

    /// How often it was reached.
    #[must_use]
    pub fn get(&self, bound: Bound) -> u64 {
        self.0[bound as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_has_a_place_and_a_name_of_its_own() {
        let counters = BoundCounters::default();
        for (at, bound) in Bound::ALL.into_iter().enumerate() {
            assert_eq!(bound as usize, at);
            counters.reached(bound);
            assert_eq!(counters.get(bound), 1);
            assert_eq!(Bound::ALL.iter().filter(|other| other.name() == bound.name()).count(), 1);
        }
    }
}
