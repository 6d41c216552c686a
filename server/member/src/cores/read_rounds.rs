//! Linearizable reads that wait: one ReadIndex round for all of them at a time.
//!
//! A read that comes while a round is under way waits for the next one: the round may have begun
//! before it. An attempt without an answer is repeated under another name, at first each time after
//! twice the time, so that a slow network is not made slower; the answer to an earlier attempt of
//! the same round counts too, so that rounds end also where messages take long.

use crate::apply::ReadReady;
use crate::apply::command::Origin;
use crate::error::Error;
use crate::limits;
use crate::mutants::{self, Mutant};
use crate::peer::ReadContext;

/// Log core view.
#[derive(Debug)]
pub(super) struct ReadRounds {
    origin: Origin,
    attempts: u64,
    /// By edge: reads up to this ticket wait for a round to begin.
    waiting: Vec<Option<u64>>,
    round: Option<ReadRound>,
}

#[derive(Debug)]
struct ReadRound {
    /// Term and leader that are asked.
    asked: (u64, u64),
    /// By edge: reads up to this ticket are in it.
    tickets: Vec<Option<u64>>,
    attempts: Vec<ReadContext>,
    /// The tick of the next attempt.
    next: u64,
}

impl ReadRounds {
    /// No reads wait yet, of so many edges.
    pub(super) fn new(origin: Origin, edges: usize) -> Self {
        Self { origin, attempts: 0, waiting: vec![None; edges], round: None }
    }

    /// Reads of this edge up to this ticket wait.
    pub(super) fn wait(&mut self, edge: u16, ticket: u64) {
        if mutants::is(Mutant::ReadJoinsAttempt)
            && let Some(round) = &mut self.round
        {
            round.tickets[usize::from(edge)] = Some(ticket);
            return;
        }
        self.waiting[usize::from(edge)] = Some(ticket);
    }

    /// The name of an attempt that is to be made now, if any: `asked` is the term and the leader.
    pub(super) fn attempt(&mut self, asked: (u64, u64), now: u64) -> Option<ReadContext> {
        if self.round.as_ref().is_some_and(|round| now < round.next) {
            return None;
        }
        if self.round.is_none() {
            if self.waiting.iter().all(Option::is_none) {
                return None;
            }
            let tickets = self.waiting.iter_mut().map(Option::take).collect();
            self.round = Some(ReadRound { asked, tickets, attempts: Vec::new(), next: now });
        }
        let round = self.round.as_mut().expect("it was just begun");
        self.attempts += u64::from(!mutants::is(Mutant::ReadContextReused));
        let context = ReadContext { origin: self.origin, attempt: self.attempts };
        round.next = now.saturating_add(limits::READ_ROUND_TICKS << round.attempts.len().min(3));
        if round.attempts.len() == limits::READ_ATTEMPTS_MAX {
            round.attempts.remove(0);
        }
        round.attempts.push(context);
        Some(context)
    }

    /// The leader can be reached again: the round does not wait for its next attempt.
    pub(super) fn hurry(&mut self, now: u64) {
        if let Some(round) = &mut self.round {
            round.next = now;
        }
    }

    /// An attempt was answered: the reads of its round see the state up to this index.
    pub(super) fn answered(&mut self, context: ReadContext, index: u64) -> Vec<ReadReady> {
        let round = self.round.take_if(|round| round.attempts.contains(&context));
        round.map_or_else(Vec::new, |round| round.end(&Ok(index)))
    }

    /// There is a leader, in this term: reads that wait for another one are refused.
    pub(super) fn led_by(&mut self, leads: (u64, u64)) -> Vec<ReadReady> {
        let round = self.round.take_if(|round| round.asked != leads);
        round.map_or_else(Vec::new, |round| round.end(&Err(Error::LeaderChanged)))
    }
}

impl ReadRound {
    fn end(self, index: &Result<u64, Error>) -> Vec<ReadReady> {
        let ready = |(edge, ticket): (u16, Option<u64>)| {
            Some(ReadReady { edge, ticket: ticket?, index: index.clone() })
        };
        (0..).zip(self.tickets).filter_map(ready).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin { member: 1, boot: 9 };

    fn context(attempt: u64) -> ReadContext {
        ReadContext { origin: ORIGIN, attempt }
    }

    fn ready(edge: u16, ticket: u64, index: Result<u64, Error>) -> ReadReady {
        ReadReady { edge, ticket, index }
    }

    #[test]
    fn reads_that_come_during_a_round_wait_for_the_next() {
        let mut rounds = ReadRounds::new(ORIGIN, 2);
        assert_eq!(rounds.attempt((2, 1), 0), None);
        rounds.wait(0, 1);
        rounds.wait(1, 4);
        rounds.wait(0, 2);
        assert_eq!(rounds.attempt((2, 1), 0), Some(context(1)));
        rounds.wait(0, 3);
        assert_eq!(rounds.attempt((2, 1), 1), None);
        assert_eq!(rounds.answered(context(1), 7), [ready(0, 2, Ok(7)), ready(1, 4, Ok(7))]);
        assert_eq!(rounds.answered(context(1), 7), []);
        assert_eq!(rounds.attempt((2, 1), 1), Some(context(2)));
        assert_eq!(rounds.answered(context(2), 8), [ready(0, 3, Ok(8))]);
    }

    /// Row 43 (etcd #20418): a name is used once, and reads that came after an attempt are not
    /// served by its answer.
    #[test]
    fn bug_043_an_attempt_is_repeated_under_another_name() {
        let mut rounds = ReadRounds::new(ORIGIN, 1);
        rounds.wait(0, 1);
        assert_eq!(rounds.attempt((2, 1), 10), Some(context(1)));
        rounds.wait(0, 2);
        assert_eq!(rounds.attempt((2, 1), 11), None);
        assert_eq!(rounds.attempt((2, 1), 12), Some(context(2)));
        assert_eq!(rounds.answered(context(1), 7), [ready(0, 1, Ok(7))], "late, but of this round");
        assert_eq!(rounds.answered(context(2), 7), []);
        assert_eq!(rounds.attempt((2, 1), 12), Some(context(3)), "the second read has a round of its own");
    }

    /// A long cut does not make the reads behind it wait as long again.
    #[test]
    fn attempts_go_on_at_a_steady_pace_and_at_once_when_the_leader_is_back() {
        let mut rounds = ReadRounds::new(ORIGIN, 1);
        rounds.wait(0, 1);
        let attempts = (0..1_000).filter(|now| rounds.attempt((2, 1), *now).is_some()).count();
        assert!(attempts > 1_000 / 20, "{attempts} attempts");
        rounds.hurry(1_000);
        assert!(rounds.attempt((2, 1), 1_000).is_some());
    }

    #[test]
    fn a_new_leader_ends_the_round_of_the_one_before() {
        let mut rounds = ReadRounds::new(ORIGIN, 1);
        rounds.wait(0, 1);
        rounds.attempt((2, 1), 0);
        rounds.wait(0, 2);
        assert_eq!(rounds.led_by((2, 1)), []);
        assert_eq!(rounds.led_by((3, 2)), [ready(0, 1, Err(Error::LeaderChanged))]);
        assert_eq!(rounds.attempt((3, 2), 0), Some(context(2)), "the other read has asked nobody yet");
    }
}
