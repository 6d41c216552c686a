//! Linearizable reads that wait until this member has applied everything that was committed when
//! they came.
//!
//! All reads of a turn share a ticket, which leaves the edge with the batch of the turn. Word comes
//! back for tickets in their order: reads up to one may be served from the newest View, or are
//! refused. A sole voter's reads wait for nothing and never come here.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use revd_member::error::Error;

/// Edge view: the reads that wait, by ticket.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Reads of this turn, whose ticket has not left the edge.
    gathering: Option<Rc<RefCell<Round>>>,
    /// Rounds whose tickets have left, in their order.
    under_way: VecDeque<Ticket>,
    /// Tickets so far.
    tickets: u64,
    /// Reads of rounds that are not over. One that is given up counts until its round is over.
    waiting: usize,
}

#[derive(Debug)]
struct Ticket {
    number: u64,
    /// The sweep after which it left.
    since: u64,
    round: Rc<RefCell<Round>>,
}

/// The reads of one turn.
#[derive(Debug, Default)]
struct Round {
    reads: usize,
    wakers: Vec<Waker>,
    result: Option<Result<(), Error>>,
}

/// Resolves when the newest View holds everything that was committed when the read came.
#[derive(Debug)]
#[must_use = "a read that does not wait is not linearizable"]
pub struct WaitingRead {
    round: Rc<RefCell<Round>>,
    /// Its place among the round's wakers.
    place: Option<usize>,
}

impl Reads {
    /// Adds a read to the round of this turn.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when `waiting_max` reads wait.
    pub(super) fn begin(&mut self, waiting_max: usize) -> Result<WaitingRead, Error> {
        if self.waiting >= waiting_max {
            return Err(Error::TooManyRequests);
        }
        self.waiting += 1;
        let round = Rc::clone(self.gathering.get_or_insert_default());
        round.borrow_mut().reads += 1;
        Ok(WaitingRead { round, place: None })
    }

    /// Some read has yet to leave.
    pub(super) fn is_gathering(&self) -> bool {
        self.gathering.is_some()
    }

    /// The ticket of the reads that have gathered, if there are any.
    pub(super) fn take_ticket(&mut self, sweeps: u64) -> Option<u64> {
        let round = self.gathering.take()?;
        self.tickets += 1;
        self.under_way.push_back(Ticket { number: self.tickets, since: sweeps, round });
        Some(self.tickets)
    }

    /// Ends the wait of all reads up to this ticket.
    pub(super) fn end(&mut self, ticket: u64, result: &Result<(), Error>) {
        self.end_while(result, |first| first.number <= ticket);
    }

    /// Reads whose tickets left more than `sweeps_max` sweeps before get [`Error::Timeout`].
    pub(super) fn sweep(&mut self, sweeps: u64, sweeps_max: u64) {
        self.end_while(&Err(Error::Timeout), |first| sweeps - first.since > sweeps_max);
    }

    /// The member stops.
    pub(super) fn close(&mut self) {
        let _ = self.take_ticket(0);
        self.end_while(&Err(Error::Stopped), |_| true);
    }

    fn end_while(&mut self, result: &Result<(), Error>, is_over: impl Fn(&Ticket) -> bool) {
        while let Some(Ticket { round, .. }) = self.under_way.pop_front_if(|first| is_over(first)) {
            let round = &mut *round.borrow_mut();
            self.waiting -= round.reads;
            round.result = Some(result.clone());
            round.wakers.drain(..).for_each(Waker::wake);
        }
    }
}

impl Future for WaitingRead {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { round, place } = &mut *self;
        let round = &mut *round.borrow_mut();
        if let Some(result) = &round.result {
            return Poll::Ready(result.clone());
        }
        match place {
            Some(place) => round.wakers[*place].clone_from(context.waker()),
            None => {
                *place = Some(round.wakers.len());
                round.wakers.push(context.waker().clone());
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    fn is_waiting(read: &mut WaitingRead) -> bool {
        block_on(poll_once(read)).is_none()
    }

    #[test]
    fn reads_of_a_turn_share_a_ticket_and_later_ones_wait_for_theirs() {
        let mut reads = Reads::default();
        assert_eq!(reads.take_ticket(0), None, "a turn without reads asks for nothing");
        let mut first = [reads.begin(9).unwrap(), reads.begin(9).unwrap()];
        assert!(first.iter_mut().all(is_waiting));
        assert_eq!(reads.take_ticket(0), Some(1));
        assert_eq!(reads.take_ticket(0), None);
        let mut second = reads.begin(9).unwrap();
        // It came after the first round began, whose word says nothing about it.
        reads.end(1, &Ok(()));
        assert!(is_waiting(&mut second));
        assert_eq!(first.map(block_on), [Ok(()), Ok(())]);
        let third = (reads.take_ticket(0), reads.begin(9).unwrap(), reads.take_ticket(0));
        assert_eq!((third.0, third.2), (Some(2), Some(3)));
        // The word for a ticket holds for those before it.
        reads.end(3, &Err(Error::LeaderChanged));
        assert_eq!([second, third.1].map(block_on), [Err(Error::LeaderChanged), Err(Error::LeaderChanged)]);
        reads.end(3, &Ok(()));
        assert_eq!((reads.waiting, reads.under_way.len()), (0, 0));
    }

    #[test]
    fn reads_are_bounded_also_those_that_are_given_up() {
        let mut reads = Reads::default();
        drop(reads.begin(2).unwrap());
        let kept = reads.begin(2).unwrap();
        assert_eq!(reads.begin(2).unwrap_err(), Error::TooManyRequests);
        reads.take_ticket(0);
        assert_eq!(reads.begin(2).unwrap_err(), Error::TooManyRequests);
        reads.end(1, &Ok(()));
        assert_eq!(block_on(kept), Ok(()));
        assert!(reads.begin(2).is_ok());
    }

    #[test]
    fn reads_without_an_answer_time_out_and_those_at_the_end_are_refused() {
        let mut reads = Reads::default();
        let first = reads.begin(9).unwrap();
        reads.take_ticket(5);
        let mut second = reads.begin(9).unwrap();
        reads.take_ticket(6);
        let third = reads.begin(9).unwrap();
        reads.sweep(7, 2);
        assert!(is_waiting(&mut second));
        reads.sweep(8, 2);
        assert_eq!(block_on(first), Err(Error::Timeout));
        assert!(is_waiting(&mut second));
        reads.close();
        assert_eq!([second, third].map(block_on), [Err(Error::Stopped), Err(Error::Stopped)]);
    }
}
