//! Attacks: what clients do that a server must survive without others noticing.
//!
//! Each is a small generator of bytes or calls. `before` fills the store, `strike` is called again and again while honest
//! callers are measured ([`honest`]); what the attacker was told goes into a [`AttackerTold`]. They know nothing of the server that
//! they strike: the same ones go to etcd. [`round`] measures what others notice; the mixed soak of the server's tests draws
//! from [`all`] too.

mod attack;
mod floods;
pub mod honest;
mod leases;
mod replies;
pub mod round;
mod scans;
mod store;
mod txns;
mod uploads;
mod watches;

pub use attack::{Attack, AttackTarget, AttackerTold};

/// All of them.
#[must_use]
pub fn all() -> Vec<Attack> {
    [floods::ATTACKS, txns::ATTACKS, leases::ATTACKS, uploads::ATTACKS, watches::ATTACKS, replies::ATTACKS]
        .concat()
        .into_iter()
        .chain(scans::ATTACKS.iter().copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_attacks_apart() {
        let all = all();
        for attack in &all {
            assert_eq!(all.iter().filter(|other| other.name == attack.name).count(), 1, "{}", attack.name);
        }
    }
}
