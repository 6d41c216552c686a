//! The errors of requests: one place for gRPC codes and etcd's exact texts. Clients compare the
//! texts, so they are part of the contract.

mod auth;
mod status;

pub use auth::AuthError;
pub use status::{Code, Status};

/// An error a client sees.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    #[error("etcdserver: key not found")]
    KeyNotFound,
    #[error("etcdserver: value is provided")]
    ValueProvided,
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    #[error("etcdserver: too many operations in txn request")]
    TooManyOperations,
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    #[error("etcdserver: invalid client api version")]
    InvalidClientApiVersion,
    #[error("etcdserver: request is too large")]
    RequestTooLarge,
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// More requests wait than the member accepts. etcd sends this with the code Unknown.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    #[error("etcdserver: no leader")]
    NoLeader,
    /// A linearizable read waited for a leader that is none any more.
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    /// Only the leader does this.
    #[error("etcdserver: not leader")]
    NotLeader,
    /// The member has no vote, and answers little.
    #[error("etcdserver: rpc not supported for learner")]
    NotForLearners,
    /// The leader has dropped a command: it gives its place to another member.
    #[error("raft proposal dropped")]
    ProposalDropped,
    /// The request was not answered in time; a write may still happen.
    #[error("etcdserver: request timed out")]
    Timeout,
    /// The same, and the leader of the time before it is gone.
    #[error("etcdserver: request timed out, possibly due to previous leader failure")]
    TimeoutLeaderFailed,
    /// The same, and the connection to the leader was interrupted.
    #[error("etcdserver: request timed out, possibly due to connection lost")]
    TimeoutConnectionLost,
    /// There was no leader all the time that a write may wait: nothing was proposed.
    #[error("context deadline exceeded")]
    NeverProposed,
    /// Another member was to lead, and does not in time.
    #[error("etcdserver: request timed out, leader transfer took too long")]
    LeaderTransferTimeout,
    #[error("etcdserver: bad leader transferee")]
    BadLeaderTransferee,
    #[error("etcdserver: wrong downgrade target version format")]
    WrongDowngradeVersion,
    #[error("etcdserver: invalid downgrade target version")]
    InvalidDowngradeTarget,
    #[error("etcdserver: cluster version not found during downgrade")]
    NoClusterVersion,
    #[error("etcdserver: cluster has a downgrade job in progress")]
    DowngradeInProgress,
    #[error("etcdserver: no inflight downgrade job")]
    NoDowngrade,
    /// A downgrade request that asks for nothing there is.
    #[error("etcdserver: unknown method")]
    UnknownDowngradeAction,
    #[error("etcdserver: given member URLs are invalid")]
    BadMemberUrls,
    #[error("etcdserver: member not found")]
    MemberNotFound,
    #[error("etcdserver: member ID already exist")]
    MemberExists,
    #[error("etcdserver: Peer URLs already exists")]
    PeerUrlExists,
    /// A change of members would leave too few of them started. etcd sends this with the code
    /// Unknown.
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnoughStarted,
    /// A change of members would leave too few of them connected.
    #[error("etcdserver: unhealthy cluster")]
    Unhealthy,
    #[error("etcdserver: can only promote a learner member")]
    MemberNotLearner,
    #[error("etcdserver: can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    #[error("etcdserver: too many learner members in cluster")]
    TooManyLearners,
    /// Something about users, roles or rights.
    #[error(transparent)]
    Auth(AuthError),
    /// The member is shutting down.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// The message is not what its method takes.
    #[error("grpc: error unmarshalling request: {0}")]
    Malformed(&'static str),
    /// The same of a message in a stream: grpc-go has other words there.
    #[error("grpc: failed to unmarshal the received message: {0}")]
    MalformedInStream(&'static str),
    /// RangeStream refuses what it cannot stream.
    #[error("RangeStream does not support custom sort orders")]
    StreamSorted,
    /// RangeStream refuses what it cannot stream.
    #[error("RangeStream does not support revision filters")]
    StreamFiltered,
    /// An alarm request that asks for nothing we know. etcd 3.7.1 ends here.
    #[error("alarm action {0} is none of GET (0), ACTIVATE (1) and DEACTIVATE (2)")]
    UnknownAlarmAction(i32),
    /// A transaction whose comparisons look at very many keys.
    #[error("a transaction that is not read-only may compare {keys_max} keys: nothing was changed")]
    TxnCompares {
        /// The bound.
        keys_max: usize,
    },
    /// A transaction with very many operations that read.
    #[error("a transaction that is not read-only may read {reads_max} times: nothing was changed")]
    TxnReads {
        /// The bound.
        reads_max: usize,
    },
    /// The reply to a write would be too large.
    #[error(
        "what this request has to read may be {bytes_max} bytes, together with a write: nothing was changed; read less at \
         a time (limit, or a range of its own)"
    )]
    WriteReplyTooLarge {
        /// The bound.
        bytes_max: usize,
    },
    /// A write whose reply could not be made.
    #[error("the write was carried out, but cannot be answered: {0}")]
    Unanswered(Box<Self>),
    /// A reply takes too much memory, whatever others do.
    #[error(
        "a reply may take {bytes_max} bytes of this member's memory: ask for less at a time (limit, or RangeStream)"
    )]
    ReplyTooLarge {
        /// The bound.
        bytes_max: usize,
    },
    /// A range has more keys to sort than there is memory for.
    #[error(
        "a range may take {bytes_max} bytes to sort its keys: use a limit of at most {limit_max}, or read in the order of keys",
        limit_max = crate::limits::SORT_HEAP_KEYS_MAX
    )]
    SortTooLarge {
        /// The bound.
        bytes_max: usize,
    },
    /// A watcher that the member itself needs for a call was refused, and why.
    #[error("{0}")]
    NoWatcher(&'static str),
    /// Replies take too much memory at the moment.
    #[error(
        "replies that others make or do not take leave no room for one of {bytes} bytes: try again later, ask for less at a \
         time (limit, or RangeStream), or take replies faster"
    )]
    NoReplyRoom {
        /// The bytes that it had by then.
        bytes: usize,
    },
    /// The state of this member is not that of the others. Clients go to another member, since they
    /// are told so with the code Unavailable.
    #[error("etcdserver: corrupt member: its data is not that of the cluster, ask another one")]
    CorruptMember,
    /// An alarm says that a member is corrupt, and nothing is written meanwhile; or the engine
    /// found damage, and the member is about to stop.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
}

impl From<prost::DecodeError> for Error {
    /// In the words of Go's decoder, which tells little. Every member decodes the same bytes of the
    /// log with the same result, so a malformed request is an answer, not a failure.
    fn from(error: prost::DecodeError) -> Self {
        let is_bad_text = error.to_string().contains("UTF-8");
        Self::Malformed(if is_bad_text {
            "string field contains invalid UTF-8"
        } else {
            "proto: cannot parse invalid wire-format data"
        })
    }
}

impl Error {
    /// A write that ends like this may have been carried out, or may be carried out later.
    #[must_use]
    pub fn leaves_write_open(&self) -> bool {
        matches!(
            self,
            Self::Timeout | Self::TimeoutLeaderFailed | Self::TimeoutConnectionLost | Self::NeverProposed
        )
    }

    /// The same of a message in a stream.
    #[must_use]
    pub fn in_stream(self) -> Self {
        match self {
            Self::Malformed(text) => Self::MalformedInStream(text),
            other => other,
        }
    }

    /// The gRPC code it travels with.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::EmptyKey
            | Self::KeyNotFound
            | Self::ValueProvided
            | Self::LeaseProvided
            | Self::TooManyOperations
            | Self::DuplicateKey
            | Self::InvalidSortOption
            | Self::InvalidClientApiVersion
            | Self::RequestTooLarge
            | Self::BadMemberUrls
            | Self::WrongDowngradeVersion
            | Self::InvalidDowngradeTarget
            | Self::UnknownAlarmAction(_) => Code::InvalidArgument,
            Self::Compacted | Self::FutureRevision | Self::LeaseTtlTooLarge => Code::OutOfRange,
            Self::LeaseNotFound | Self::MemberNotFound => Code::NotFound,
            Self::LeaseExists
            | Self::NotLeader
            | Self::NotForLearners
            | Self::BadLeaderTransferee
            | Self::NoClusterVersion
            | Self::DowngradeInProgress
            | Self::NoDowngrade
            | Self::MemberExists
            | Self::PeerUrlExists
            | Self::MemberNotLearner
            | Self::LearnerNotReady
            | Self::TooManyLearners => Code::FailedPrecondition,
            Self::TooManyRequests
            | Self::ProposalDropped
            | Self::LeaderTransferTimeout
            | Self::UnknownDowngradeAction
            | Self::NotEnoughStarted => Code::Unknown,
            Self::NoLeader
            | Self::LeaderChanged
            | Self::Timeout
            | Self::TimeoutLeaderFailed
            | Self::TimeoutConnectionLost
            | Self::Unhealthy
            | Self::CorruptMember
            | Self::Stopped => Code::Unavailable,
            Self::NeverProposed => Code::DeadlineExceeded,
            Self::Malformed(_) | Self::MalformedInStream(_) => Code::Internal,
            Self::StreamSorted | Self::StreamFiltered => Code::Unimplemented,
            Self::NoSpace
            | Self::ReplyTooLarge { .. }
            | Self::SortTooLarge { .. }
            | Self::TxnCompares { .. }
            | Self::TxnReads { .. }
            | Self::WriteReplyTooLarge { .. }
            | Self::NoWatcher(_)
            | Self::NoReplyRoom { .. } => Code::ResourceExhausted,
            Self::Auth(error) => error.code(),
            Self::Unanswered(why) => why.code(),
            Self::Corrupt => Code::DataLoss,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<revd_engine::Error> for Error {
    fn from(error: revd_engine::Error) -> Self {
        match error {
            revd_engine::Error::Compacted { .. } => Self::Compacted,
            revd_engine::Error::FutureRevision { .. } => Self::FutureRevision,
            _ => Self::Corrupt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// etcd 3.7.1's texts and codes when a cluster changes its leader: clients compare the texts
    /// and retry by the codes.
    #[test]
    fn errors_of_a_cluster_travel_as_those_of_etcd() {
        let timeout = "etcdserver: request timed out";
        for (error, code, text) in [
            (Error::NoLeader, Code::Unavailable, "etcdserver: no leader".to_owned()),
            (Error::LeaderChanged, Code::Unavailable, "etcdserver: leader changed".to_owned()),
            (Error::Timeout, Code::Unavailable, timeout.to_owned()),
            (
                Error::TimeoutLeaderFailed,
                Code::Unavailable,
                format!("{timeout}, possibly due to previous leader failure"),
            ),
            (
                Error::TimeoutConnectionLost,
                Code::Unavailable,
                format!("{timeout}, possibly due to connection lost"),
            ),
            (Error::NotLeader, Code::FailedPrecondition, "etcdserver: not leader".to_owned()),
            (
                Error::NotForLearners,
                Code::FailedPrecondition,
                "etcdserver: rpc not supported for learner".to_owned(),
            ),
            (Error::TooManyRequests, Code::Unknown, "etcdserver: too many requests".to_owned()),
            (Error::ProposalDropped, Code::Unknown, "raft proposal dropped".to_owned()),
            (Error::NeverProposed, Code::DeadlineExceeded, "context deadline exceeded".to_owned()),
        ] {
            assert_eq!(Status::from(error), Status::new(code, text));
        }
    }
}
