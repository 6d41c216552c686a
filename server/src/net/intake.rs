//! Takes in connections. Those that are accepted here are served, or handed to another core, if
//! there is a permit for them, and closed otherwise; those that another core hands over have one.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use glommio::net::{TcpListener, TcpStream};
use serde_json::json;

use crate::config::ListenAddress;
use crate::limits;
use crate::net::closing::ClosingLine;
use crate::net::connection;
use crate::net::context::EdgeContext;
use crate::net::listen;
use crate::net::permits::{ConnectionPermit, ConnectionPermits};
use crate::net::sharing::{Giver, Handed};
use crate::net::socket::{Opened, Socket};
use crate::observe::bounds::Bound;
use crate::observe::log;
use crate::queues::gate::Gate;
use crate::queues::mailbox::ReceiverSeed;
use crate::queues::sleep::sleep;
use crate::queues::turn::give_way;

/// Core view: takes in the connections to one group of addresses.
pub(super) struct Intake {
    edge: Rc<EdgeContext>,
    addresses: Vec<Door>,
    gate: Gate,
    permits: Arc<ConnectionPermits>,
    closing: Rc<ClosingLine<Opened>>,
    /// Gets what is beyond this core's share.
    giver: Rc<Giver>,
}

/// An address that is listened on.
struct Door {
    address: Rc<ListenAddress>,
    /// When refused connections were last logged, in milliseconds of the edge's clock.
    told: Cell<Option<u64>>,
}

/// Accepts connections to the address at this place for as long as it is not dropped.
pub(super) async fn accept(listener: TcpListener, intake: Rc<Intake>, address: usize) {
    let mut accepted = 0_usize;
    loop {
        let Ok(stream) = listener.accept().await else {
            sleep(limits::ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        intake.take(stream, address);
        accepted += 1;
        end_turn(accepted).await;
    }
}

/// Gives way behind so many connections: the next one may be there already.
async fn end_turn(taken: usize) {
    if taken.is_multiple_of(limits::ACCEPTS_PER_TURN) {
        give_way().await;
    }
}

impl Intake {
    /// For connections to `addresses`: as many as there are `permits`, until `gate` is closed.
    pub(super) fn new(
        edge: &Rc<EdgeContext>,
        addresses: &[ListenAddress],
        (gate, permits): (&Gate, &Arc<ConnectionPermits>),
    ) -> Self {
        let door =
            |address: &ListenAddress| Door { address: Rc::new(address.clone()), told: Cell::new(None) };
        Self {
            edge: Rc::clone(edge),
            addresses: addresses.iter().map(door).collect(),
            gate: gate.clone(),
            permits: Arc::clone(permits),
            closing: ClosingLine::new(),
            giver: Rc::default(),
        }
    }

    /// Closes what is left of connections, for as long as it is not dropped.
    pub(super) async fn close_left(self: Rc<Self>) {
        let (closing, clock) = (Rc::clone(&self.closing), self.edge.clock);
        closing.run(clock).await;
    }

    /// Where connections beyond this core's share go.
    pub(super) fn giver(&self) -> &Rc<Giver> {
        &self.giver
    }

    /// Takes in a connection to the address at this place.
    fn take(&self, stream: TcpStream, address: usize) {
        let Some(permit) = admit(&self.permits, &self.closing) else {
            // A member that has too many connections closes new ones at once: clients try another
            // member.
            drop(stream);
            self.edge.api.reached(Bound::Connections);
            let Door { address, told } = &self.addresses[address];
            return tell_refused(told, self.edge.clock.milliseconds(), address, &self.permits);
        };
        if self.giver.keeps(self.permits.given()) {
            return self.serve(stream, permit, address);
        }
        let handed = Handed { socket: listen::release(stream), permit, address };
        if let Err(Handed { socket, permit, address }) = self.giver.give(handed) {
            self.serve(listen::adopt(socket), permit, address);
        }
    }

    /// Takes in those that another core hands over, until that one stops.
    pub(super) async fn take_handed(self: Rc<Self>, from: ReceiverSeed<Handed>) {
        let (from, mut taken) = (from.open().await, 0_usize);
        while let Some(Handed { socket, permit, address }) = from.receive().await {
            self.serve(listen::adopt(socket), permit, address);
            taken += 1;
            end_turn(taken).await;
        }
    }

    /// Serves a connection; when the member stops, it is closed instead.
    fn serve(&self, stream: TcpStream, permit: ConnectionPermit, address: usize) {
        let Some(pass) = self.gate.enter(usize::MAX).map(Rc::new) else { return };
        let address = &self.addresses[address].address;
        let socket = Socket::new((stream, permit, Rc::clone(&pass)), &self.closing);
        let serving = connection::serve(socket, Rc::clone(address), Rc::clone(&self.edge), pass);
        glommio::spawn_local(serving).detach();
    }
}

/// A permit for one more connection, if there is one. One whose client has gone may be closed for
/// it before its turn, if it waits on this core: one that waits on another core has its permit for
/// some milliseconds more.
fn admit<T>(permits: &Arc<ConnectionPermits>, closing: &ClosingLine<T>) -> Option<ConnectionPermit> {
    permits.take().or_else(|| closing.close_one().then(|| permits.take()).flatten())
}

/// Logs that connections are refused, once in `REFUSED_INTERVAL`.
fn tell_refused(told: &Cell<Option<u64>>, now: u64, address: &ListenAddress, permits: &ConnectionPermits) {
    let interval = u64::try_from(limits::REFUSED_INTERVAL.as_millis()).unwrap_or(u64::MAX);
    if told.get().is_some_and(|told| now.saturating_sub(told) < interval) {
        return;
    }
    told.set(Some(now));
    log::warn(
        "too many connections: new connections are closed",
        json!({"address": address.place.to_string(), "connections-max": permits.max()}),
    );
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _, Write as _};

    use futures_lite::future::poll_once;

    use super::*;
    use crate::net::listen::connect_file;
    use crate::queues::sleep::on_a_core;

    #[test]
    fn one_that_waits_to_be_closed_makes_room_for_a_new_one() {
        let (permits, line) = (ConnectionPermits::new(2), ClosingLine::new());
        let mut open: Vec<_> = std::iter::from_fn(|| admit(&permits, &line)).take(3).collect();
        assert_eq!(open.len(), 2, "all that there may be, none of which has gone");
        // Two clients go away: each of them has its permit until it is closed.
        open.drain(..).for_each(|gone| line.push(gone));
        assert_eq!(permits.taken(), 2);
        for _ in 0..2 {
            // One is closed for each that comes, and no more than that.
            open.push(admit(&permits, &line).unwrap());
            assert_eq!(permits.taken(), 2);
        }
        assert!(admit(&permits, &line).is_none() && !line.close_one());
        // Where there is room nothing is closed before its turn.
        drop(open.pop());
        line.push(open.pop().unwrap());
        assert!(admit(&permits, &line).is_some());
        assert!(line.close_one());
        assert_eq!(permits.taken(), 0);
    }

    #[test]
    fn a_socket_that_waits_to_be_closed_has_its_permit_and_its_place() {
        on_a_core(async {
            let (gate, permits, line) = (Gate::default(), ConnectionPermits::new(1), ClosingLine::new());
            let dir = tempfile::tempdir().unwrap();
            let listener = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
            let stream = connect_file(&dir.path().join("socket")).unwrap();
            let mut theirs = listener.accept().unwrap().0;
            theirs.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            let pass = Rc::new(gate.enter(usize::MAX).unwrap());
            let socket = Socket::new((stream, permits.take().unwrap(), Rc::clone(&pass)), &line);
            drop((socket, pass));
            theirs.write_all(&[1]).expect("it is open");
            assert!(permits.take().is_none() && poll_once(gate.drained()).await.is_none());
            assert!(line.close_one());
            assert!(permits.take().is_some() && poll_once(gate.drained()).await.is_some());
            // Reset, as a rule: there is a byte that nobody has read.
            let closed = theirs.read(&mut [0]).map_err(|error| error.kind());
            assert!(matches!(closed, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{closed:?}");
        });
    }
}
