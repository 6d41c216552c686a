//! One connection through a proxy: bytes are carried both ways, as the faults of each way let them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use revd_engine::random::Random;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::faults::{Fault, Rules, Way};

const CHUNK_BYTES: usize = 64 * 1024;
/// A slow line carries what it may in pieces of this long.
const PIECE: Duration = Duration::from_millis(50);

/// Why a connection ends before its parties end it.
enum Broken {
    Reset,
    /// This way has lost its receiver, and the sender is not told.
    HalfOpen(Way),
}

fn is_hold(fault: Fault) -> bool {
    matches!(fault, Fault::Silence | Fault::BlackHole)
}

fn is_break(fault: Fault) -> bool {
    matches!(fault, Fault::Reset | Fault::HalfOpen)
}

/// Carries a connection until it ends. `way` is that of the dialler's bytes.
pub async fn forward(mut dialled: TcpStream, member: SocketAddr, way: Way, rules: Rules, number: u64) {
    let reached = match admit(way, &rules).await {
        Ok(()) => TcpStream::connect(member).await,
        Err(Broken::Reset) => return reset(dialled),
        Err(Broken::HalfOpen(_)) => return speak_to_nobody(dialled, way, &rules).await,
    };
    let Ok(mut reached) = reached else { return };
    for socket in [&dialled, &reached] {
        let _ = socket.set_nodelay(true);
    }
    let broken = {
        let (from_dialled, to_dialled) = dialled.split();
        let (from_reached, to_reached) = reached.split();
        let there = Carrier::new(way, &rules, 2 * number);
        let back = Carrier::new(way.back(), &rules, 2 * number + 1);
        tokio::try_join!(there.carry(from_dialled, to_reached), back.carry(from_reached, to_dialled)).err()
    };
    match broken {
        None => {}
        Some(Broken::Reset) => [dialled, reached].into_iter().for_each(reset),
        Some(Broken::HalfOpen(broken)) => {
            let (kept, lost) = if broken == way { (dialled, reached) } else { (reached, dialled) };
            reset(lost);
            speak_to_nobody(kept, broken, &rules).await;
        }
    }
}

/// The other end learns by a reset, not by an end of the stream.
fn reset(socket: TcpStream) {
    let _ = socket.set_zero_linger();
}

/// Takes what is sent, until the way is mended.
async fn speak_to_nobody(mut socket: TcpStream, way: Way, rules: &Rules) {
    let mut buffer = vec![0; CHUNK_BYTES];
    let sending = async { while socket.read(&mut buffer).await.is_ok_and(|read| read > 0) {} };
    tokio::select! {
        () = sending => {}
        () = rules.wait_without(way, |fault| fault == Fault::HalfOpen) => {}
    }
    reset(socket);
}

/// A new connection, before it is let through.
async fn admit(way: Way, rules: &Rules) -> Result<(), Broken> {
    for strike in rules.strikes(way) {
        match strike.fault {
            Fault::Silence | Fault::BlackHole => {
                rules.meet(strike);
                rules.wait_without(way, is_hold).await;
            }
            Fault::Reset => {
                rules.meet(strike);
                return Err(Broken::Reset);
            }
            Fault::HalfOpen => {
                rules.meet(strike);
                return Err(Broken::HalfOpen(way));
            }
            _ => {}
        }
    }
    Ok(())
}

/// One direction of a connection.
struct Carrier<'r> {
    way: Way,
    rules: &'r Rules,
    random: Random,
    /// Bytes since each fault that counts them began, by its number.
    counted: BTreeMap<u64, u64>,
    /// Bytes before the next flipped bit.
    until_flip: Option<u64>,
}

impl<'r> Carrier<'r> {
    fn new(way: Way, rules: &'r Rules, number: u64) -> Self {
        Self { way, rules, random: Random::new(number), counted: BTreeMap::new(), until_flip: None }
    }

    async fn carry(mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), Broken> {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let most = self.piece_bytes();
            let read = tokio::select! {
                read = from.read(&mut buffer[..most]) => read,
                strike = self.rules.wait_for(self.way, is_break) => {
                    self.rules.meet(strike);
                    return Err(self.broken_by(strike.fault));
                }
            };
            let length = *read.as_ref().unwrap_or(&0);
            // Also the end of a connection is not heard of over a cut way.
            let passed = self.obey(&mut buffer[..length]).await?;
            if to.write_all(&buffer[..passed]).await.is_err() || passed < length || read.is_err() {
                return Err(Broken::Reset);
            }
            if length == 0 {
                let _ = to.shutdown().await;
                return Ok(());
            }
        }
    }

    fn broken_by(&self, fault: Fault) -> Broken {
        if fault == Fault::HalfOpen { Broken::HalfOpen(self.way) } else { Broken::Reset }
    }

    /// Bytes that may go at once.
    fn piece_bytes(&self) -> usize {
        let slowest = self.rules.strikes(self.way).into_iter().filter_map(|strike| match strike.fault {
            Fault::Throttle { bytes_per_second } => Some(bytes_per_second),
            _ => None,
        });
        let pieces = u64::try_from(1_000 / PIECE.as_millis()).unwrap();
        let most = slowest.min().map_or(CHUNK_BYTES as u64, |rate| (rate / pieces).max(1));
        usize::try_from(most).unwrap().min(CHUNK_BYTES)
    }

    /// The faults meet these bytes; how many of them go on their way.
    async fn obey(&mut self, bytes: &mut [u8]) -> Result<usize, Broken> {
        let mut passed = bytes.len();
        for strike in self.rules.strikes(self.way) {
            match strike.fault {
                Fault::Silence => self.rules.meet(strike),
                Fault::BlackHole => {
                    self.rules.meet(strike);
                    self.rules.wait_without(self.way, is_hold).await;
                    return Err(Broken::Reset);
                }
                Fault::Reset | Fault::HalfOpen => {
                    self.rules.meet(strike);
                    return Err(self.broken_by(strike.fault));
                }
                Fault::Delay { least, jitter } => {
                    self.rules.meet(strike);
                    let jitter = u64::try_from(jitter.as_micros()).unwrap();
                    let jitter = Duration::from_micros(self.random.below(jitter + 1));
                    tokio::time::sleep(least + jitter).await;
                }
                Fault::Throttle { bytes_per_second } => {
                    self.rules.meet(strike);
                    let micros = bytes.len() as u64 * 1_000_000 / bytes_per_second.max(1);
                    tokio::time::sleep(Duration::from_micros(micros)).await;
                }
                Fault::CutAt { bytes: end } => {
                    passed = passed.min(self.until_cut(strike.number, end, bytes.len()));
                    if passed < bytes.len() {
                        self.rules.meet(strike);
                    }
                }
                Fault::Corrupt { every } => {
                    if self.flip(bytes, every) {
                        self.rules.meet(strike);
                    }
                }
            }
        }
        self.rules.wait_without(self.way, |fault| fault == Fault::Silence).await;
        Ok(passed)
    }

    /// How many of so many bytes go before the end of a connection that this fault cuts.
    fn until_cut(&mut self, strike: u64, end: u64, length: usize) -> usize {
        let counted = self.counted.entry(strike).or_insert(0);
        let left = usize::try_from(end - end.min(*counted)).unwrap();
        *counted += length as u64;
        left.min(length)
    }

    /// Flips bits of these bytes, if it is time; whether it did.
    fn flip(&mut self, bytes: &mut [u8], every: u64) -> bool {
        let mut flipped = false;
        let mut at = 0;
        loop {
            let until = *self.until_flip.get_or_insert_with(|| self.random.below(2 * every));
            let Some(byte) = usize::try_from(until).ok().and_then(|until| bytes.get_mut(at + until)) else {
                self.until_flip = Some(until - (bytes.len() - at) as u64);
                return flipped;
            };
            *byte ^= 1 << self.random.below(8);
            at += usize::try_from(until).unwrap() + 1;
            self.until_flip = None;
            flipped = true;
        }
    }
}
