//! What can go wrong with a request, and how a client is told.

/// An error a client sees.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request was not answered in time.
    #[error("etcdserver: request timed out")]
    Timeout,
    /// More requests wait than the member accepts.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// The member is shutting down.
    #[error("etcdserver: server stopped")]
    Stopped,
}
