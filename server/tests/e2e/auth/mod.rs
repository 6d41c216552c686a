//! Users, roles and tokens: the same requests of the same users to revd and to etcd 3.7.1.
//!
//! Each answer must be the same: the whole reply but for ids and the raft term, every error by
//! code and text. `REVD_AUTH_REQUESTS` and `REVD_AUTH_SEEDS` make the test longer.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::{
    AuthenticateResponse, LeaseLeasesResponse, LeaseTimeToLiveResponse, RangeRequest, ResponseHeader,
};
use tonic::{Code, Status};

use crate::harness::{Client, Random, call, from_env, with_clusters_beside, with_etcd_beside};

mod audit;
mod bugs;
mod catalogue;
mod clusters;
mod fairness;
mod generator;
mod go_client;
mod jwt;
#[path = "../../../src/api/auth/jwt/key_pairs.rs"]
mod key_pairs;
mod lagging;
mod matrix;
mod odd_fields;
mod one_key;
mod onlooker;
mod open_calls;
mod passwords;
mod refused;
mod requests;
mod secrets;
mod waiting;
mod watchers;

use generator::{Actor, Call, Compared, Generator, HASH_KV, LEASES, RANGE, STATUS, TXN, Tokens};
use watchers::{Watch, Watchers};

pub(crate) const FLAGS: [&str; 2] = ["--unsafe-no-fsync", "--bcrypt-cost=4"];

/// The answer to a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Reply { revision: i64, body: Bytes },
    Refused(Code, String),
}

impl Answer {
    fn forget_revision(&mut self) {
        if let Self::Reply { revision, .. } = self {
            *revision = 0;
        }
    }

    /// Words of a member that lags behind the others' tokens, users or roles; to a caller with a
    /// token also those of one that does not know yet that tokens are looked at.
    fn lags_behind(&self, has_token: bool) -> bool {
        let words = ["etcdserver: invalid auth token", "etcdserver: revision of auth store is old"];
        let to_somebody = has_token.then_some("etcdserver: user name is empty");
        let mut words = words.into_iter().chain(to_somebody);
        matches!(self, Self::Refused(_, text) if words.any(|word| text.ends_with(word)))
    }
}

/// Splits the header off a reply; it is the first field.
fn answer(result: Result<Bytes, Status>, compared: Compared) -> Answer {
    let mut body = match result {
        Ok(body) => body,
        Err(status) => return Answer::Refused(status.code(), status.message().to_owned()),
    };
    let mut revision = 0;
    if body.first() == Some(&0x0a) {
        body.advance(1);
        let len = prost::encoding::decode_varint(&mut body).unwrap();
        revision = ResponseHeader::decode(body.split_to(usize::try_from(len).unwrap())).unwrap().revision;
    }
    match compared {
        Compared::Whole => Answer::Reply { revision, body },
        Compared::Revision => Answer::Reply { revision, body: Bytes::new() },
        Compared::Lease => Answer::Reply { revision: 0, body: lease_without_its_time(body) },
        Compared::Leases => Answer::Reply { revision: 0, body: leases_by_id(body) },
        Compared::Nothing => Answer::Reply { revision: 0, body: Bytes::new() },
    }
}

/// The time that a lease has left is never the same twice: of it, whether there is any. A list of
/// keys has no order.
fn lease_without_its_time(reply: Bytes) -> Bytes {
    let mut lease = LeaseTimeToLiveResponse::decode(reply).unwrap();
    lease.ttl = lease.ttl.signum();
    lease.keys.sort();
    lease.encode_to_vec().into()
}

/// Leases are listed by when they end, which some do together.
fn leases_by_id(reply: Bytes) -> Bytes {
    let mut list = LeaseLeasesResponse::decode(reply).unwrap();
    list.leases.sort_by_key(|lease| lease.id);
    list.encode_to_vec().into()
}

/// An address of its own for each of thousands of requests: in a name that is often guessed in,
/// revd lets an address that was wrong wait (COMPAT, 32).
fn address_of(number: u64) -> std::net::IpAddr {
    let [high, low] = [number / 250 % 250, number % 250].map(|part| u8::try_from(1 + part).unwrap());
    [127, 9, high, low].into()
}

/// One server: its members, and the tokens that users got from it.
struct Side<'c> {
    members: &'c [Client],
    tokens: BTreeMap<&'static str, String>,
}

impl Side<'_> {
    fn token(&self, actor: Actor) -> Option<String> {
        match actor {
            Actor::Nobody => None,
            Actor::Garbage => Some("abcdefghijklmnop.1".to_owned()),
            Actor::User(name) => self.tokens.get(name).cloned(),
        }
    }

    async fn send(&mut self, number: u64, call: &Call) -> (Answer, Option<Watch>) {
        let token = self.token(call.actor);
        let client = &self.members[member_of(number, self.members)];
        if self.members.len() > 1 && is_of_member(call) {
            // Answered by what the member knows: after a linearizable read, refused or not, that is
            // what the others know.
            let get = RangeRequest { key: "b".into(), ..RangeRequest::default() }.encode_to_vec();
            let _ = self::call(client, "/etcdserverpb.KV/Range", get.into(), None).await;
        }
        if let Some(create) = &call.watch {
            return match watchers::open(client, create, token.as_deref()).await {
                Ok(watch) => (Answer::Reply { revision: 0, body: Bytes::new() }, Some(watch)),
                Err((code, text)) => (Answer::Refused(code, text), None),
            };
        }
        let Some(name) = call.login else {
            let result = self::call(client, call.path, call.message.clone(), token.as_deref()).await;
            return (answer(result, call.compared), None);
        };
        let elsewhere = client.at_address(address_of(number));
        let result = self::call(&elsewhere, call.path, call.message.clone(), token.as_deref()).await;
        if let Ok(reply) = &result {
            let token = AuthenticateResponse::decode(reply.clone()).unwrap().token;
            self.tokens.insert(name, token);
        }
        (answer(result, call.compared), None)
    }
}

/// Whether the member that is asked may answer by what it knows by itself.
fn is_of_member(call: &Call) -> bool {
    let is_serializable =
        || RangeRequest::decode(call.message.clone()).is_ok_and(|request| request.serializable);
    match call.path {
        HASH_KV | STATUS | TXN | LEASES => true,
        RANGE => is_serializable(),
        _ => call.watch.is_some(),
    }
}

fn member_of(number: u64, members: &[Client]) -> usize {
    usize::try_from(number).unwrap() % members.len()
}

async fn compare(seed: u64, requests: u64, tokens: Tokens, revd: &[Client], etcd: &[Client]) {
    let mut generator = Generator::new(Random::new(seed), tokens);
    let side = |members| Side { members, tokens: BTreeMap::new() };
    let (mut ours, mut theirs) = (side(revd), side(etcd));
    let (mut replies, mut refusals) = (BTreeMap::new(), BTreeMap::new());
    let (mut watchers, mut newest) = (Watchers::default(), 0);
    for number in 0..requests {
        let call = generator.next(number);
        let (mut our, mut our_watch) = ours.send(number, &call).await;
        let (mut their, mut their_watch) = theirs.send(number, &call).await;
        // A member may lag behind the one that was asked before, of either product. Refused, the
        // call has done nothing.
        for _ in 0..100 {
            let [has_our, has_their] = [&ours, &theirs].map(|side| side.token(call.actor).is_some());
            let (we_lag, they_lag) =
                (revd.len() > 1 && our.lags_behind(has_our), their.lags_behind(has_their));
            if our == their || !(we_lag || they_lag) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            if we_lag {
                (our, our_watch) = ours.send(number, &call).await;
            }
            if they_lag {
                (their, their_watch) = theirs.send(number, &call).await;
            }
        }
        assert!(our == their, "seed {seed}, request {number}: {call:?}\nrevd: {our:?}\netcd: {their:?}");
        if let (Some(ours), Some(theirs), Some(create)) = (our_watch, their_watch, &call.watch) {
            watchers.add((call.actor, create.clone(), member_of(number, revd)), ours, theirs);
        }
        if let Answer::Reply { revision, body } = &our {
            newest = newest.max(*revision);
            generator.learn(&call, newest, body);
            if call.changes_users {
                watchers.judge(newest, etcd, |actor| theirs.token(actor)).await;
            }
        }
        if number % 20 == 0 {
            watchers.look(newest).await;
        }
        match our {
            Answer::Reply { .. } => *replies.entry(call.path).or_insert(0) += 1,
            Answer::Refused(_, text) => *refusals.entry(text).or_insert(0) += 1,
        }
    }
    println!(
        "seed {seed}: equal replies {replies:?}, equal refusals {refusals:?}, {} watches ended",
        watchers.ended
    );
    assert!(replies.len() >= 15, "the generator does not reach enough methods: {replies:?}");
    // Signed tokens are often old where users with simple ones would be denied something.
    let denied = ["etcdserver: permission denied", "etcdserver: revision of auth store is old"];
    let denied: u64 = denied.iter().filter_map(|text| refusals.get(*text)).sum();
    assert!(denied * 30 >= requests, "users are hardly ever denied anything: {refusals:?}");
}

#[test]
fn users_may_do_what_etcd_lets_them() {
    let requests = from_env("REVD_AUTH_REQUESTS", 600);
    let seeds = from_env("REVD_AUTH_SEEDS", 2);
    for seed in 1..=seeds {
        with_etcd_beside(&FLAGS, async |revd, etcd| {
            compare(seed, requests, Tokens::Simple, &[revd.client().await], &[etcd.client().await]).await;
        });
    }
}

/// A token that one member gave out counts at the others.
#[test]
fn users_of_three_members_may_do_what_three_etcds_let_them() {
    let requests = from_env("REVD_AUTH_REQUESTS", 200);
    with_clusters_beside(&FLAGS, async |revd, etcd| {
        let (revd, etcd) = (revd.clients(), etcd.clients());
        compare(7, requests, Tokens::Simple, &revd, &etcd).await;
    });
}
