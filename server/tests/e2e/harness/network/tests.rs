//! Each fault of a proxy does what it says, and ends.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::{Fault, Network, Party, Way};
use crate::harness::free_address;

const TO: Way = Way { from: Party::Clients, to: Party::Member(0) };
const FROM: Way = Way { from: Party::Member(0), to: Party::Clients };
/// Longer than a proxy needs for a few bytes.
const MOMENTS: Duration = Duration::from_secs(20);
/// Something that does not come by then is held back.
const SHORT: Duration = Duration::from_millis(300);

/// A proxy, and the two ends of a connection through it.
struct Line {
    network: Network,
    listener: TcpListener,
    proxy: std::net::SocketAddr,
    dialler: TcpStream,
    listening: TcpStream,
}

impl Line {
    fn open() -> Self {
        let (proxy, server) = (free_address(), free_address());
        let listener = TcpListener::bind(server).unwrap();
        let network = Network::start(Vec::new());
        network.add(proxy, server, 0, Some(Party::Clients));
        let dialler = TcpStream::connect(proxy).unwrap();
        let listening = listener.accept().unwrap().0;
        let line = Self { network, listener, proxy, dialler, listening };
        for end in [&line.dialler, &line.listening] {
            end.set_read_timeout(Some(MOMENTS)).unwrap();
        }
        line
    }

    fn says(&mut self, bytes: &[u8]) {
        self.dialler.write_all(bytes).unwrap();
    }

    fn hears(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.listening.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn hears_nothing(&mut self) {
        self.listening.set_read_timeout(Some(SHORT)).unwrap();
        let heard = self.listening.read(&mut [0; 100]);
        let kind = heard.map_err(|error| error.kind());
        assert!(matches!(kind, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{kind:?}");
        self.listening.set_read_timeout(Some(MOMENTS)).unwrap();
    }

    /// The connection goes on, in both directions.
    fn goes_on(&mut self) {
        self.says(b"on");
        assert_eq!(self.hears(2), b"on");
        self.listening.write_all(b"back").unwrap();
        let mut back = [0; 4];
        self.dialler.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"back");
    }
}

fn is_reset(end: &mut TcpStream) -> bool {
    let kind = end.read(&mut [0; 100]).map_err(|error| error.kind());
    matches!(kind, Err(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

#[test]
fn a_silent_way_is_one_way_and_loses_nothing() {
    let mut line = Line::open();
    let strike = line.network.strike(TO, Fault::Silence);
    line.says(b"late");
    line.hears_nothing();
    line.listening.write_all(b"back").unwrap();
    line.dialler.read_exact(&mut [0; 4]).unwrap();
    assert!(line.network.relieve(strike) > 0);
    assert_eq!(line.hears(4), b"late");
    line.goes_on();
}

#[test]
fn a_black_hole_loses_what_was_sent_with_its_connection() {
    let mut line = Line::open();
    let strike = line.network.strike(TO, Fault::BlackHole);
    line.says(b"lost");
    line.hears_nothing();
    assert!(line.network.relieve(strike) > 0);
    assert!(is_reset(&mut line.listening) && is_reset(&mut line.dialler));
}

#[test]
fn connections_are_reset_and_new_ones_too() {
    let mut line = Line::open();
    line.goes_on();
    let strike = line.network.strike(FROM, Fault::Reset);
    assert!(is_reset(&mut line.listening) && is_reset(&mut line.dialler));
    line.network.relieve(strike);
    line.network.strike(TO, Fault::Reset);
    let mut another = TcpStream::connect(line.proxy).unwrap();
    assert!(is_reset(&mut another));
    line.network.mend();
    line.dialler = TcpStream::connect(line.proxy).unwrap();
    line.listening = line.listener.accept().unwrap().0;
    line.goes_on();
}

#[test]
fn a_half_open_connection_has_lost_one_end() {
    let mut line = Line::open();
    let strike = line.network.strike(TO, Fault::HalfOpen);
    assert!(is_reset(&mut line.listening));
    line.says(b"to nobody");
    line.dialler.set_read_timeout(Some(SHORT)).unwrap();
    assert!(!is_reset(&mut line.dialler));
    line.dialler.set_read_timeout(Some(MOMENTS)).unwrap();
    line.network.relieve(strike);
    assert!(is_reset(&mut line.dialler));
}

#[test]
fn a_connection_is_cut_behind_so_many_bytes() {
    let mut line = Line::open();
    line.says(b"before");
    assert_eq!(line.hears(6), b"before");
    line.network.strike(TO, Fault::CutAt { bytes: 5 });
    line.says(b"123");
    assert_eq!(line.hears(3), b"123");
    line.says(b"45678");
    // A reset may overtake the bytes before it.
    let mut rest = Vec::new();
    assert_eq!(line.listening.read_to_end(&mut rest).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(b"45".starts_with(&rest[..]), "{rest:?}");
}

#[test]
fn a_slow_line_and_a_late_one_carry_everything_in_order() {
    let mut line = Line::open();
    let sent: Vec<u8> = (0..40_000_u32).map(|number| u8::try_from(number % 251).unwrap()).collect();
    let faults = [
        Fault::Throttle { bytes_per_second: 100_000 },
        Fault::Delay { least: Duration::from_millis(5), jitter: Duration::from_millis(20) },
    ];
    let strikes = faults.map(|fault| line.network.strike(TO, fault));
    line.says(&sent);
    assert_eq!(line.hears(sent.len()), sent);
    assert!(strikes.into_iter().all(|strike| line.network.relieve(strike) > 0));
    line.goes_on();
}

#[test]
fn bits_are_flipped_now_and_then() {
    let mut line = Line::open();
    let strike = line.network.strike(TO, Fault::Corrupt { every: 1_000 });
    let sent = vec![0_u8; 100_000];
    line.says(&sent);
    let flips: u32 = line.hears(sent.len()).iter().map(|byte| byte.count_ones()).sum();
    assert!((40..400).contains(&flips), "{flips} flips");
    assert!(line.network.relieve(strike) > 0);
    line.goes_on();
}
