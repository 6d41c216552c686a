//! Every call there is, with every message there may be, multiplied, cut, reset and
//! cancelled, on real sockets from a seed.
//!
//! After each case others are served, and where every call of it ended with an error the
//! store is what it was; memory is looked at now and then, and is back.
//! `REVD_GRAMMAR_CASES`, `REVD_GRAMMAR_SEED` and `REVD_GRAMMAR_ONE` (only this case of the
//! seed) make it longer, or one case of it again.

mod messages;

use std::time::Duration;

use revd_http2::raw::frame;
use revd_loadgen::caller::{Caller, framed};
use revd_proto::etcdserverpb::{AlarmRequest, PutRequest, RangeRequest, StatusRequest};

use crate::harness::{Client, Random, Server, from_env, with_restartable_server};
use messages::{Grammar, Method};

/// Cases in CI.
const CASES: u64 = 150;
/// How long a case waits for answers, and for what has none.
const ANSWERS: Duration = Duration::from_millis(300);
/// Memory that may be left behind by cases, besides what the store holds.
const LEFT_MAX: u64 = 200_000_000;
/// Cases between two looks at memory.
const MEMORY_EVERY: u64 = 50;

/// Manners of making a call.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// Asked and answered.
    Whole,
    /// Several messages, whether the call takes them or not.
    Several,
    /// A part of a message, and nothing more.
    Half,
    /// A length that is not the message's.
    Length,
    /// A flag that says it is compressed, or nothing that is known.
    Flag,
    /// Begun, and given up.
    Reset,
    /// Begun, and the connection is gone.
    Gone,
}

const MANNERS: [Manner; 10] = [
    Manner::Whole,
    Manner::Whole,
    Manner::Whole,
    Manner::Whole,
    Manner::Several,
    Manner::Half,
    Manner::Length,
    Manner::Flag,
    Manner::Reset,
    Manner::Gone,
];

/// One case: a call, so many times on a connection, in one manner.
#[derive(Debug)]
struct Case {
    method: Method,
    manner: Manner,
    times: u64,
    message: Vec<u8>,
}

impl Case {
    fn draw(grammar: &Grammar, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let at = usize::try_from(random.below(grammar.methods.len() as u64)).unwrap();
        let mut method = grammar.methods[at].clone();
        // Half of all cases are of the store.
        if random.one_in(2) {
            let of_store =
                |method: &&Method| ["KV/", "Watch/", "Lease/"].iter().any(|name| method.path.contains(name));
            let of_store: Vec<&Method> = grammar.methods.iter().filter(of_store).collect();
            method = of_store[usize::try_from(random.below(of_store.len() as u64)).unwrap()].clone();
        }
        let message = grammar.message(&mut random, &method);
        let times = match random.below(10) {
            0 => 1_000.min(4_000_000 / (message.len() as u64 + 1)).max(1),
            1 => 20,
            _ => 1 + random.below(3),
        };
        Self { method, manner: random.pick(&MANNERS), times, message }
    }

    /// Messages it sends on one call.
    fn bytes(&self) -> Vec<u8> {
        let whole = framed(0, &self.message);
        match self.manner {
            Manner::Whole | Manner::Reset | Manner::Gone => whole,
            Manner::Several => whole.repeat(if whole.len() > 10_000 { 2 } else { 50 }),
            Manner::Half => whole[..whole.len() - whole.len() / 2 - 1].to_vec(),
            Manner::Length => [&[0, 0xff, 0xff, 0xff, 0xff][..], &self.message].concat(),
            Manner::Flag => framed(if self.times.is_multiple_of(2) { 1 } else { 7 }, &self.message),
        }
    }

    /// Carries it out; whether every call of it was refused, or never whole.
    fn strike(&self, endpoint: &str) -> bool {
        let mut caller = Caller::connect(endpoint).unwrap().discarding();
        let bytes = self.bytes();
        let mut streams = Vec::new();
        for _ in 0..self.times {
            let Some((stream, _)) = caller.open(self.method.path) else { break };
            caller.client.send(stream, bytes.clone());
            if !matches!(self.manner, Manner::Half | Manner::Gone) {
                caller.client.finish(stream);
            }
            streams.push(stream);
        }
        let lives = caller.client.flush().is_ok();
        match self.manner {
            Manner::Gone => return false,
            Manner::Reset if lives => {
                let resets: Vec<u8> =
                    streams.iter().flat_map(|stream| frame(3, 0, *stream, &[0, 0, 0, 8])).collect();
                caller.client.inject(&resets);
                let _ = caller.client.flush();
                return false;
            }
            _ => {}
        }
        let wait = if self.method.is_stream { ANSWERS } else { ANSWERS * 20 };
        let wait = if matches!(self.manner, Manner::Half) { ANSWERS / 10 } else { wait };
        let _ = caller.until(wait, |heard| heard.ended.len() >= streams.len());
        let refused = caller.heard.ended.values().filter(|end| end.is_err()).count();
        caller.heard.count == 0 && (refused == streams.len() || matches!(self.manner, Manner::Half))
    }

    /// These make and remove keys of their own, also where they fail in the
    /// end; and maintenance is no write.
    fn may_leave_keys(&self) -> bool {
        ["v3lock", "v3election"].iter().any(|package| self.method.path.contains(package))
    }
}

async fn others_are_served(client: &Client) {
    let patience = Duration::from_secs(60);
    let get = RangeRequest { key: "others".into(), ..RangeRequest::default() };
    let mut kv = client.kv.clone();
    tokio::time::timeout(patience, kv.range(get)).await.expect("a get hangs").unwrap();
    let put = PutRequest { key: "others".into(), ..PutRequest::default() };
    let put = tokio::time::timeout(patience, kv.put(put)).await.expect("a put hangs");
    if let Err(status) = put {
        // An alarm that a case has raised; it may not stay, or nothing would be tested any more.
        assert!(
            status.message().contains("database space exceeded") || status.message().contains("corrupt"),
            "{status}"
        );
        let raised =
            client.maintenance.clone().alarm(AlarmRequest::default()).await.unwrap().into_inner().alarms;
        for alarm in raised {
            let request = AlarmRequest { action: 2, member_id: alarm.member_id, alarm: alarm.alarm };
            client.maintenance.clone().alarm(request).await.unwrap();
        }
    }
}

/// Hash and revision, when they have come to rest: what ended with its
/// connection may still remove its keys.
async fn fingerprint(client: &Client) -> (u32, i64) {
    let mut last = (0, 0);
    loop {
        let hash = client.hash_of_keys(None).await;
        let now = (hash.hash, hash.hash_revision);
        if now == last {
            return now;
        }
        last = now;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Memory is what it was, but for what the store holds, which is in memory up to three times: as a
/// record that waits for its checkpoint, in the key index, in buffers.
async fn memory_is_back(server: &Server, client: &Client, before: u64, what: &str) {
    let mut now = 0;
    for _ in 0..600 {
        let held = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner().db_size;
        now = server.resident();
        if now < before + LEFT_MAX + 3 * held.cast_unsigned() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{now} bytes of memory, {before} before: {what}");
}

#[test]
fn every_call_in_every_manner() {
    with_restartable_server(&[], async |server, client| {
        let (cases, seed) = (from_env("REVD_GRAMMAR_CASES", CASES), from_env("REVD_GRAMMAR_SEED", 1));
        let one = from_env("REVD_GRAMMAR_ONE", u64::MAX);
        let grammar = Grammar::new();
        others_are_served(&client).await;
        let memory = server.resident();
        let (mut refused, mut most) = (0, 0);
        for number in if one == u64::MAX { 0..cases } else { one..one + 1 } {
            let case = Case::draw(&grammar, seed << 32 | number);
            let what = format!(
                "REVD_GRAMMAR_SEED={seed} REVD_GRAMMAR_ONE={number}: {} x{} {:?}, a message of {} bytes",
                case.method.path,
                case.times,
                case.manner,
                case.message.len()
            );
            if std::env::var("REVD_GRAMMAR_SAY").is_ok() {
                println!("{what}");
            }
            let mut is_refused = false;
            // A lease of a lock or of an election ends on its own, a minute after its
            // call: not three times in a row.
            for again in 0..3 {
                let before = fingerprint(&client).await;
                is_refused = case.strike(&server.endpoint()) && !case.may_leave_keys();
                assert!(server.is_running(), "dead after {what}");
                let after = fingerprint(&client).await;
                if !is_refused || before == after {
                    break;
                }
                assert!(again < 2, "{before:?} is {after:?} now, though all was refused: {what}");
            }
            refused += u64::from(is_refused);
            others_are_served(&client).await;
            most = most.max(server.resident());
            if number % MEMORY_EVERY == MEMORY_EVERY - 1 {
                memory_is_back(server, &client, memory, &what).await;
            }
        }
        println!("{cases} cases, {refused} refused, {} MB at most", most / 1_000_000);
        assert!(one != u64::MAX || refused * 10 > cases, "only {refused} of {cases} cases were refused");
    });
}
