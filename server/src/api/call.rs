//! A call as services see it: a method, a message, and what came with it. Nothing of HTTP.

use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use revd_member::error::{Error, Status};
use smallvec::SmallVec;

use crate::api::auth::found::FoundCaller;
use crate::secret::Secret;

/// One encoded message, in as many pieces as it was made of.
pub type Message = SmallVec<[Bytes; 2]>;

/// A call with a stream of replies, under way.
pub type StreamingCall = Pin<Box<dyn Future<Output = Result<(), Status>>>>;

/// Where a call comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Source {
    /// The client's address.
    pub address: Address,
    /// The number of its connection.
    pub connection: u64,
}

/// A client's address, as far as clients are told apart by it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(Option<IpAddr>);

impl Address {
    /// A host of IPv4, or a network of IPv6: who has one address there has all of 64 bits.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        const NETWORK: u128 = !0 << 64;
        Self(Some(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            v4 @ IpAddr::V4(_) => v4,
        }))
    }

    /// The address as a key of queues; 0 for none.
    #[must_use]
    pub fn bits(self) -> u128 {
        match self.0 {
            Some(IpAddr::V4(address)) => address.to_ipv6_mapped().to_bits(),
            Some(IpAddr::V6(address)) => address.to_bits(),
            None => 0,
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(IpAddr::V4(address)) => address.fmt(formatter),
            Some(IpAddr::V6(address)) => write!(formatter, "{address}/64"),
            None => formatter.write_str("unix"),
        }
    }
}

/// The metadata that a client sent along with its request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Where it is.
    pub source: Source,
    /// `hasleader: true`: answer only while there is a leader.
    pub requires_leader: bool,
    /// The caller, as it names itself.
    pub caller: Credentials,
}

/// The names that a caller gives itself; none of one that says nothing. Calls of a connection share
/// them while they are the same.
pub type Credentials = Option<Rc<CallerIdentity>>;

/// A caller, as it names itself. The name of a certificate is proven by the handshake; a
/// token is not looked at yet.
pub struct CallerIdentity {
    /// The `token` header of the request, or `authorization` without `Bearer`.
    pub token: Option<Secret>,
    /// Common name of the client certificate; none for requests that a JSON gateway passes on.
    pub common_name: Option<Rc<str>>,
    /// The caller that it was found to be.
    pub(super) found: FoundCaller,
}

impl CallerIdentity {
    /// One about which nothing is known.
    #[must_use]
    pub fn new(token: Option<Secret>, common_name: Option<Rc<str>>) -> Self {
        Self { token, common_name, found: FoundCaller::default() }
    }
}

impl PartialEq for CallerIdentity {
    fn eq(&self, other: &Self) -> bool {
        (&self.token, &self.common_name) == (&other.token, &other.common_name)
    }
}

impl Eq for CallerIdentity {}

impl std::fmt::Debug for CallerIdentity {
    /// Without the token: it opens the door to anybody who reads a log.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let has_token = self.token.is_some();
        let mut fields = formatter.debug_struct("CallerIdentity");
        fields.field("has_token", &has_token).field("common_name", &self.common_name).finish()
    }
}

/// The request messages of a call with a stream of them.
pub trait Requests {
    /// The next message; none at the end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>>;
}

/// The message of a call with one request, once the client has said that there is no more.
/// Answering before that would leave the client's last words to a call that is gone: HTTP/2 counts
/// that as an error, and ends the connection of a client that makes many.
///
/// # Errors
/// The error that the client gets.
pub async fn only(requests: &mut dyn Requests) -> Result<Bytes, Status> {
    let first = std::future::poll_fn(|context| requests.poll_next(context)).await;
    let message = first.unwrap_or_else(|| Err(Status::internal("the call has no request message")))?;
    match std::future::poll_fn(|context| requests.poll_next(context)).await {
        None => Ok(message),
        Some(Err(status)) => Err(status),
        Some(Ok(_)) => Err(Status::internal("the call has more than one request message")),
    }
}

pub(super) fn decoded<T>(result: Result<T, prost::DecodeError>) -> Result<T, Error> {
    result.map_err(Error::from)
}

/// The message of a method with a stream, of requests or of replies.
pub(super) fn decoded_in_stream<T>(result: Result<T, prost::DecodeError>) -> Result<T, Error> {
    decoded(result).map_err(Error::in_stream)
}
