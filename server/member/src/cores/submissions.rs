//! The commands of this member's edges that are not in a log yet.
//!
//! Commands leave in the order in which they came, so that one number an edge says which of its
//! commands have left. Those that have left are answered when their entry is applied, or are lost;
//! those that have not wait for a leader, but not longer than a request may take.

use std::collections::VecDeque;

use crate::apply::command::Command;
use crate::apply::local::Submitted;
use crate::limits;

/// Log core view.
#[derive(Debug)]
pub(super) struct Submissions {
    queue: VecDeque<Gathered>,
    /// By edge: the number of the last submission of which something has left.
    left: Vec<u64>,
    /// By edge: submissions up to this number are not waited for any more.
    given_up: Vec<u64>,
}

/// The commands of one edge and turn, or those of them that are still here.
#[derive(Debug)]
struct Gathered {
    edge: usize,
    number: u64,
    /// The tick in which they came.
    since: u64,
    commands: VecDeque<Command>,
}

impl Submissions {
    /// Nothing yet, of so many edges.
    pub(super) fn new(edges: usize) -> Self {
        Self { queue: VecDeque::new(), left: vec![0; edges], given_up: vec![0; edges] }
    }

    pub(super) fn push(&mut self, edge: u16, submitted: Submitted, now: u64) {
        let Submitted { commands, number, .. } = submitted;
        if !commands.is_empty() {
            let commands = VecDeque::from(commands);
            self.queue.push_back(Gathered { edge: usize::from(edge), number, since: now, commands });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Forgets commands that nobody waits for.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// The commands of the next entry, bounded in bytes; none if none wait.
    pub(super) fn leave(&mut self) -> Vec<Command> {
        let (mut commands, mut bytes) = (Vec::new(), 0);
        while let Some(gathered) = self.queue.front_mut() {
            while let Some(command) = gathered.commands.front() {
                bytes += command.encoded_len();
                if !commands.is_empty() && bytes > limits::ENTRY_BYTES_MAX {
                    return commands;
                }
                self.left[gathered.edge] = gathered.number;
                commands.extend(gathered.commands.pop_front());
            }
            self.queue.pop_front();
        }
        commands
    }

    /// Commands that have left may never arrive. By edge: the number up to which they are given up,
    /// if that is news. The rest of a submission of which something has left goes with it.
    pub(super) fn lose(&mut self) -> Option<Vec<u64>> {
        while self.queue.front().is_some_and(|next| next.number <= self.left[next.edge]) {
            self.queue.pop_front();
        }
        self.give_up()
    }

    /// Drops commands that came before this tick. By edge: the number up to which commands are
    /// given up, if there were any.
    pub(super) fn expire(&mut self, before: u64) -> Option<Vec<u64>> {
        let mut is_news = false;
        while let Some(old) = self.queue.pop_front_if(|next| next.since < before) {
            self.left[old.edge] = old.number;
            is_news = true;
        }
        if is_news { self.lose() } else { None }
    }

    fn give_up(&mut self) -> Option<Vec<u64>> {
        let is_news = self.given_up != self.left;
        self.given_up.clone_from(&self.left);
        is_news.then(|| self.left.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::command::{CommandId, Kind};
    use bytes::Bytes;

    fn submitted(number: u64, sizes: &[usize]) -> Submitted {
        let command = |size: &usize| Command {
            id: CommandId(*size as u64),
            kind: Kind::Put,
            payload: Bytes::from(vec![0; *size]),
        };
        Submitted { commands: sizes.iter().map(command).collect(), number, ..Submitted::default() }
    }

    fn sizes(commands: &[Command]) -> Vec<usize> {
        commands.iter().map(|command| command.payload.len()).collect()
    }

    #[test]
    fn commands_that_have_not_left_outlive_a_loss() {
        let mut submissions = Submissions::new(2);
        submissions.push(0, submitted(1, &[10]), 0);
        submissions.push(1, submitted(2, &[20, 21]), 0);
        assert_eq!(sizes(&submissions.leave()), [10, 20, 21]);
        submissions.push(0, submitted(5, &[30]), 0);
        assert_eq!(submissions.lose(), Some(vec![1, 2]));
        assert_eq!(submissions.lose(), None, "no news");
        assert_eq!(sizes(&submissions.leave()), [30]);
        assert_eq!(submissions.lose(), Some(vec![5, 2]));
    }

    #[test]
    fn a_submission_that_has_left_in_part_is_lost_as_a_whole() {
        let mut submissions = Submissions::new(1);
        let large = limits::ENTRY_BYTES_MAX;
        submissions.push(0, submitted(3, &[large, large]), 0);
        submissions.push(0, submitted(4, &[7]), 0);
        assert_eq!(sizes(&submissions.leave()), [large]);
        assert_eq!(submissions.lose(), Some(vec![3]));
        assert_eq!(sizes(&submissions.leave()), [7]);
    }

    #[test]
    fn commands_wait_for_a_leader_for_a_time() {
        let mut submissions = Submissions::new(1);
        submissions.push(0, submitted(1, &[1]), 0);
        submissions.push(0, submitted(2, &[2]), 5);
        assert_eq!(submissions.expire(0), None);
        assert_eq!(submissions.expire(5), Some(vec![1]));
        assert_eq!(submissions.expire(5), None);
        assert_eq!(sizes(&submissions.leave()), [2]);
    }
}
