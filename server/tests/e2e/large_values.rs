//! Plain large writes: the log goes through a segment in a fraction of a second, and the next one
//! is made, prepared and released all the time.

use std::process::Command;

use revd_proto::etcdserverpb::{PutRequest, RangeRequest};

use crate::harness::{Client, peers, with_restartable_server, with_server};

/// Writers at a time, what each writes at a time, and how often.
const WRITERS: u64 = 40;
const VALUE_BYTES: usize = 100 * 1024;
const ROUNDS: u64 = 40;

fn key(writer: u64, round: u64) -> bytes::Bytes {
    format!("{writer:02}/{round:02}").into()
}

fn value(writer: u64, round: u64) -> bytes::Bytes {
    vec![u8::try_from((writer * 31 + round) % 251).unwrap(); VALUE_BYTES].into()
}

async fn put_all(client: Client, writer: u64) {
    for round in 0..ROUNDS {
        let request =
            PutRequest { key: key(writer, round), value: value(writer, round), ..PutRequest::default() };
        client.kv.clone().put(request).await.unwrap();
    }
}

async fn assert_all(client: &Client) {
    for (writer, round) in (0..WRITERS).flat_map(|writer| (0..ROUNDS).map(move |round| (writer, round))) {
        let request = RangeRequest { key: key(writer, round), ..RangeRequest::default() };
        let reply = client.kv.clone().range(request).await.unwrap().into_inner();
        assert_eq!(reply.kvs[0].value, value(writer, round));
    }
}

#[test]
fn forty_writers_of_large_values_are_served_and_nothing_is_lost() {
    with_restartable_server(&[], async |server, _| {
        let tasks = tokio::task::LocalSet::new();
        for writer in 0..WRITERS {
            let client = server.client().await;
            tasks.spawn_local(put_all(client, writer));
        }
        tasks.await;
        assert!(server.is_running());
        server.kill();
        server.start_again();
        assert_all(&server.client().await).await;
    });
}

/// Values around the bounds by which replies are made, from the log's end and from the tree file:
/// each way to ask has the same answer.
#[test]
fn a_value_is_read_alike_whatever_its_length() {
    const SIZES: [usize; 9] = [0, 4_000, 4_096, 4_097, 20_000, 262_000, 262_144, 262_200, 1_500_000];
    let value = |size: usize| bytes::Bytes::from(vec![u8::try_from(size % 251).unwrap(); size]);
    let check = async |client: &Client| {
        for size in SIZES {
            let one = RangeRequest { key: format!("{size:07}").into(), ..RangeRequest::default() };
            // Not a plain get: it goes the long way.
            let long = RangeRequest { max_mod_revision: i64::MAX, ..one.clone() };
            let expected = client.kv.clone().range(long).await.unwrap().into_inner();
            assert_eq!((expected.count, &expected.kvs[0].value), (1, &value(size)));
            for serializable in [false, true] {
                let request = RangeRequest { serializable, ..one.clone() };
                let reply = client.kv.clone().range(request).await.unwrap().into_inner();
                assert!(reply == expected, "{size} bytes");
            }
        }
    };
    with_restartable_server(&[], async |server, client| {
        for size in SIZES {
            let key = format!("{size:07}").into();
            let request = PutRequest { key, value: value(size), ..PutRequest::default() };
            client.kv.clone().put(request).await.unwrap();
        }
        check(&client).await;
        server.stop();
        server.start_again();
        check(&server.client().await).await;
    });
}

#[test]
fn etcds_benchmark_of_puts_of_a_megabyte() {
    let Some(peers) = peers() else { return };
    with_server(&[], async |server, _| {
        let mut benchmark = Command::new(peers.path("benchmark"));
        benchmark.args(["--endpoints", &server.address.to_string(), "--clients", "4", "--conns", "4"]);
        benchmark.args(["put", "--total", "150", "--val-size", "1000000"]);
        let output = benchmark.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !text.contains("Error distribution"), "{text}");
        assert!(server.log().lines().all(|line| !line.contains("\"fatal\"")));
    });
}
