//! Locks that nobody holds: what a caller that goes away leaves behind.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use prost::Message as _;
use revd_http2::PREFACE;
use revd_http2::raw::{call_block, frame};
use revd_proto::etcdserverpb::{LeaseGrantRequest, PutRequest, RangeRequest};
use revd_proto::v3electionpb::CampaignRequest;
use revd_proto::v3lockpb::LockRequest;

use crate::harness::{Client, wait_until, with_server};

async fn keys(client: &Client, prefix: &str) -> i64 {
    let mut kv = client.kv.clone();
    // Earlier requests are through when this one is.
    let put = PutRequest { key: "behind".into(), ..PutRequest::default() };
    kv.put(put).await.unwrap();
    let (key, range_end) = (format!("{prefix}/").into(), format!("{prefix}0").into());
    let range = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
    kv.range(range).await.unwrap().into_inner().count
}

/// Issue 14, number 26: the key of a caller that went away while its first
/// transaction was under way stayed.
#[test]
fn a_caller_that_goes_away_at_once_leaves_no_key() {
    with_server(&[], async |server, client| {
        let grant = LeaseGrantRequest { ttl: 1_000, id: 0 };
        let lease = client.lease.clone().lease_grant(grant).await.unwrap().into_inner().id;
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat()).unwrap();
        let lock = LockRequest { name: "l".into(), lease }.encode_to_vec();
        let campaign = CampaignRequest { name: "e".into(), lease, value: "v".into() }.encode_to_vec();
        let mut bytes = Vec::new();
        for (at, (path, request)) in
            [("/v3lockpb.Lock/Lock", lock), ("/v3electionpb.Election/Campaign", campaign)]
                .into_iter()
                .cycle()
                .take(40)
                .enumerate()
        {
            let id = 1 + 2 * u32::try_from(at).unwrap();
            let length = u32::try_from(request.len()).unwrap().to_be_bytes();
            let message = [&[0][..], &length, &request].concat();
            bytes.extend([frame(1, 4, id, &call_block(path)), frame(0, 1, id, &message)].concat());
            bytes.extend(frame(3, 0, id, &8_u32.to_be_bytes())); // RST_STREAM, CANCEL
        }
        stream.write_all(&bytes).unwrap();
        // They are another connection's: all are through when nothing changes any more.
        let mut left = (keys(client, "l").await, keys(client, "e").await);
        for _ in 0..200 {
            if left == (0, 0) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            } else {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            left = (keys(client, "l").await, keys(client, "e").await);
        }
        assert_eq!(left, (0, 0), "keys under the lock's and the election's name");
    });
}

/// A caller that goes away gives up its own key, not the one that another with the
/// same lease has found meanwhile.
#[test]
fn a_caller_that_goes_away_takes_nobody_elses_lock() {
    const NAMES: u32 = 40;
    with_server(&[], async |server, client| {
        let grant = LeaseGrantRequest { ttl: 1_000, id: 0 };
        let lease = client.lease.clone().lease_grant(grant).await.unwrap().into_inner().id;
        let mut stream = TcpStream::connect(server.address).unwrap();
        let mut bytes = [PREFACE, &frame(4, 0, 0, &[])].concat();
        for number in 0..NAMES {
            let request = LockRequest { name: format!("m/{number}").into(), lease }.encode_to_vec();
            let length = u32::try_from(request.len()).unwrap().to_be_bytes();
            let message = [&[0][..], &length, &request].concat();
            for id in [1 + 4 * number, 3 + 4 * number] {
                bytes.extend(frame(1, 4, id, &call_block("/v3lockpb.Lock/Lock")));
                bytes.extend(frame(0, 1, id, &message));
            }
            bytes.extend(frame(3, 0, 1 + 4 * number, &8_u32.to_be_bytes())); // RST_STREAM, CANCEL
        }
        stream.write_all(&bytes).unwrap();
        let mut held = Vec::new();
        while held.len() < 100 || held.last() != held.get(held.len() - 50) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            held.push(keys(client, "m").await);
        }
        let held = held.last().copied().unwrap();
        assert_eq!(held, i64::from(NAMES), "the other call of each name holds its lock");
    });
}

/// Calls that wait for a lock keep nothing of the value that they found at their key.
#[test]
fn locks_that_wait_hold_no_value_that_they_found() {
    const VALUE_BYTES: usize = 1_400_000;
    with_server(&["--memory-bytes=1073741824", "--cores=1"], async |server, client| {
        for id in [1, 2] {
            client.lease.clone().lease_grant(LeaseGrantRequest { id, ttl: 3_600 }).await.unwrap();
        }
        let lock = |lease| LockRequest { name: "n".into(), lease }.encode_to_vec();
        client.raw("/v3lockpb.Lock/Lock", tonic::Request::new(lock(1).into())).await.unwrap();
        let value = vec![7; VALUE_BYTES].into();
        let found = PutRequest { key: "n/2".into(), value, lease: 2, ..PutRequest::default() };
        client.kv.clone().put(found).await.unwrap();
        let before = server.resident();
        let message = [&[0, 0, 0, 0, u8::try_from(lock(2).len()).unwrap()][..], &lock(2)].concat();
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat()).unwrap();
        for at in 0..300 {
            let head = frame(1, 4, 1 + 2 * at, &call_block("/v3lockpb.Lock/Lock"));
            stream.write_all(&[head, frame(0, 1, 1 + 2 * at, &message)].concat()).unwrap();
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let held = || server.resident().saturating_sub(before);
        wait_until(Duration::from_secs(20), || held() < 50 << 20, || format!("{} bytes are held", held()));
        drop(stream);
    });
}
