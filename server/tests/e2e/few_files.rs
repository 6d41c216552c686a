//! A process that may open few files: clients are refused first, the log
//! and the tree have what they need.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use revd_proto::etcdserverpb::{PutRequest, RangeRequest};

use crate::harness::{Server, TempDir, run, wait_until};

const FILES: u32 = 256;
const CLIENTS: usize = 300;
/// Enough for some segments of the log and many checkpoints.
const VALUES: u32 = 60;
const VALUE_BYTES: usize = 1_000_000;

fn open_files(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

/// An idle HTTP/2 client: it has said what it speaks.
fn idle(server: &Server) -> Option<TcpStream> {
    let mut client = TcpStream::connect(server.address).ok()?;
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").ok()?;
    // The server's settings, or the end.
    let mut first = [0; 9];
    client.read_exact(&mut first).is_ok().then_some(client)
}

#[test]
fn idle_clients_take_no_file_from_the_log_and_those_who_are_in_are_served() {
    run(async {
        let dir = TempDir::new();
        let mut server = Server::revd_with_files(FILES, &dir.path().join("data"), &[]);
        let client = server.client().await;
        let idle_clients: Vec<TcpStream> = (0..CLIENTS).filter_map(|_| idle(&server)).collect();
        assert!(idle_clients.len() > 150 && idle_clients.len() < FILES as usize, "{}", idle_clients.len());
        for number in 0..VALUES {
            let value = vec![u8::try_from(number).unwrap(); VALUE_BYTES].into();
            let request = PutRequest { key: format!("{number:03}").into(), value, ..PutRequest::default() };
            client.kv.clone().put(request).await.unwrap();
            assert!(open_files(&server) <= FILES as usize - 8, "hardly a file is left");
        }
        let request = RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            count_only: true,
            ..RangeRequest::default()
        };
        let reply = client.kv.clone().range(request).await.unwrap().into_inner();
        assert_eq!(reply.count, i64::from(VALUES));
        assert!(server.is_running());
        let refused = "new connections are closed";
        server.wait_until_says(refused, "clients were refused without a word");
        let told = server.log().matches(refused).count();
        assert!((1..20).contains(&told), "told {told} times");
        // Places are given back.
        drop(idle_clients);
        let deadline = Duration::from_secs(30);
        wait_until(deadline, || idle(&server).is_some(), || "nobody is let in".to_owned());
    });
}

#[test]
fn too_few_files_for_any_client_are_refused_at_the_start() {
    let dir = TempDir::new();
    let output = std::process::Command::new("prlimit")
        .args(["--nofile=32:32", env!("CARGO_BIN_EXE_revd"), "--data-dir"])
        .arg(dir.path().join("data"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("ulimit -n"), "{text}");
}
