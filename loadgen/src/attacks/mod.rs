//! Attacks: clients that a server must survive while honest ones are served as before.
//!
//! Each is a small generator of bytes or calls. `before` fills the store, `strike` is called again
//! and again while honest callers are measured ([`honest`]); the replies to the attacker go into
//! [`AttackerTold`]. They do not depend on the server: the same ones go to etcd. [`round`] measures
//! honest callers; the mixed soak of the server's tests draws from [`all`] too. Those of
//! [`over_tls`] begin below HTTP/2, in the handshakes (`handshakes.rs`, `chains.rs`) and records
//! (`records.rs`) of TLS.

mod attack;
mod chains;
mod floods;
mod guesses;
mod handshakes;
pub mod honest;
mod leases;
mod machine;
mod newcomers;
mod priority;
mod records;
mod replies;
pub mod round;
mod scans;
mod session;
mod store;
mod together;
mod txns;
mod uploads;
mod watches;

pub use attack::{Attack, AttackTarget, AttackerTold};

/// All at servers without TLS.
#[must_use]
pub fn all() -> Vec<Attack> {
    [floods::ATTACKS, txns::ATTACKS, leases::ATTACKS, uploads::ATTACKS, watches::ATTACKS, replies::ATTACKS]
        .concat()
        .into_iter()
        .chain([scans::ATTACKS, guesses::ATTACKS].concat())
        .collect()
}

/// All at servers with certificates.
#[must_use]
pub fn over_tls() -> Vec<Attack> {
    [handshakes::ATTACKS, records::ATTACKS, chains::ATTACKS].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_attacks_apart() {
        let all = [all(), over_tls()].concat();
        for attack in &all {
            assert_eq!(all.iter().filter(|other| other.name == attack.name).count(), 1, "{}", attack.name);
        }
    }
}
