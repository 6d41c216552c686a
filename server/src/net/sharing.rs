//! Clients' connections, shared where an edge has less of its core than others have: the kernel
//! spreads them over the sockets of all edges by a hash, and the core that plays log and state too
//! hands those beyond its share to the other edges, in turn. The share is one of the connections
//! that come, not of those that are open: beside old ones, new ones are spread as well.

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

/// The parts of so many edges, by their numbers. The first one gives if it has less of a CPU than
/// the others: if its core has the log, and no other core is on its CPU.
#[must_use]
pub fn seeds(edges: usize, first_gives: bool) -> Vec<SharingSeed> {
    if edges < 2 || !first_gives {
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
    /// The one whose turn it is.
    next: Cell<usize>,
    /// Connections that were kept as this core's share.
    kept: Cell<usize>,
}

impl Giver {
    /// Opens the mailbox of one of the others: nothing is handed to it before.
    pub(super) async fn open(&self, seed: SenderSeed<Handed>) {
        let other = seed.open().await;
        self.others.borrow_mut().push(other);
    }

    /// Hands nothing over any more; each of the others learns that nothing more comes.
    pub(super) fn close(&self) {
        self.others.take();
    }

    /// Whether a new connection is one of this core's share, where so many have come to all cores
    /// with it, since the start. It counts as kept if it is. A share that few of those that came
    /// here have filled is not made good for long: clients can choose where they come to.
    pub(super) fn keeps(&self, come: usize) -> bool {
        let parts = 1 + self.others.borrow().len() * limits::CONNECTIONS_BESIDE_LOG;
        let share = come.div_ceil(parts);
        let kept = self.kept.get().max(share.saturating_sub(limits::CONNECTIONS_MADE_GOOD));
        let keeps = kept < share;
        self.kept.set(kept + usize::from(keeps));
        keeps
    }

    /// Hands a connection to the next of the others that takes it now; gives it back if none does.
    pub(super) fn give(&self, mut handed: Handed) -> Result<(), Handed> {
        let others = self.others.borrow();
        for _ in 0..others.len() {
            let turn = self.next.get() % others.len();
            self.next.set(turn + 1);
            match others[turn].try_send(handed) {
                Ok(()) => return Ok(()),
                Err(back) => handed = back,
            }
        }
        Err(handed)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use futures_lite::future::zip;

    use super::*;
    use crate::net::permits::ConnectionPermits;
    use crate::queues::mailbox::Receiver;
    use crate::queues::sleep::on_a_core;

    /// Runs with a giver beside so many others, and their ends of its mailboxes.
    async fn beside(others: usize) -> (Giver, Vec<Receiver<Handed>>) {
        let (giver, mut receivers) = (Giver::default(), Vec::new());
        for _ in 0..others {
            let (sender, receiver) = pair(2);
            let (receiver, ()) = zip(receiver.open(), giver.open(sender)).await;
            receivers.push(receiver);
        }
        (giver, receivers)
    }

    /// A connection to the address at this place, and its client's end.
    fn connection(permits: &Arc<ConnectionPermits>, address: usize) -> (Handed, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Handed { socket: ours.into(), permit: permits.take().unwrap(), address }, theirs)
    }

    #[test]
    fn the_core_of_the_log_keeps_a_share_of_those_that_come() {
        on_a_core(async {
            for (others, all, kept) in
                [(0, 20, 20), (1, 1, 1), (1, 4, 1), (1, 20, 5), (1, 100, 25), (3, 20, 2), (3, 100, 10)]
            {
                let (giver, _receivers) = beside(others).await;
                let keeps = |come: &usize| giver.keeps(*come);
                assert_eq!((1..=all).filter(keeps).count(), kept, "of {all} beside {others} others");
            }
            // Every second one comes here, and it has kept none for a while: it has the same share.
            let (giver, _receivers) = beside(1).await;
            let keeps = |come: &usize| giver.keeps(*come);
            assert_eq!((1..=1_000).step_by(2).filter(keeps).count(), 250);
            // Very many have come to the others only.
            let kept = (1_000_000..1_001_000).step_by(2).filter(keeps).count();
            assert!((250..=250 + limits::CONNECTIONS_MADE_GOOD).contains(&kept), "{kept}");
        });
    }

    #[test]
    fn where_one_takes_no_more_the_next_one_is_given_to() {
        on_a_core(async {
            let permits = ConnectionPermits::new(1_000);
            let (giver, mut receivers) = beside(2).await;
            drop(receivers.remove(0));
            let first = receivers.remove(0);
            for address in 0..4 {
                giver.give(connection(&permits, address).0).expect("one of them takes it");
                assert_eq!(first.receive().await.unwrap().address, address);
            }
            giver.give(connection(&permits, 4).0).expect("it waits");
            giver.close();
            assert!(giver.give(connection(&permits, 5).0).is_err(), "it has ended");
            assert_eq!(first.receive().await.unwrap().address, 4);
            assert!(first.receive().await.is_none(), "and the others are told so");
        });
    }

    #[test]
    fn one_that_is_handed_over_arrives_and_one_that_is_not_taken_is_closed() {
        on_a_core(async {
            let permits = ConnectionPermits::new(1_000);
            assert!(Giver::default().give(connection(&permits, 0).0).is_err(), "there is no other core yet");
            assert_eq!(permits.taken(), 0);

            let (giver, mut receivers) = beside(1).await;
            let receiver = receivers.remove(0);
            let (handed, mut client) = connection(&permits, 3);
            giver.give(handed).expect("there is room");
            let Handed { socket, permit, address } = receiver.receive().await.unwrap();
            assert_eq!((address, permits.taken()), (3, 1));
            client.write_all(b"hello").unwrap();
            let mut said = [0; 5];
            UnixStream::from(socket).read_exact(&mut said).unwrap();
            assert_eq!(&said, b"hello");
            drop(permit);

            let (mut waiting, mut back) = (Vec::new(), None);
            while back.is_none() {
                let (handed, client) = connection(&permits, 0);
                back = giver.give(handed).err();
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

    fn drawn(edges: usize, first_gives: bool) -> Vec<&'static str> {
        let name = |seed| match seed {
            SharingSeed::Keeps => "keeps",
            SharingSeed::Gives(_) => "gives",
            SharingSeed::Takes(_) => "takes",
        };
        seeds(edges, first_gives).into_iter().map(name).collect()
    }

    #[test]
    fn only_an_edge_that_has_less_of_a_cpu_gives() {
        assert_eq!(drawn(1, true), ["keeps"]);
        assert_eq!(drawn(2, true), ["gives", "takes"]);
        assert_eq!(drawn(4, true), ["gives", "takes", "takes", "takes"]);
        assert_eq!(drawn(4, false), ["keeps"; 4]);
    }
}
