//! Attacks over TLS and at users, against a real revd that has certificates or users.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod programs;

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use programs::{good, revd};
use revd_loadgen::attacks::round::prepared;
use revd_loadgen::attacks::{self, Attack, AttackTarget};
use revd_loadgen::servers::{ServerSpec, Servers, find};
use revd_loadgen::{clock, probe};

/// How long an attack goes on, in seconds: longer if its attacker was not told what it must be, on
/// a machine that is busy with something else.
const ATTACK_SECONDS: [u64; 4] = [2, 8, 32, 128];

/// One attack at a time: a machine with two cores has none left for the server of another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn server(attack: Attack) -> Servers {
    let program = find(&format!("revd={}", revd().to_str().unwrap())).unwrap();
    Servers::start(&prepared(attack, &ServerSpec { program, members: 1, ..ServerSpec::default() })).unwrap()
}

/// The attacker's replies, and how often each came. Others are answered afterwards.
fn told(attack: Attack, server: &Servers, right: &str) -> Vec<(String, u64)> {
    let target = AttackTarget::new(server.endpoint());
    for seconds in ATTACK_SECONDS {
        target.is_over.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let striking = scope.spawn(|| (attack.strike)(&target));
            clock::rest(Duration::from_secs(seconds));
            target.is_over.store(true, Ordering::Relaxed);
            striking.join().unwrap().unwrap();
        });
        if has(&target.tally.all(), right) {
            break;
        }
    }
    assert!(probe::status(server.endpoint()).is_ok(), "{}", attack.name);
    target.tally.all()
}

fn has(told: &[(String, u64)], word: &str) -> bool {
    told.iter().any(|(what, _)| what.contains(word))
}

/// Each of these attacks reaches what it is meant for: the server checks, and says no.
#[test]
fn attacks_at_users_are_told_what_they_must_be() {
    let attacks = attacks::all().into_iter().filter(|attack| attack.has_users).collect::<Vec<_>>();
    assert_eq!(attacks.len(), 5);
    let _alone = alone();
    let server = server(attacks[0]);
    for attack in attacks {
        let told = told(attack, &server, attack.right);
        assert!(has(&told, attack.right), "{}: {told:?}", attack.name);
    }
}

/// Each of these attacks reaches what it is meant for, and the server answers others afterwards.
#[test]
fn attacks_over_tls_are_told_what_they_must_be() {
    let attacks = attacks::over_tls();
    assert!(attacks.len() == 8 && attacks.iter().all(|attack| attack.has_tls));
    let _alone = alone();
    for attack in attacks {
        let server = server(attack);
        assert!(server.endpoint().starts_with("https://"));
        // On a busy machine a newcomer may be late.
        let right = attack.right.trim_end_matches("in time");
        let wrong = ["not served", "is gone", "let in", "stays"];
        let told = told(attack, &server, right);
        println!("{}: {told:?}", attack.name);
        let is_well = has(&told, right) && !wrong.iter().any(|wrong| has(&told, wrong));
        assert!(is_well, "{}: {told:?}", attack.name);
    }
}

/// A server that asks for no certificate lets the attacker in, and that is told.
#[test]
fn a_chain_that_is_let_in_is_told() {
    let chains = attacks::over_tls().into_iter().find(|attack| attack.asks_callers).unwrap();
    let _alone = alone();
    let server = server(Attack { asks_callers: false, ..chains });
    let told = told(chains, &server, "let in");
    assert!(has(&told, "let in"), "{told:?}");
}

/// Honest callers, too, show certificates to a server that asks for them.
#[test]
fn honest_callers_are_measured_where_certificates_are_asked_for() {
    let _alone = alone();
    let server = format!("revd={}", revd().to_str().unwrap());
    let out = good(&["attacks", "--only", "TLS: certificates", "--only-a", "--a", &server]);
    let row = out.lines().find(|line| line.contains("TLS: certificates that are long chains")).unwrap();
    let refused = ["could not be measured", "failed", "let in"];
    assert!(!refused.iter().any(|word| row.contains(word)), "{row}");
}
