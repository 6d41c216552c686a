//! Handshakes that are begun and not ended, and handshakes by the thousand.

use std::io::Write as _;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::attack::{Attack, AttackTarget};
use super::session::{begin, finish, hello};
use super::together::{PATIENCE, closed, together};
use crate::wire::tls::careless;

/// Connections that stay, and those with a message of 32 KB on each.
const HELD: usize = 10_000;
const HELD_LONG: usize = 2_000;
/// Descriptors of the attacker that are for something else.
const OTHER_DESCRIPTORS: u64 = 500;
/// How long the connections stay.
const STAY: Duration = Duration::from_secs(2);
/// Handshakes under way, and those of one strike.
const AT_ONCE: usize = 200;
const THOUSAND: usize = 1_000;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("TLS: half-open handshakes", 0, half_open)
        .over_tls()
        .told("newcomer: in time")
        .never("newcomer: late"),
    Attack::new("TLS: half-open handshakes of 32 KB", 0, long)
        .over_tls()
        .told("newcomer: in time")
        .never("newcomer: late"),
    Attack::new("TLS: hellos whose answers are not taken", 0, hellos)
        .over_tls()
        .told("newcomer: in time")
        .never("newcomer: late"),
    Attack::new("TLS: handshakes by the thousand", 0, thousand).over_tls().told("handshakes"),
];

/// So many connections, or as many as this process may have.
fn at_most(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    wanted.min(usize::try_from(limit.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX))
}

/// Connections that say this and stay, while somebody else comes.
fn hold<'s>(target: &AttackTarget, wanted: usize, says: impl Fn(usize) -> &'s [u8]) -> anyhow::Result<()> {
    let mut held = Vec::new();
    for at in 0..at_most(wanted) {
        let Ok(mut stream) = target.silent() else {
            target.tally.told("no connection");
            break;
        };
        // One that the server has ended already is what should happen. Bytes that it does not
        // take now are not said: the others would wait.
        stream.set_nonblocking(true)?;
        let _ = stream.write_all(says(at));
        held.push(stream);
        if target.is_over() {
            break;
        }
    }
    anyhow::ensure!(
        !held.is_empty(),
        "no connection is held: allow more than {OTHER_DESCRIPTORS} descriptors"
    );
    target.newcomer();
    target.linger(STAY);
    let stay = held.iter_mut().map(|stream| u64::from(closed(stream).is_err())).sum();
    target.tally.told_times("held to the end", stay);
    target.tally.told_times("sent away", held.len() as u64 - stay);
    Ok(())
}

/// Every other connection says nothing, the others half of what they have to say.
fn half_open(target: &AttackTarget) -> anyhow::Result<()> {
    let hello = hello(target)?;
    let half = &hello[..hello.len() / 2];
    hold(target, HELD, |at| if at % 2 == 0 { &[] } else { half })
}

/// A hello that may be 64,000 bytes long, of which less comes than revd takes of one.
fn long(target: &AttackTarget) -> anyhow::Result<()> {
    let record = |front: &[u8]| [&[0x16, 3, 1, 0x3e, 0x80], front, &vec![0; 16_000 - front.len()]].concat();
    let message = [record(&[1, 0, 0xfa, 0]), record(&[])].concat();
    hold(target, HELD_LONG, |_| &message)
}

/// Each has the server compute, and the attacker computes nothing.
fn hellos(target: &AttackTarget) -> anyhow::Result<()> {
    let hello = hello(target)?;
    hold(target, HELD, |_| &hello)
}

/// Whole handshakes.
fn thousand(target: &AttackTarget) -> anyhow::Result<()> {
    let config = careless(rustls::ALL_VERSIONS, None)?;
    for _ in 0..THOUSAND / AT_ONCE {
        let mut begun = (0..AT_ONCE).map(|_| begin(target, &config)).collect::<anyhow::Result<Vec<_>>>()?;
        begun.iter().try_for_each(|session| session.sock.set_nonblocking(true))?;
        for end in together(&mut begun, PATIENCE, finish) {
            match end {
                Some(Ok(())) => target.tally.told("handshakes"),
                Some(Err(error)) => target.tally.told(&error.to_string()),
                None => target.tally.told("no answer"),
            }
        }
        if target.is_over() {
            break;
        }
    }
    Ok(())
}
