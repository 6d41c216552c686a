//! Single calls that wait for their reply: its version, its revision, a checksum.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock;
use crate::clock::SECOND;
use crate::wire::fields::{bytes, number, revision};
use crate::wire::head::CallFailure;
use crate::wire::{ClientConnection, ReplySink, RpcMethod};

/// Time-out of a call.
const PATIENCE: u64 = 10 * SECOND;

/// Version and revision of a server, and its place in its cluster.
#[derive(Debug, Clone)]
pub struct ServerStatus {
    /// The version of etcd that it claims.
    pub version: String,
    /// The newest revision.
    pub revision: i64,
    /// The member itself leads.
    pub is_leader: bool,
}

/// An answer that is waited for.
#[derive(Debug, Default)]
struct ProbeAnswer {
    body: Vec<u8>,
    outcome: Option<Result<(), CallFailure>>,
}

impl ReplySink for ProbeAnswer {
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

/// Makes one call.
///
/// # Errors
/// When the server cannot be reached, does not answer, or answers with an error.
pub fn ask(endpoint: &str, method: RpcMethod, body: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut client = ClientConnection::connect(endpoint, Duration::from_secs(5))?;
    anyhow::ensure!(client.call(method, 0, body).is_some(), "{endpoint} allows no calls");
    let (mut answer, mut buffer) = (ProbeAnswer::default(), vec![0; 64 * 1024]);
    let until = clock::nanos() + PATIENCE;
    loop {
        let is_sent = client.flush()?;
        while client.read(&mut buffer, &mut answer)? {}
        if let Some(outcome) = answer.outcome {
            return outcome
                .map(|()| answer.body)
                .map_err(|CallFailure(what)| anyhow::anyhow!("{endpoint}: {what}"));
        }
        let now = clock::nanos();
        anyhow::ensure!(
            now < until,
            "{endpoint} did not answer {} in {} s",
            method.path(),
            PATIENCE / SECOND
        );
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !is_sent);
        let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match poll(&mut [PollFd::new(&client, flags)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Version and revision of a server.
///
/// # Errors
/// As [`ask`].
pub fn status(endpoint: &str) -> anyhow::Result<ServerStatus> {
    let body = ask(endpoint, RpcMethod::Status, &[])?;
    let (member, leader) = (number(bytes(&body, 1), 2), number(&body, 4));
    Ok(ServerStatus {
        is_leader: leader != 0 && leader == member,
        version: String::from_utf8_lossy(bytes(&body, 2)).into_owned(),
        revision: revision(&body),
    })
}

/// The checksum of all keys at the newest revision.
///
/// # Errors
/// As [`ask`].
pub fn hash_kv(endpoint: &str) -> anyhow::Result<i64> {
    Ok(number(&ask(endpoint, RpcMethod::HashKv, &[])?, 2))
}
