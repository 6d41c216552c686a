//! Callers that do not end their handshakes, or say something else in them, or misuse a session.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use revd::limits::{
    HANDSHAKE_DEADLINE, HANDSHAKES_PER_CORE_MAX, TLS_HELLO_BYTES_MAX, WASTED_CONNECTION_MICROSECONDS,
    WASTED_TIMES,
};
use rustix::net::{AddressFamily, SocketType};
use rustls::ContentType;

use crate::harness::{Random, Server, TempDir, free_address, from_env, peers, wait_until};
use crate::tls::certificates::{Authority, Issued, Wanted};
use crate::tls::etcdctl;
use crate::tls::session::{ask, raw_session, session, session_with};

/// The beginning of a handshake record of 512 bytes.
const BEGINNING: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
/// The beginning of a handshake message of 64,000 bytes, in records of 16,000.
const LONG_MESSAGE: &[u8] = &[1, 0, 0xfa, 0];
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const MIB: u64 = 1024 * 1024;

fn server(dir: &TempDir, more: &[&str]) -> (Server, Authority, Issued) {
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted::default());
    let flags = [&["--cert-file", &own.cert, "--key-file", &own.key], more].concat();
    (Server::revd(&dir.path().join("revd"), &flags), authority, own)
}

fn dial(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Another client's puts, one after the other, while `doing` goes on: all of them go well.
fn beside_puts<T>(server: &Server, authority: &Authority, doing: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let puts = scope.spawn(|| {
            let mut puts = 0;
            while puts == 0 || !is_over.load(Ordering::Relaxed) {
                let (is_served, text) = etcdctl(&server.endpoint(), &authority.file, None, "put k v");
                assert!(is_served, "put {puts}: {text}");
                puts += 1;
            }
        });
        let done = doing();
        is_over.store(true, Ordering::Relaxed);
        puts.join().unwrap();
        done
    })
}

/// `REVD_HALF_OPEN` says how many there are.
#[test]
fn half_open_handshakes_keep_nobody_away() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let (server, authority, _) = server(&dir, &[]);
    let open = |at: u64| {
        let mut stream = dial(&server);
        let len = 1 + usize::try_from(at).unwrap() % BEGINNING.len();
        // One that came before may have its place already.
        let _ = stream.write_all(&BEGINNING[..len]);
        stream
    };
    let (before, slots) = (server.all_resident(), server.descriptor_slots());
    let half_open = from_env("REVD_HALF_OPEN", 4_500);
    let held = beside_puts(&server, &authority, || (0..half_open).map(open).collect::<Vec<_>>());
    let grown = server.all_resident().saturating_sub(before);
    assert!(grown < 120 * MIB, "{} MiB for {half_open} handshakes", grown / MIB);
    // A table that grows has the core stand still.
    assert_eq!(server.descriptor_slots(), slots);
    // All of them end, by the server's clock.
    for mut stream in held {
        let mut nowhere = Vec::new();
        if let Err(error) = stream.read_to_end(&mut nowhere) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "it stays open");
        }
    }
    let (is_served, text) = etcdctl(&server.endpoint(), &authority.file, None, "put k v");
    assert!(is_served, "{text}");
}

/// Each sends nearly all of a hello that is as long as one may be: `REVD_LONG_HANDSHAKES` of them
/// hold what `HANDSHAKE_BYTES_PER_CORE_MAX` says and no more.
#[test]
fn handshakes_that_hold_much_give_their_places_up() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let (server, authority, _) = server(&dir, &["--cores", "1"]);
    let record = |front: &[u8]| [&[0x16, 3, 1, 0x3e, 0x80], front, &vec![0; 16_000 - front.len()]].concat();
    let message = [record(LONG_MESSAGE), record(&[])].concat();
    assert!(message.len() < TLS_HELLO_BYTES_MAX);
    let before = server.all_resident();
    let open = |_| {
        let mut stream = dial(&server);
        let _ = stream.write_all(&message);
        stream
    };
    let many = from_env("REVD_LONG_HANDSHAKES", 1_800);
    let held: Vec<_> = beside_puts(&server, &authority, || (0..many).map(open).collect());
    // The server may still be taking them up.
    let told = || server.log().contains("a newer one has its place");
    wait_until(Duration::from_secs(60), told, || "nobody gives way".to_owned());
    let grown = server.all_resident().saturating_sub(before);
    assert!(grown < 80 * MIB, "{} MiB for {many} handshakes of 32 KB", grown / MIB);
    drop(held);
}

/// Handshakes at the URLs of metrics have places and turns of their own, all on one core: whole
/// ones and half ones without an end at either address keep nobody away from the other.
#[test]
fn handshakes_of_clients_and_of_probes_take_nothing_from_each_other() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let metrics = free_address();
    let url = format!("https://{metrics}");
    let (server, authority, _) = server(&dir, &["--cores", "1", "--listen-metrics-urls", &url]);
    let flooded = |address: SocketAddr, is_over: &AtomicBool| {
        let mut half = std::collections::VecDeque::new();
        let mut whole = 0;
        while !is_over.load(Ordering::Relaxed) {
            if let Ok(mut stream) = TcpStream::connect(address) {
                let _ = stream.write_all(BEGINNING);
                half.push_back(stream);
            }
            half.drain(..half.len().saturating_sub(100));
            whole += usize::from(ask(address, &authority, "GET /health").is_ok());
        }
        whole
    };
    let asked = |line: &str, why: &str| {
        let told = ask(metrics, &authority, line).unwrap_or_else(|error| panic!("{why}: {line}: {error}"));
        assert!(told.starts_with("HTTP/1.1 200"), "{why}: {line}: {told}");
    };
    let put = |why: &str| {
        let (is_served, text) = etcdctl(&server.endpoint(), &authority.file, None, "put k v");
        assert!(is_served, "{why}: {text}");
    };
    for (address, is_at_clients) in [(server.address, true), (metrics, false)] {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let floods = [(); 8].map(|()| scope.spawn(|| flooded(address, &is_over)));
            let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..10 {
                    if is_at_clients {
                        for line in ["GET /health", "GET /metrics"] {
                            asked(line, "beside a flood of clients");
                        }
                    } else {
                        put("beside a flood of probes");
                    }
                }
            }));
            is_over.store(true, Ordering::Relaxed);
            let whole: usize = floods.map(|flood| flood.join().unwrap()).into_iter().sum();
            assert!(served.is_ok() && whole > 10, "{whole} handshakes of the flood went well");
        });
    }
    asked("GET /health", "afterwards");
    put("afterwards");
}

/// The oldest of more half handshakes of clients than there are places give theirs up: one at the
/// URL of metrics, older than all of them, stays.
#[test]
fn half_handshakes_of_clients_take_no_place_of_a_probe() {
    let dir = TempDir::new();
    let metrics = free_address();
    let url = format!("https://{metrics}");
    let (server, ..) = server(&dir, &["--cores", "1", "--listen-metrics-urls", &url]);
    let begin = |address: SocketAddr| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(BEGINNING).unwrap();
        stream
    };
    // Its own time is over after ten seconds, however fast the machine is.
    let is_told = (0..5).any(|_| {
        let began = tokio::time::Instant::now();
        let probe = begin(metrics);
        let crowd: Vec<_> = (0..=HANDSHAKES_PER_CORE_MAX).map(|_| begin(server.address)).collect();
        let gave_way = || has_ended(&crowd[0]);
        wait_until(Duration::from_secs(60), gave_way, || "no place is given up".to_owned());
        let has_ended = has_ended(&probe);
        let is_in_time = began.elapsed() < HANDSHAKE_DEADLINE / 2;
        assert!(!is_in_time || !has_ended, "the place of a probe is lost to clients");
        is_in_time
    });
    assert!(is_told, "{HANDSHAKES_PER_CORE_MAX} connections take too long on this machine");
}

/// Whether the other side has closed it; what it said before is read.
fn has_ended(mut socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let mut nowhere = [0; 4096];
    loop {
        match socket.read(&mut nowhere) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// A record that never becomes whole is a request that never does: it counts, and those who send
/// such are ended when others need the memory.
#[test]
fn records_that_are_not_whole_count_in_the_memory_of_connections() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    // 8 MiB for requests.
    let (server, authority, _) = server(&dir, &["--cores", "1", "--memory-bytes", "67108864"]);
    let open = |_| {
        let mut session = session(&server, &authority);
        session.write_all(&[PREFACE, SETTINGS].concat()).unwrap();
        session.flush().unwrap();
        // A record of 16,000 bytes of which 15,000 come.
        let part = [&[0x17, 3, 3, 0x3e, 0x80][..], &vec![7; 15_000]].concat();
        session.sock.write_all(&part).unwrap();
        session
    };
    let held: Vec<_> = (0..600).map(open).collect();
    let look = || held.iter().filter(|held| has_ended(&held.sock)).count() >= 20;
    wait_until(Duration::from_secs(60), look, || "they stay, whoever needs their memory".to_owned());
    let (is_served, text) = etcdctl(&server.endpoint(), &authority.file, None, "put k v");
    assert!(is_served, "{text}");
}

/// In a session, which counts in no memory of handshakes, a message in several records is not
/// waited for, whatever was said before.
#[test]
fn a_message_that_does_not_end_ends_its_session() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let (server, authority, _) = server(&dir, &[]);
    for said in [&[PREFACE, SETTINGS].concat()[..], b"GET / HTTP/1.1\r\n"] {
        let mut session = raw_session(&server, &authority);
        session.send(ContentType::ApplicationData, said);
        session.send(ContentType::Handshake, &[LONG_MESSAGE, &[0; 16_000]].concat());
        session.send(ContentType::Handshake, &[0; 16_000]);
        let look = || has_ended(&session.socket);
        wait_until(Duration::from_secs(20), look, || "it is waited for".to_owned());
    }
    let (is_served, text) = etcdctl(&server.endpoint(), &authority.file, None, "put k v");
    assert!(is_served, "{text}");
}

/// A connection from one of the addresses of this machine.
fn dial_from(server: &Server, address: Ipv4Addr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((address, 0))).unwrap();
    rustix::net::connect(&socket, &server.address).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Each waits until eight times what the one before has cost is over, a tenth of a millisecond at
/// least; all are answered. On a machine that needs so long for a connection anyway this test says
/// nothing; those in `net/tls/turns.rs` and `handshake.rs` do not depend on time.
#[test]
fn a_handshake_waits_behind_one_of_its_address_that_came_to_nothing() {
    const FAILING: u32 = 300;
    let dir = TempDir::new();
    let (server, ..) = server(&dir, &["--cores", "1"]);
    #[expect(clippy::disallowed_methods, reason = "no machine is too slow for a wait at least so long")]
    let began = Instant::now();
    for _ in 0..FAILING {
        let mut socket = dial_from(&server, Ipv4Addr::new(127, 0, 0, 2));
        // A record of 64 KiB.
        socket.write_all(&[0x16, 3, 1, 0xff, 0xff]).unwrap();
        let mut told = Vec::new();
        let _ = socket.read_to_end(&mut told);
        assert_eq!(told.first(), Some(&0x15), "an alert");
    }
    let least = Duration::from_micros(WASTED_TIMES * WASTED_CONNECTION_MICROSECONDS) * (FAILING - 1);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
}

/// Records that are too long, that never end, of unknown kinds, and handshakes of random bytes.
#[test]
fn no_bytes_in_a_handshake_end_the_member() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let (mut server, authority, _) = server(&dir, &[]);
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
    let (is_served, text) = etcdctl(&server.endpoint(), &authority.file, None, "put k v");
    assert!(is_served, "{text}");
    assert!(server.is_running() && !server.log().contains("panic"));
}

/// In a session: a record that is longer than any may be, new keys and empty records without an
/// end, a handshake that begins anew (TLS 1.2, as openssl asks for it).
#[test]
fn a_session_that_is_misused_ends_alone() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let (mut server, authority, _) = server(&dir, &[]);
    let begun = || {
        let mut session = session(&server, &authority);
        session.write_all(&[PREFACE, SETTINGS].concat()).unwrap();
        session.flush().unwrap();
        session
    };
    let mut long = begun();
    long.sock.write_all(&[&[0x17, 3, 3, 0xff, 0xff][..], &[7; 60_000]].concat()).unwrap_or_default();
    let mut nowhere = Vec::new();
    let ended = long.sock.read_to_end(&mut nowhere);
    assert!(!ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it stays open");
    beside_puts(&server, &authority, || {
        // One more of each than rustls bears with.
        let (mut keys, mut empty) = (begun(), raw_session(&server, &authority));
        empty.send(ContentType::ApplicationData, &[PREFACE, SETTINGS].concat());
        for _ in 0..33 {
            keys.conn.refresh_traffic_keys().unwrap();
            empty.send(ContentType::ApplicationData, &[]);
        }
        let _ = keys.flush();
        for (socket, what) in [(&keys.sock, "new keys"), (&empty.socket, "empty records")] {
            wait_until(Duration::from_secs(60), || has_ended(socket), || format!("{what} without an end"));
        }
    });
    let address = server.address.to_string();
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-tls1_2", "-connect", &address, "-CAfile", &authority.file])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl is there");
    let _ = openssl.stdin.as_mut().unwrap().write_all(&b"R\n".repeat(50));
    let said = openssl.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("RENEGOTIATING") && said.contains("no renegotiation"), "{said}");
    let (is_served, text) = etcdctl(&server.endpoint(), &authority.file, None, "put k v");
    assert!(is_served, "{text}");
    assert!(server.is_running() && !server.log().contains("panic"));
}

/// More certificates than any chain has, and one that is larger than a handshake message may be.
#[test]
fn chains_that_are_too_long_are_refused() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted::default());
    let flags = ["--cert-file", &own.cert, "--key-file", &own.key];
    let asks = ["--client-cert-auth", "--trusted-ca-file", &authority.file];
    let server = Server::revd(&dir.path().join("revd"), &[&flags[..], &asks].concat());
    let client = authority.issue(Wanted { file: "client", serial: 9, ..Wanted::default() });
    let is_served = |copies: usize| {
        let mut session = session_with(&server, &authority, &client, copies);
        let mut answer = [0; 9];
        let said = session.write_all(&[PREFACE, SETTINGS].concat()).and_then(|()| session.flush());
        said.and_then(|()| session.read_exact(&mut answer)).is_ok()
    };
    assert!(is_served(0) && is_served(5), "as many as a chain may have");
    assert!(!is_served(6) && !is_served(60) && !is_served(300));
    assert!(is_served(0));
}
