//! The same requests to revd and to etcd 3.7.1: every reply must be the same, field by field, and
//! every error by code and text. Cluster id, member id and raft term are the only fields left out.
//!
//! Requests are made from a seed. `REVD_DIFF_REQUESTS` and `REVD_DIFF_SEEDS` make the test longer.
//! The two requests that end an etcd 3.7.1 process are in `changed_twice.rs`: only revd gets them.

use bytes::{Buf as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, RangeRequest, ResponseHeader, TxnRequest,
    TxnResponse,
};
use tonic::{Code, Status};

use crate::harness::{Client, Random, from_env, with_clusters_beside, with_etcd_beside};

mod generator;
use generator::{Generator, Request};

/// Nothing crashes here.
const WITHOUT_SYNCS: [&str; 1] = ["--unsafe-no-fsync"];

/// The reply: the whole message as text, or the error.
#[derive(Debug, PartialEq)]
enum Answer {
    Reply { revision: i64, message: String },
    Refused(Code, String),
}

/// Leaves out what is a server's own.
fn common(header: &mut Option<ResponseHeader>) -> i64 {
    let header = header.as_mut().expect("every response has a header");
    assert!(header.cluster_id != 0 && header.member_id != 0 && header.raft_term != 0, "{header:?}");
    *header = ResponseHeader { revision: header.revision, ..ResponseHeader::default() };
    header.revision
}

fn answer<M: std::fmt::Debug>(
    result: Result<tonic::Response<M>, Status>,
    header: fn(&mut M) -> &mut Option<ResponseHeader>,
) -> Answer {
    match result {
        Ok(response) => {
            let mut message = response.into_inner();
            let revision = common(header(&mut message));
            Answer::Reply { revision, message: format!("{message:?}") }
        }
        Err(status) => Answer::Refused(status.code(), status.message().to_owned()),
    }
}

async fn send(client: &Client, request: Request) -> Answer {
    let mut kv = client.kv.clone();
    match request {
        Request::Range(request) => answer(kv.range(request).await, |message| &mut message.header),
        Request::Put(request) => answer(kv.put(request).await, |message| &mut message.header),
        Request::DeleteRange(request) => {
            answer(kv.delete_range(request).await, |message| &mut message.header)
        }
        Request::Txn(request) => txn(client, &request).await,
        Request::Compact(request) => answer(kv.compact(request).await, |message| &mut message.header),
        Request::HashKv(request) => {
            answer(client.maintenance.clone().hash_kv(request).await, |message| &mut message.header)
        }
        Request::RangeStream(request) => match stream(client, request).await {
            Ok((revision, message)) => Answer::Reply { revision, message },
            Err(status) => Answer::Refused(status.code(), status.message().to_owned()),
        },
    }
}

/// As bytes, because replies may be nested deeper than prost reads; the header is the first field.
async fn txn(client: &Client, request: &TxnRequest) -> Answer {
    let result = client.raw("/etcdserverpb.KV/Txn", Bytes::from(request.encode_to_vec())).await;
    let mut message = match result {
        Ok(response) => response.into_inner(),
        Err(status) => return Answer::Refused(status.code(), status.message().to_owned()),
    };
    assert_eq!(message.get_u8(), 0x0a, "the header is the first field");
    let header_len = usize::from(message.get_u8());
    let revision = common(&mut Some(ResponseHeader::decode(message.split_to(header_len)).unwrap()));
    let body = TxnResponse::decode(message.clone());
    Answer::Reply {
        revision,
        message: body.map_or_else(|_| format!("{message:?}"), |body| format!("{body:?}")),
    }
}

/// All chunks of a stream: how they are cut is up to the server, what they hold together is not.
async fn stream(client: &Client, request: RangeRequest) -> Result<(i64, String), Status> {
    let mut chunks = client.kv.clone().range_stream(request).await?.into_inner();
    let (mut kvs, mut last) = (Vec::new(), None);
    while let Some(chunk) = chunks.message().await? {
        assert!(last.is_none(), "a chunk behind the one with the header");
        let mut response = chunk.range_response.expect("a chunk");
        kvs.append(&mut response.kvs);
        if response.header.is_some() {
            let revision = common(&mut response.header);
            last = Some((revision, response));
        }
    }
    let (revision, last) = last.expect("the last chunk has the header");
    Ok((revision, format!("{last:?} {kvs:?}")))
}

/// Makes a member's replies those of the newest revision.
async fn catch_up(client: &Client) {
    let request = RangeRequest { key: "k".into(), count_only: true, ..RangeRequest::default() };
    client.kv.clone().range(request).await.unwrap();
}

/// Sends the same requests to both, spread over the members of each.
async fn compare(seed: u64, requests: u64, revd: &[Client], etcd: &[Client]) {
    // Two of the leases that puts name; the others do not exist.
    for id in [-1, 2] {
        for client in [&revd[0], &etcd[0]] {
            client.lease.clone().lease_grant(LeaseGrantRequest { id, ttl: 100_000 }).await.unwrap();
        }
    }
    let mut generator = Generator::new(Random::new(seed));
    let (mut replies, mut refusals) = (0, std::collections::BTreeMap::new());
    for number in 0..requests {
        let request = generator.next(number);
        let member = usize::try_from(number).unwrap() % revd.len();
        let (ours, theirs) = (&revd[member], &etcd[member]);
        if revd.len() > 1 {
            tokio::join!(catch_up(ours), catch_up(theirs));
        }
        let (ours, theirs) = tokio::join!(send(ours, request.clone()), send(theirs, request.clone()));
        assert!(
            ours == theirs,
            "seed {seed}, request {number}, member {member}: {request:?}\nrevd: {ours:?}\netcd: {theirs:?}"
        );
        match ours {
            Answer::Reply { revision, .. } => {
                generator.learn(&request, revision);
                replies += 1;
            }
            Answer::Refused(_, text) => *refusals.entry(text).or_insert(0) += 1,
        }
    }
    let mut attached = Vec::new();
    for clients in [revd, etcd] {
        let mut lease = clients[clients.len() - 1].lease.clone();
        let request = LeaseTimeToLiveRequest { id: 2, keys: true };
        let mut keys = lease.lease_time_to_live(request).await.unwrap().into_inner().keys;
        keys.sort();
        attached.push((
            keys,
            lease.lease_revoke(LeaseRevokeRequest { id: 2 }).await.unwrap().into_inner().header,
        ));
    }
    let revisions = attached.iter().map(|(_, header)| header.as_ref().unwrap().revision);
    assert!(revisions.clone().min() == revisions.max() && attached[0].0 == attached[1].0, "{attached:?}");
    println!("seed {seed}: {replies} equal replies, equal refusals {refusals:?}");
    if requests >= 5_000 {
        assert!(refusals.len() >= 10, "the generator does not reach enough kinds of errors: {refusals:?}");
    }
}

#[test]
fn every_reply_is_the_one_etcd_gives() {
    let requests = from_env("REVD_DIFF_REQUESTS", 20_000);
    let seeds = from_env("REVD_DIFF_SEEDS", 3);
    for seed in 1..=seeds {
        with_etcd_beside(&WITHOUT_SYNCS, async |revd, etcd| {
            compare(seed, requests, &[revd.client().await], &[etcd.client().await]).await;
        });
    }
}

/// Each member is asked when it has caught up: how far members are apart is not compared.
#[test]
fn every_reply_of_three_members_is_the_one_of_three_etcds() {
    let requests = from_env("REVD_DIFF_REQUESTS", 5_000);
    for seed in 1..=from_env("REVD_DIFF_SEEDS", 1) {
        with_clusters_beside(&WITHOUT_SYNCS, async |ours, theirs| {
            compare(seed, requests, &ours.clients(), &theirs.clients()).await;
        });
    }
}
