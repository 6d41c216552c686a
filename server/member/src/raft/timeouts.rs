//! Election timeouts from a seed: the same seed and the same events make the same elections.
//!
//! raft-rs draws a timeout from the thread's random numbers at every reset of its role. It compares
//! the timeout only in the tick of a follower or candidate, with the ticks since the leader was
//! last heard of, and a reset sets these to zero. So a timeout of our own, set before each tick
//! that finds zero, leaves none of raft-rs's in force. (`set_randomized_election_timeout` is public
//! but not in raft-rs's documentation.)

use raft::{Raft, Storage};
use revd_engine::random::Random;

/// Ticks of an election time that a start does not skip, as in etcd.
const TICKS_LEFT_AT_START: usize = 2;

/// Log core view: the timeouts of one member.
#[derive(Debug)]
pub(super) struct ElectionTimeouts {
    random: Random,
}

impl ElectionTimeouts {
    /// The timeouts that this seed stands for.
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed) }
    }

    /// Before each tick: draws the timeout of a period that begins with it, from one to two
    /// election times.
    pub(super) fn before_tick<S: Storage>(&mut self, raft: &mut Raft<S>) {
        if raft.election_elapsed == 0 {
            self.draw(raft);
        }
    }

    /// The leader's process is probably gone, which counts as an election time without it: of the
    /// timeout that is drawn now the random part is left, and others may have this member's vote.
    pub(super) fn leader_lost<S: Storage>(&mut self, raft: &mut Raft<S>) {
        if raft.election_elapsed < raft.election_timeout() {
            self.draw(raft);
            raft.election_elapsed = raft.election_timeout();
        }
    }

    /// Most of an election time counts as over: two ticks and the random part are left, in which a
    /// leader that there is can make itself heard.
    pub(super) fn advance<S: Storage>(&mut self, raft: &mut Raft<S>) {
        self.before_tick(raft);
        raft.election_elapsed += raft.election_timeout().saturating_sub(TICKS_LEFT_AT_START);
    }

    fn draw<S: Storage>(&mut self, raft: &mut Raft<S>) {
        let shortest = raft.election_timeout();
        let longer = self.random.below(shortest as u64);
        let longer = usize::try_from(longer).expect("below a number of ticks");
        raft.set_randomized_election_timeout(shortest + longer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use raft::eraftpb::Message;
    use raft::storage::MemStorage;
    use raft::{Config, RawNode, StateRole};

    const ELECTION_TICKS: usize = 10;

    struct Voter {
        raft: RawNode<MemStorage>,
        timeouts: ElectionTimeouts,
    }

    /// Three voters.
    fn voters(seed: u64) -> Vec<Voter> {
        let voter = |id| {
            let config = Config {
                id,
                election_tick: ELECTION_TICKS,
                heartbeat_tick: 1,
                check_quorum: true,
                pre_vote: true,
                ..Config::default()
            };
            let storage = MemStorage::new_with_conf_state((vec![1, 2, 3], vec![]));
            let logger = slog::Logger::root(slog::Discard, slog::o!());
            let raft = RawNode::new(&config, storage, &logger).unwrap();
            Voter { raft, timeouts: ElectionTimeouts::new(seed ^ id) }
        };
        (1..=3).map(voter).collect()
    }

    /// Makes durable what is to be, and returns what is to be sent.
    fn drive(raft: &mut RawNode<MemStorage>) -> Vec<Message> {
        let mut messages = Vec::new();
        while raft.has_ready() {
            let mut ready = raft.ready();
            messages.extend(ready.take_messages());
            raft.store().wl().append(ready.entries()).unwrap();
            if let Some(state) = ready.hs() {
                raft.store().wl().set_hardstate(state.clone());
            }
            messages.extend(ready.take_persisted_messages());
            let mut light = raft.advance(ready);
            messages.extend(light.take_messages());
            raft.advance_apply();
        }
        messages
    }

    /// Each change of role, term or leader of three voters whose network loses and delays messages.
    fn history(seed: u64) -> Vec<(u64, u64, StateRole, u64, u64)> {
        let (mut voters, mut network) = (voters(seed), Random::new(seed));
        let (mut history, mut under_way) = (Vec::new(), Vec::new());
        let mut last = [(StateRole::Follower, 0, 0); 3];
        for tick in 0..2_000 {
            for voter in &mut voters {
                voter.timeouts.before_tick(&mut voter.raft.raft);
                voter.raft.tick();
            }
            let is_cut = tick % 400 > 250; // long enough for a leader to fall
            let (now, later) = std::mem::take(&mut under_way)
                .into_iter()
                .partition::<Vec<Message>, _>(|_| !network.one_in(4));
            under_way = later;
            for message in now.into_iter().filter(|_| !is_cut && !network.one_in(10)) {
                let to = usize::try_from(message.to).unwrap() - 1;
                let _ = voters[to].raft.step(message);
            }
            for (voter, last) in voters.iter_mut().zip(&mut last) {
                under_way.extend(drive(&mut voter.raft));
                let raft = &voter.raft.raft;
                let is = (raft.state, raft.term, raft.leader_id);
                if *last != is {
                    history.push((tick, raft.id, is.0, is.1, is.2));
                    *last = is;
                }
            }
        }
        history
    }

    #[test]
    fn the_same_seed_makes_the_same_elections() {
        let mut histories = BTreeSet::new();
        for seed in 0..20 {
            let history = history(seed);
            let leads = history.iter().filter(|(_, _, role, ..)| *role == StateRole::Leader);
            assert!(leads.count() >= 3, "seed {seed}: {history:?}");
            assert_eq!(history, self::history(seed), "seed {seed}");
            histories.insert(format!("{history:?}"));
        }
        assert_eq!(histories.len(), 20, "each seed makes others");
    }

    #[test]
    fn timeouts_are_spread_over_an_election_time() {
        let mut voter = voters(7).swap_remove(0);
        let mut drawn = BTreeSet::new();
        for _ in 0..500 {
            voter.raft.raft.become_follower(2, 0); // raft-rs draws one of its own
            voter.timeouts.before_tick(&mut voter.raft.raft);
            drawn.insert(voter.raft.raft.randomized_election_timeout());
        }
        assert!(drawn.iter().copied().eq(ELECTION_TICKS..2 * ELECTION_TICKS), "{drawn:?}");
    }

    /// Two members may say so one after the other: the random part of the timeout is drawn once.
    #[test]
    fn a_leader_is_lost_once_in_a_period() {
        let mut drawn = BTreeSet::new();
        for seed in 0..40 {
            let mut voter = voters(seed).swap_remove(0);
            let raft = &mut voter.raft.raft;
            raft.election_elapsed = 3;
            voter.timeouts.leader_lost(raft);
            assert_eq!(raft.election_elapsed, ELECTION_TICKS, "an election time counts as over");
            let timeout = raft.randomized_election_timeout();
            voter.timeouts.leader_lost(raft);
            assert_eq!(
                (raft.election_elapsed, raft.randomized_election_timeout()),
                (ELECTION_TICKS, timeout)
            );
            drawn.insert(timeout);
        }
        assert!(drawn.len() > 5, "{drawn:?}");
    }
}
