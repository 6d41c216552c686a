//! Callers that do not end their handshakes, or say something else in them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::harness::{Random, Server, TempDir, peers};
use crate::tls::certificates::{Authority, Wanted};
use crate::tls::etcdctl;

/// The beginning of a handshake record of 512 bytes.
const BEGINNING: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
const HALF_OPEN: usize = 600;

fn server(dir: &TempDir) -> (Server, String) {
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted::default());
    let flags = ["--cert-file", &own.cert, "--key-file", &own.key];
    (Server::revd(&dir.path().join("revd"), &flags), authority.file)
}

#[test]
fn half_open_handshakes_keep_nobody_away() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let (server, authority) = server(&dir);
    let open = |at: usize| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(&BEGINNING[..1 + at % BEGINNING.len()]).unwrap();
        stream
    };
    let held: Vec<_> = (0..HALF_OPEN).map(open).collect();
    let (is_served, text) = etcdctl(&server.endpoint(), &authority, None, "put k v");
    assert!(is_served, "{text}");
    // All of them end, by the server's clock.
    for mut stream in held {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut nowhere = Vec::new();
        let ended = stream.read_to_end(&mut nowhere);
        assert!(ended.is_ok_and(|_| true), "it stays open");
    }
}

/// Records that are too long, that never end, of unknown kinds, and handshakes of random bytes.
#[test]
fn no_bytes_in_a_handshake_end_the_member() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let (mut server, authority) = server(&dir);
    let mut random = Random::new(7);
    for round in 0..400 {
        let mut bytes: Vec<u8> = (0..random.below(5_000)).map(|_| random.byte()).collect();
        let mut begin = |front: &[u8]| {
            for (at, byte) in front.iter().enumerate() {
                if let Some(place) = bytes.get_mut(at) {
                    *place = *byte;
                }
            }
        };
        match round % 5 {
            0 => begin(&[0x16]),
            1 => begin(&[0x16, 3, 1, 0xff, 0xff]),
            2 => begin(&[0x16, 3, 3, 0, 4, 1, 0xff, 0xff, 0xff]),
            3 => begin(BEGINNING),
            _ => begin(&[0x16, 3, 1, 0, 0]),
        }
        let mut stream = TcpStream::connect(server.address).unwrap();
        // It may be closed before everything is said.
        let _ = stream.write_all(&bytes);
    }
    let (is_served, text) = etcdctl(&server.endpoint(), &authority, None, "put k v");
    assert!(is_served, "{text}");
    assert!(server.is_running() && !server.log().contains("panic"));
}
