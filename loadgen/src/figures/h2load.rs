//! Small calls sent by h2load (Debian package nghttp2-client): a client of others, and one that
//! costs the machine little.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use prost::Message as _;
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{Compare, RangeRequest, RangeResponse, RequestOp, TxnRequest};

use crate::caller::{Caller, framed};
use crate::figures::store::{key, put};
use crate::figures::table::MeasuredCalls;
use crate::servers::Servers;
use crate::started::{self, OwnFolder};
use crate::wire::RpcMethod;
use crate::wire::fields::revision;

/// Which request is sent.
#[derive(Clone, Copy)]
pub(super) enum CallMessage {
    Put,
    Get,
    SerializableGet,
    /// Compare and swap, as Kubernetes updates an object; here the comparison always holds.
    Swap,
    /// A hundred puts in a transaction.
    Bulk,
}

/// The requests as files, as h2load wants them.
pub(super) struct CallMessages(OwnFolder);

/// How they are sent.
#[derive(Clone, Copy)]
pub(super) struct H2Load {
    pub(super) connections: u32,
    pub(super) streams: u32,
    pub(super) calls: u64,
}

impl H2Load {
    /// The parts of so many members: each gets as many connections as the others, or one more, and
    /// calls for each connection. Members without a connection have no part.
    fn shares(self, members: usize) -> Vec<Self> {
        let members = u32::try_from(members).unwrap_or(u32::MAX).min(self.connections);
        let (mut connections, mut calls) = (self.connections, self.calls);
        let share = |left| {
            let share = connections.div_ceil(left);
            let part = calls * u64::from(share) / u64::from(connections);
            connections -= share;
            calls -= part;
            Self { connections: share, calls: part, ..self }
        };
        (1..=members).rev().map(share).collect()
    }
}

/// Whether h2load is there.
///
/// # Errors
/// With advice when it is not.
pub(super) fn check() -> anyhow::Result<()> {
    Command::new("h2load").arg("--version").output().context(
        "h2load sends the small calls: install it (Debian and Ubuntu: apt-get install nghttp2-client)",
    )?;
    Ok(())
}

impl CallMessage {
    fn method(self) -> RpcMethod {
        match self {
            Self::Put => RpcMethod::Put,
            Self::Get | Self::SerializableGet => RpcMethod::Range,
            Self::Swap | Self::Bulk => RpcMethod::Txn,
        }
    }

    /// Each call makes a revision.
    fn is_write(self) -> bool {
        matches!(self, Self::Put | Self::Swap | Self::Bulk)
    }

    fn bytes(self) -> Vec<u8> {
        let get = RangeRequest { key: key(0), ..RangeRequest::default() };
        match self {
            Self::Put => put(0, 1).encode_to_vec(),
            Self::Get => get.encode_to_vec(),
            Self::SerializableGet => RangeRequest { serializable: true, ..get }.encode_to_vec(),
            Self::Swap => swap().encode_to_vec(),
            Self::Bulk => bulk().encode_to_vec(),
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::SerializableGet => "serializable-get",
            Self::Swap => "swap",
            Self::Bulk => "bulk",
        }
    }
}

impl CallMessages {
    pub(super) fn write() -> anyhow::Result<Self> {
        let dir = started::folder_in(&std::env::temp_dir(), "loadgen-")?;
        for message in [
            CallMessage::Put,
            CallMessage::Get,
            CallMessage::SerializableGet,
            CallMessage::Swap,
            CallMessage::Bulk,
        ] {
            std::fs::write(dir.path().join(message.file()), framed(0, &message.bytes()))?;
        }
        Ok(Self(dir))
    }
}

fn put_op(number: u64) -> RequestOp {
    RequestOp { request: Some(Request::RequestPut(put(number, number))) }
}

fn swap() -> TxnRequest {
    let compare = Compare {
        key: key(0),
        target: CompareTarget::Mod as i32,
        result: CompareResult::Greater as i32,
        target_union: Some(TargetUnion::ModRevision(-1)),
        ..Compare::default()
    };
    let read = RangeRequest { key: key(0), ..RangeRequest::default() };
    let failure = vec![RequestOp { request: Some(Request::RequestRange(read)) }];
    TxnRequest { compare: vec![compare], success: vec![put_op(0)], failure }
}

fn bulk() -> TxnRequest {
    TxnRequest { success: (0..100).map(put_op).collect(), ..TxnRequest::default() }
}

/// The revision after one call, which must succeed; a get must find its key.
fn try_one(server: &Servers, message: CallMessage) -> anyhow::Result<i64> {
    let mut caller = Caller::connect(server.endpoint())?;
    let reply = caller.ask_encoded(message.method().path(), &message.bytes())?;
    if !message.is_write() {
        let found = RangeResponse::decode(&reply[..])?.kvs.len();
        anyhow::ensure!(found == 1, "{} found {found} keys, not one", server.name);
    }
    Ok(revision(&reply))
}

/// All calls of a load must have made a revision, and so did the one after it.
fn check_growth(before: i64, after: i64, calls: u64) -> anyhow::Result<()> {
    let grown = after.saturating_sub(before).saturating_sub(1);
    anyhow::ensure!(
        u64::try_from(grown).is_ok_and(|grown| grown >= calls),
        "{calls} writes made {grown} revisions: some have failed, though h2load counts them"
    );
    Ok(())
}

/// Sends calls to all members and measures what they cost.
pub(super) fn run(
    server: &Servers,
    messages: &CallMessages,
    message: CallMessage,
    load: H2Load,
) -> anyhow::Result<MeasuredCalls> {
    run_at(server, &server.endpoints_from_leader()?, messages, message, load)
}

/// Sends calls to these members and measures what they cost. To h2load a call that fails with a
/// status of gRPC looks like any other, so one is made by loadgen before and after.
pub(super) fn run_at(
    server: &Servers,
    endpoints: &[String],
    messages: &CallMessages,
    message: CallMessage,
    load: H2Load,
) -> anyhow::Result<MeasuredCalls> {
    let revision_before = try_one(server, message).context("a call before h2load")?;
    let before = server.cpu();
    let mut running = Vec::new();
    for (endpoint, share) in endpoints.iter().zip(load.shares(endpoints.len())) {
        let mut command = started::command("h2load");
        command
            .args(["-n", &share.calls.to_string(), "-c", &share.connections.to_string()])
            .args(["-m", &share.streams.to_string(), "-t", "1"])
            .args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"])
            .arg(messages.0.path().join(message.file()))
            .arg(format!("{endpoint}{}", message.method().path()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        running.push((started::spawn(&mut command)?, share));
    }
    let mut rate = 0.0;
    for (mut child, share) in running {
        let mut said = Vec::new();
        child.stdout.take().context("no output of h2load")?.read_to_end(&mut said)?;
        child.wait()?;
        rate += rate_of(&server.name, &String::from_utf8_lossy(&said), share.calls)?;
    }
    let cpu = server.cpu() - before;
    let revision_after = try_one(server, message).context("a call after h2load")?;
    if message.is_write() {
        check_growth(revision_before, revision_after, load.calls).with_context(|| server.name.clone())?;
    }
    let callers = f64::from(load.connections * load.streams);
    Ok(MeasuredCalls {
        cpu_per_call: cpu.div_f64(load.calls as f64),
        // With a fixed number of callers this is the mean latency (Little's law).
        latency: Duration::from_secs_f64(callers / rate),
    })
}

/// Calls in a second, of what an h2load has printed; all calls must have ended well.
fn rate_of(name: &str, text: &str, calls: u64) -> anyhow::Result<f64> {
    let line = |start: &str| text.lines().find(|line| line.starts_with(start));
    // finished in 1.23s, 45678.90 req/s, 12.34MB/s
    let rate =
        line("finished in").and_then(|line| line.split(", ").nth(1)?.split(' ').next()?.parse::<f64>().ok());
    // requests: 20000 total, 20000 started, 20000 done, 20000 succeeded, 0 failed, 0 errored, 0
    // timeout
    let succeeded =
        line("requests:").and_then(|line| line.split(", ").nth(3)?.split(' ').next()?.parse::<u64>().ok());
    let (Some(rate), Some(succeeded)) = (rate, succeeded) else { bail!("h2load printed: {text}") };
    if succeeded != calls {
        bail!("{name} answered {succeeded} of {calls} calls");
    }
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_get_their_shares() {
        let shares = |connections, calls, members| -> Vec<(u32, u64)> {
            let load = H2Load { connections, streams: 1, calls };
            load.shares(members).iter().map(|share| (share.connections, share.calls)).collect()
        };
        assert_eq!(shares(10, 1000, 3), [(4, 400), (3, 300), (3, 300)]);
        assert_eq!(shares(1, 1000, 3), [(1, 1000)]);
        assert_eq!(shares(50, 1001, 1), [(50, 1001)]);
    }

    #[test]
    fn writes_that_made_no_revision_are_an_error() {
        check_growth(5, 106, 100).unwrap();
        let error = check_growth(5, 105, 100).unwrap_err().to_string();
        assert!(error.starts_with("100 writes made 99 revisions"), "{error}");
        assert!(check_growth(5, 1, 100).is_err());
    }
}
