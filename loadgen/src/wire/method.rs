//! The calls that a run can make.

/// A method of etcd's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcMethod {
    /// One range.
    Range,
    /// A range in parts.
    RangeStream,
    /// One key.
    Put,
    /// Keys that go.
    DeleteRange,
    /// A transaction.
    Txn,
    /// Watchers.
    Watch,
    /// A new lease.
    LeaseGrant,
    /// Leases that stay.
    LeaseKeepAlive,
    /// A lock.
    Lock,
    /// A lock that is given up.
    Unlock,
    /// Version and size.
    Status,
    /// A checksum of all keys.
    HashKv,
    /// Any other, by its path.
    Other(&'static str),
}

impl RpcMethod {
    /// Its path.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Range => "/etcdserverpb.KV/Range",
            Self::RangeStream => "/etcdserverpb.KV/RangeStream",
            Self::Put => "/etcdserverpb.KV/Put",
            Self::DeleteRange => "/etcdserverpb.KV/DeleteRange",
            Self::Txn => "/etcdserverpb.KV/Txn",
            Self::Watch => "/etcdserverpb.Watch/Watch",
            Self::LeaseGrant => "/etcdserverpb.Lease/LeaseGrant",
            Self::LeaseKeepAlive => "/etcdserverpb.Lease/LeaseKeepAlive",
            Self::Lock => "/v3lockpb.Lock/Lock",
            Self::Unlock => "/v3lockpb.Lock/Unlock",
            Self::Status => "/etcdserverpb.Maintenance/Status",
            Self::HashKv => "/etcdserverpb.Maintenance/HashKV",
            Self::Other(path) => path,
        }
    }

    /// Whether a caller keeps one stream and sends one message after the other on it.
    #[must_use]
    pub fn is_held(self) -> bool {
        matches!(self, Self::LeaseKeepAlive | Self::Watch)
    }
}
