//! Clients' connections, shared where an edge has less of its core than others have: the kernel
//! spreads them over the sockets of all edges by a hash, and the core that plays log and state too
//! hands those beyond its share to the other edges, in turn.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;

use crate::limits;
use crate::net::permits::ConnectionPermit;
use crate::queues::mailbox::{ReceiverSeed, Sender, SenderSeed, pair};

/// A connection on its way to the edge of another core. Dropping it closes it.
#[derive(Debug)]
pub struct Handed {
    pub(super) socket: OwnedFd,
    pub(super) permit: ConnectionPermit,
    /// The place of its address among those of clients.
    pub(super) address: usize,
}

/// An edge's part in it, before its core runs.
pub enum SharingSeed {
    /// It keeps what the kernel gives it.
    Keeps,
    /// It hands over what is beyond its share, to each of these.
    Gives(Vec<SenderSeed<Handed>>),
    /// It takes what is handed over.
    Takes(ReceiverSeed<Handed>),
}

/// The parts of so many edges, by their numbers; the first one may be on the core of the log.
#[must_use]
pub fn seeds(edges: usize, first_has_log: bool) -> Vec<SharingSeed> {
    if edges < 2 || !first_has_log {
        return (0..edges).map(|_| SharingSeed::Keeps).collect();
    }
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (1..edges).map(|_| pair(limits::HANDED_CONNECTIONS_MAX)).unzip();
    let takers = receivers.into_iter().map(SharingSeed::Takes);
    [SharingSeed::Gives(senders)].into_iter().chain(takers).collect()
}

/// Core view: where the connections beyond a core's share go.
#[derive(Default)]
pub(super) struct Giver {
    /// Empty until the other cores run.
    others: RefCell<Vec<Sender<Handed>>>,
    next: Cell<usize>,
}

impl Giver {
    /// Opens the mailboxes of the others: nothing is handed to one of them before.
    pub(super) async fn open(&self, seeds: Vec<SenderSeed<Handed>>) {
        for seed in seeds {
            let other = seed.open().await;
            self.others.borrow_mut().push(other);
        }
    }

    /// Whether a new connection goes to another core, where this one has `own` of `all`.
    pub(super) fn is_beyond_share(&self, own: usize, all: usize) -> bool {
        is_beyond_share(own, all, self.others.borrow().len())
    }

    /// Hands a connection over; gives it back where the next core does not come to take any.
    pub(super) fn give(&self, handed: Handed) -> Result<(), Handed> {
        let others = self.others.borrow();
        let Some(turn) = self.next.get().checked_rem(others.len()) else { return Err(handed) };
        self.next.set(turn + 1);
        others[turn].try_send(handed)
    }
}

/// Whether a core that has `own` of `all` connections has its share, beside so many others. They
/// are given no more when half of the places of them all are taken.
fn is_beyond_share(own: usize, all: usize, others: usize) -> bool {
    let share = all / (1 + others * limits::CONNECTIONS_BESIDE_LOG);
    let theirs_max = others * (limits::CONNECTIONS_PER_CORE_MAX / 2);
    own > share && all.saturating_sub(own) < theirs_max
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use futures_lite::future::zip;

    use super::*;
    use crate::net::permits::ConnectionPermits;
    use crate::queues::sleep::on_a_core;

    /// How many of so many connections the core of the log has, all of which come to it.
    fn kept(all: usize, others: usize) -> usize {
        (0..all).fold(0, |own, all| own + usize::from(!is_beyond_share(own, all, others)))
    }

    #[test]
    fn the_core_of_the_log_keeps_a_share() {
        assert_eq!([1, 2, 4, 10, 20, 100].map(|all| kept(all, 1)), [1, 1, 1, 3, 5, 25]);
        assert_eq!([1, 4, 20, 100].map(|all| kept(all, 3)), [1, 1, 2, 10]);
        assert_eq!([1, 20].map(|all| kept(all, 0)), [1, 20], "there is no other core");
    }

    #[test]
    fn none_is_given_more_when_half_of_their_places_are_taken() {
        let half = limits::CONNECTIONS_PER_CORE_MAX / 2;
        assert!(is_beyond_share(half, 2 * half - 1, 1));
        assert!(!is_beyond_share(half, 2 * half, 1));
        assert!(is_beyond_share(half, 2 * half, 2));
    }

    #[test]
    fn one_that_is_handed_over_arrives_and_one_that_is_not_taken_is_closed() {
        on_a_core(async {
            let (permits, giver) = (ConnectionPermits::new(1_000), Giver::default());
            let handed = |address| {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let permit = permits.take().unwrap();
                (Handed { socket: ours.into(), permit, address }, theirs)
            };
            let (connection, _client) = handed(0);
            assert!(giver.give(connection).is_err(), "there is no other core yet");
            assert_eq!(permits.taken(), 0);

            let (sender, receiver) = pair(2);
            let (receiver, ()) = zip(receiver.open(), giver.open(vec![sender])).await;
            let (connection, mut client) = handed(3);
            giver.give(connection).expect("there is room");
            let Handed { socket, permit, address } = receiver.receive().await.unwrap();
            assert_eq!((address, permits.taken()), (3, 1));
            client.write_all(b"hello").unwrap();
            let mut said = [0; 5];
            UnixStream::from(socket).read_exact(&mut said).unwrap();
            assert_eq!(&said, b"hello");
            drop(permit);

            let (mut waiting, mut back) = (Vec::new(), None);
            while back.is_none() {
                let (connection, client) = handed(0);
                back = giver.give(connection).err();
                waiting.push(client);
                assert!(waiting.len() < 100, "the mailbox is bounded");
            }
            assert!(waiting.len() > 2, "two may wait");
            drop((back, receiver, giver));
            for mut client in waiting {
                assert_eq!(client.read(&mut [0]).unwrap(), 0, "closed");
            }
            assert_eq!(permits.taken(), 0);
        });
    }

    fn drawn(edges: usize, first_has_log: bool) -> Vec<&'static str> {
        let name = |seed| match seed {
            SharingSeed::Keeps => "keeps",
            SharingSeed::Gives(_) => "gives",
            SharingSeed::Takes(_) => "takes",
        };
        seeds(edges, first_has_log).into_iter().map(name).collect()
    }

    #[test]
    fn only_an_edge_beside_the_log_gives() {
        assert_eq!(drawn(1, true), ["keeps"]);
        assert_eq!(drawn(2, true), ["gives", "takes"]);
        assert_eq!(drawn(4, true), ["gives", "takes", "takes", "takes"]);
        assert_eq!(drawn(4, false), ["keeps"; 4]);
    }
}
