//! Connections in the name of a user: a login where the server has none of its tokens yet, another
//! one when a token is refused. As etcd's Go client does it; connections to one server share a
//! token.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock;
use crate::clock::SECOND;
use crate::wire::client::host;
use crate::wire::fields::{bytes, put_bytes};
use crate::wire::head::CallFailure;
use crate::wire::users::{self, Credentials};
use crate::wire::{ClientConnection, ReplySink, RpcMethod};

/// Time-out of a call.
const PATIENCE: u64 = 10 * SECOND;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

const AUTHENTICATE: RpcMethod = RpcMethod::Other("/etcdserverpb.Auth/Authenticate");

/// An answer that is waited for.
#[derive(Debug, Default)]
struct Answer {
    body: Vec<u8>,
    outcome: Option<Result<(), CallFailure>>,
}

impl ReplySink for Answer {
    fn message(&mut self, _token: u32, body: &[u8]) {
        self.body = body.to_vec();
    }

    fn end(&mut self, _token: u32, outcome: Result<(), CallFailure>) {
        self.outcome = Some(outcome);
    }

    fn reset(&mut self, _stream: u32, code: u32) {
        self.outcome.get_or_insert(Err(CallFailure(format!("the server reset the stream (code {code})"))));
    }
}

/// Makes one call on a connection of its own, and waits for its reply.
fn wait_for(
    client: &mut ClientConnection,
    endpoint: &str,
    method: RpcMethod,
    body: &[u8],
) -> anyhow::Result<Result<Vec<u8>, String>> {
    anyhow::ensure!(client.call(method, 0, body).is_some(), "{endpoint} allows no calls");
    let (mut answer, mut buffer) = (Answer::default(), vec![0; 64 * 1024]);
    let until = clock::nanos() + PATIENCE;
    loop {
        let is_sent = client.flush()?;
        while client.read(&mut buffer, &mut answer)? {}
        if let Some(outcome) = answer.outcome {
            return Ok(outcome.map(|()| answer.body).map_err(|CallFailure(what)| what));
        }
        let now = clock::nanos();
        let seconds = PATIENCE / SECOND;
        anyhow::ensure!(now < until, "{endpoint} did not answer {} in {seconds} s", method.path());
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !is_sent);
        let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match poll(&mut [PollFd::new(&*client, flags)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes one call in the name of the endpoint's user; once more with a new token, if the token was
/// refused.
///
/// # Errors
/// When the server cannot be reached, does not answer, or answers with an error.
pub fn ask(endpoint: &str, method: RpcMethod, body: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut client = connect(endpoint, CONNECT)?;
    let mut said = wait_for(&mut client, endpoint, method, body)?;
    if said.as_ref().is_err_and(|what| is_refused(endpoint, what)) {
        renew(&mut client, endpoint)?;
        said = wait_for(&mut client, endpoint, method, body)?;
    }
    said.map_err(|what| anyhow::anyhow!("{endpoint}: {what}"))
}

/// Whether another token may help a call that failed.
#[must_use]
pub fn is_refused(endpoint: &str, what: &str) -> bool {
    let has_user = |host| users::credentials(host).is_ok_and(|user| user.is_some());
    users::is_token_refused(what, host(endpoint).is_ok_and(has_user))
}

/// Connects, in the name of the endpoint's user if it has one.
///
/// # Errors
/// With the endpoint, when it cannot be reached or the login is refused; when the environment names
/// a user without a password.
pub fn connect(endpoint: &str, patience: Duration) -> anyhow::Result<ClientConnection> {
    let token = token(endpoint)?;
    let mut client = ClientConnection::connect(endpoint, patience)?;
    client.set_token(token);
    Ok(client)
}

/// The token of calls to an endpoint; none if it has no user, or asks nobody for rights.
///
/// # Errors
/// When a login is refused; when the environment names a user without a password.
pub fn token(endpoint: &str) -> anyhow::Result<Option<Arc<str>>> {
    let host = host(endpoint)?;
    let Some(credentials) = users::credentials(host)? else { return Ok(None) };
    match users::token(host) {
        Some(token) => Ok(Some(token)),
        None if users::is_open(host) => Ok(None),
        None => log_in(endpoint, host, &credentials, None),
    }
}

/// Gives a connection another token than the one that was refused, or one where it had none.
///
/// # Errors
/// When a login is refused.
pub fn renew(client: &mut ClientConnection, endpoint: &str) -> anyhow::Result<()> {
    let host = host(endpoint)?;
    let Some(credentials) = users::credentials(host)? else { return Ok(()) };
    let refused = Refused { token: client.token(), logins: users::logins(host) };
    let token = log_in(endpoint, host, &credentials, Some(refused))?;
    client.set_token(token);
    Ok(())
}

/// A call was refused: the server asks for rights.
#[derive(Clone, Copy)]
struct Refused<'t> {
    /// The token of the call, if it had one.
    token: Option<&'t Arc<str>>,
    /// How often the server had been asked for one by then.
    logins: u64,
}

/// One login at a time: who waited takes the token that another thread got meanwhile, or none where
/// that one was told that none is needed.
fn log_in(
    endpoint: &str,
    host: &str,
    credentials: &Credentials,
    refused: Option<Refused<'_>>,
) -> anyhow::Result<Option<Arc<str>>> {
    static LOGGING_IN: Mutex<()> = Mutex::new(());
    let _one = LOGGING_IN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_refused = |token: &Arc<str>| refused.is_some_and(|refused| refused.token == Some(token));
    if let Some(token) = users::token(host).filter(|token| !is_refused(token)) {
        return Ok(Some(token));
    }
    if refused.is_some_and(|refused| refused.logins == users::logins(host)) {
        users::set_open(host, false); // that was before the call was refused
    }
    if users::is_open(host) {
        return Ok(None);
    }
    users::count_login(host);
    let mut body = Vec::new();
    put_bytes(&mut body, 1, credentials.name.as_bytes());
    put_bytes(&mut body, 2, credentials.password.as_bytes());
    let mut client = ClientConnection::connect(endpoint, CONNECT)?;
    match wait_for(&mut client, endpoint, AUTHENTICATE, &body)? {
        Ok(reply) => {
            let token: Arc<str> = Arc::from(str::from_utf8(bytes(&reply, 2))?);
            users::keep(host, &token);
            Ok(Some(token))
        }
        // Without auth everybody may do everything, as for etcd's clients.
        Err(what) if what.ends_with("authentication is not enabled") => {
            users::set_open(host, true);
            Ok(None)
        }
        Err(what) => Err(anyhow::anyhow!("{endpoint}: user {}: {what}", credentials.name)),
    }
}
