//! Attacks over TLS, against a real revd with certificates. Those at users are in `secure.rs`.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod programs;

use std::sync::atomic::Ordering;
use std::time::Duration;

use programs::{good, revd};
use revd_loadgen::attacks::round::prepared;
use revd_loadgen::attacks::{self, Attack, AttackTarget};
use revd_loadgen::servers::{ServerSpec, Servers, find};
use revd_loadgen::{clock, probe};

fn server(attack: Attack) -> Servers {
    let program = find(&format!("revd={}", revd().to_str().unwrap())).unwrap();
    Servers::start(&prepared(attack, &ServerSpec { program, members: 1, ..ServerSpec::default() })).unwrap()
}

/// Each of these attacks reaches what it is meant for, and the server answers others afterwards.
#[test]
fn attacks_over_tls_are_told_what_they_must_be() {
    let attacks = attacks::over_tls();
    assert!(attacks.len() == 8 && attacks.iter().all(|attack| attack.has_tls));
    for attack in attacks {
        let server = server(attack);
        assert!(server.endpoint().starts_with("https://"));
        let target = AttackTarget::new(server.endpoint());
        std::thread::scope(|scope| {
            let striking = scope.spawn(|| (attack.strike)(&target));
            clock::rest(Duration::from_secs(2));
            target.is_over.store(true, Ordering::Relaxed);
            striking.join().unwrap().unwrap();
        });
        let told = target.tally.all();
        println!("{}: {told:?}", attack.name);
        let has = |word: &str| told.iter().any(|(what, _)| what.contains(word));
        // On a busy machine a newcomer may be late.
        let right = attack.right.trim_end_matches("in time");
        assert!(has(right) && !has("not served") && !has("let in"), "{}: {told:?}", attack.name);
        assert!(probe::status(server.endpoint()).is_ok(), "{}", attack.name);
    }
}

/// Honest callers, too, show certificates to a server that asks for them.
#[test]
fn honest_callers_are_measured_where_certificates_are_asked_for() {
    let server = format!("revd={}", revd().to_str().unwrap());
    let out = good(&["attacks", "--only", "TLS: certificates", "--only-a", "--a", &server]);
    let row = out.lines().find(|line| line.contains("TLS: certificates that are long chains")).unwrap();
    let refused = ["could not be measured", "failed", "let in"];
    assert!(!refused.iter().any(|word| row.contains(word)), "{row}");
}
