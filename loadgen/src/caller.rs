//! A client that waits for replies, and sends any bytes, valid or not.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock;
use crate::login;
use crate::wire::head::CallFailure;
use crate::wire::{ClientConnection, ReplySink, RpcMethod};
use anyhow::Context as _;
use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time-out of a call by default: longer than a live server takes for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// Calls of [`call_all`] on their way, and their bytes.
const AT_ONCE: usize = 500;
const BYTES_AT_ONCE: usize = 400_000;

/// Replies of a connection.
#[derive(Debug, Default)]
pub struct HeardReplies {
    /// Messages, with the token of their call; none of them if they are not kept.
    pub messages: Vec<(u32, Vec<u8>)>,
    /// Messages and bytes of them, kept or not.
    pub count: u64,
    pub bytes: u64,
    /// Calls that are over, and how.
    pub ended: BTreeMap<u32, Result<(), String>>,
    keeps: bool,
    /// Tokens of streams.
    tokens: BTreeMap<u32, u32>,
}

impl ReplySink for HeardReplies {
    fn message(&mut self, token: u32, body: &[u8]) {
        self.count += 1;
        self.bytes += body.len() as u64;
        if self.keeps {
            self.messages.push((token, body.to_vec()));
        }
    }

    fn end(&mut self, token: u32, outcome: Result<(), CallFailure>) {
        self.ended.entry(token).or_insert_with(|| outcome.map_err(|CallFailure(what)| what));
    }

    fn reset(&mut self, stream: u32, code: u32) {
        if let Some(token) = self.tokens.get(&stream) {
            self.ended.entry(*token).or_insert_with(|| Err(format!("RST_STREAM {code}")));
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Caller {
    endpoint: String,
    pub client: ClientConnection,
    pub heard: HeardReplies,
    buffer: Vec<u8>,
    next: u32,
}

/// A message on the wire, as gRPC frames it.
#[must_use]
pub fn framed(flag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&[flag][..], &length.to_be_bytes(), body].concat()
}

impl Caller {
    /// Connects.
    ///
    /// # Errors
    /// When no server listens there.
    pub fn connect(endpoint: &str) -> anyhow::Result<Self> {
        Self::new(endpoint, login::connect(endpoint, CONNECT)?)
    }

    /// The same in nobody's name, whatever user the endpoint has.
    ///
    /// # Errors
    /// As [`Caller::connect`].
    pub fn stranger(endpoint: &str) -> anyhow::Result<Self> {
        Self::new(endpoint, ClientConnection::connect(endpoint, CONNECT)?)
    }

    fn new(endpoint: &str, client: ClientConnection) -> anyhow::Result<Self> {
        let heard = HeardReplies { keeps: true, ..HeardReplies::default() };
        let endpoint = endpoint.to_owned();
        let mut caller = Self { endpoint, client, heard, buffer: vec![0; 256 * 1024], next: 0 };
        // The server's settings say how many streams it allows.
        caller.client.flush()?;
        caller.turn(Duration::from_millis(200))?;
        Ok(caller)
    }

    /// Counts messages, and keeps none.
    #[must_use]
    pub fn discarding(mut self) -> Self {
        self.heard.keeps = false;
        self
    }

    /// Begins a call: its stream, which is its token too; none while the server allows no more of
    /// them.
    pub fn open(&mut self, path: &'static str) -> Option<(u32, u32)> {
        let token = self.next;
        let stream = self.client.open(RpcMethod::Other(path), token)?;
        self.next += 1;
        self.heard.tokens.insert(stream, token);
        Some((stream, token))
    }

    /// A call with one message; its token.
    pub fn begin(&mut self, path: &'static str, body: &[u8]) -> Option<u32> {
        let token = self.next;
        let stream = self.client.call(RpcMethod::Other(path), token, body)?;
        self.next += 1;
        self.heard.tokens.insert(stream, token);
        Some(token)
    }

    /// Sends and reads what can be, and waits at most so long where nothing can.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn turn(&mut self, wait: Duration) -> anyhow::Result<()> {
        let is_sent = self.client.flush().context("sending")?;
        let before = self.heard.bytes;
        let mut has_more = true;
        while has_more && self.heard.bytes < before + (1 << 22) {
            has_more = self.client.read(&mut self.buffer, &mut self.heard).context("receiving")?;
        }
        if has_more || self.heard.bytes > before {
            self.client.flush().context("sending")?;
            return Ok(());
        }
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !is_sent);
        let timeout = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(0),
            tv_nsec: wait.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&self.client, flags)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Goes on until something is true; whether it became so in time.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn until(
        &mut self,
        patience: Duration,
        mut is_done: impl FnMut(&mut HeardReplies) -> bool,
    ) -> anyhow::Result<bool> {
        let until = clock::nanos() + clock::in_nanos(patience);
        while !is_done(&mut self.heard) {
            if clock::nanos() > until {
                return Ok(false);
            }
            self.turn(Duration::from_millis(20))?;
        }
        Ok(true)
    }

    /// Sends all that is to be sent, reading nothing; false if the other side stopped taking it.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn send_all(&mut self, patience: Duration) -> anyhow::Result<bool> {
        let until = clock::nanos() + clock::in_nanos(patience);
        while !self.client.flush()? {
            if clock::nanos() > until {
                return Ok(false);
            }
            clock::rest(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Reads for so long, whatever comes.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn listen(&mut self, time: Duration) -> anyhow::Result<()> {
        self.until(time, |_| false).map(drop)
    }

    /// Makes a call and waits for its answer.
    ///
    /// # Errors
    /// With the status of the call, or when there is no reply in time.
    pub fn ask<R: Message + Default>(
        &mut self,
        path: &'static str,
        request: &impl Message,
    ) -> anyhow::Result<R> {
        self.ask_patiently(path, request, PATIENCE)
    }

    /// The same, waiting longer.
    ///
    /// # Errors
    /// As [`Caller::ask`].
    pub fn ask_patiently<R: Message + Default>(
        &mut self,
        path: &'static str,
        request: &impl Message,
        patience: Duration,
    ) -> anyhow::Result<R> {
        Ok(R::decode(&self.ask_bytes(path, &request.encode_to_vec(), patience)?[..])?)
    }

    /// The same, of messages that are encoded already and stay so.
    ///
    /// # Errors
    /// As [`Caller::ask`].
    pub fn ask_encoded(&mut self, path: &'static str, body: &[u8]) -> anyhow::Result<Vec<u8>> {
        self.ask_bytes(path, body, PATIENCE)
    }

    fn ask_bytes(&mut self, path: &'static str, body: &[u8], patience: Duration) -> anyhow::Result<Vec<u8>> {
        let mut said = self.wait_for(path, body, patience)?;
        if said.as_ref().is_err_and(|what| login::is_refused(&self.endpoint, what)) {
            login::renew(&mut self.client, &self.endpoint)?;
            said = self.wait_for(path, body, patience)?;
        }
        said.map_err(|what| anyhow::anyhow!("{path}: {what}"))
    }

    fn wait_for(
        &mut self,
        path: &'static str,
        body: &[u8],
        patience: Duration,
    ) -> anyhow::Result<Result<Vec<u8>, String>> {
        let token = self.begin(path, body).context("no more streams")?;
        let is_over = self.until(patience, |heard| heard.ended.contains_key(&token))?;
        anyhow::ensure!(is_over, "no answer to {path}");
        if let Err(what) = self.heard.ended.remove(&token).context("a call without an end")? {
            return Ok(Err(what));
        }
        let at = self.heard.messages.iter().position(|(of, _)| *of == token).context("an empty answer")?;
        Ok(Ok(self.heard.messages.swap_remove(at).1))
    }
}

/// Makes these calls, many at a time; all must end well.
///
/// # Errors
/// With the status of the first call that failed, or when one is not answered.
pub fn call_all(
    caller: &mut Caller,
    path: &'static str,
    bodies: impl IntoIterator<Item = Vec<u8>>,
) -> anyhow::Result<()> {
    let (mut asked, mut at_once) = (0, AT_ONCE);
    for body in bodies {
        let ended = |heard: &mut crate::caller::HeardReplies| heard.ended.len() + at_once > asked;
        anyhow::ensure!(caller.until(PATIENCE, ended)?, "{path} is not answered");
        at_once = (BYTES_AT_ONCE / body.len().max(1)).clamp(1, AT_ONCE);
        caller.begin(path, &body).context("no more streams")?;
        asked += 1;
    }
    anyhow::ensure!(caller.until(PATIENCE, |heard| heard.ended.len() >= asked)?, "{path} is not answered");
    caller.heard.messages.clear();
    match std::mem::take(&mut caller.heard.ended).into_values().find_map(Result::err) {
        Some(what) => anyhow::bail!("{path}: {what}"),
        None => Ok(()),
    }
}
