//! Takes in connections, those that are accepted here and those that another core hands over: each
//! is served if there is a place for it, and closed otherwise.

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
use crate::queues::gate::{Gate, Pass};
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
        accepted += 1;
        if accepted.is_multiple_of(limits::ACCEPTS_PER_TURN) {
            give_way().await; // the next connection may be there already
        }
        intake.take(stream, address);
    }
}

impl Intake {
    /// For connections to `addresses`, of which `gate` lets so many in as `permits` allow.
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
        let Some((stream, permit)) = self.hand_over(stream, address) else { return };
        let entered = match permit {
            Some(permit) => enter(&self.gate, &self.closing).map(|pass| (pass, permit)),
            None => admit(&self.gate, &self.permits, &self.closing),
        };
        self.serve(stream, address, entered);
    }

    /// Takes in those that another core hands over, for as long as it is not dropped.
    pub(super) async fn take_handed(self: Rc<Self>, from: ReceiverSeed<Handed>) {
        let from = from.open().await;
        while let Some(Handed { socket, permit, address }) = from.receive().await {
            let entered = enter(&self.gate, &self.closing).map(|pass| (pass, permit));
            self.serve(listen::adopt(socket), address, entered);
            give_way().await; // the next one may be there already
        }
    }

    /// Gives a connection to another core if this one has its share; otherwise it comes back.
    fn hand_over(&self, stream: TcpStream, address: usize) -> Option<(TcpStream, Option<ConnectionPermit>)> {
        if !self.giver.is_beyond_share(self.gate.inside(), self.permits.taken()) {
            return Some((stream, None));
        }
        // Without a permit nothing is handed over: a connection that waits here is closed for it.
        let Some(permit) = self.permits.take() else { return Some((stream, None)) };
        let handed = Handed { socket: listen::release(stream), permit, address };
        let Handed { socket, permit, .. } = self.giver.give(handed).err()?;
        Some((listen::adopt(socket), Some(permit)))
    }

    fn serve(&self, stream: TcpStream, address: usize, entered: Option<(Pass, ConnectionPermit)>) {
        let Door { address, told } = &self.addresses[address];
        // A member that has too many connections closes new ones at once: clients try another
        // member.
        let Some((pass, permit)) = entered else {
            drop(stream);
            self.edge.api.reached(Bound::Connections);
            return tell_refused(told, self.edge.clock.milliseconds(), address, &self.permits);
        };
        let pass = Rc::new(pass);
        let socket = Socket::new((stream, permit, Rc::clone(&pass)), &self.closing);
        let serving = connection::serve(socket, Rc::clone(address), Rc::clone(&self.edge), pass);
        glommio::spawn_local(serving).detach();
    }
}

/// A place for one more connection, if there is one. One whose client has gone may be closed for it
/// before its turn.
fn enter<T>(gate: &Gate, closing: &ClosingLine<T>) -> Option<Pass> {
    or_close_one(closing, || gate.enter(limits::CONNECTIONS_PER_CORE_MAX))
}

/// A place for one more connection, and a permit, if there are. One whose client has gone may be
/// closed for it before its turn, if it waits on this core: one that waits on another core has a
/// permit of all cores for some milliseconds more.
fn admit<T>(
    gate: &Gate,
    permits: &Arc<ConnectionPermits>,
    closing: &ClosingLine<T>,
) -> Option<(Pass, ConnectionPermit)> {
    or_close_one(closing, || Some((gate.enter(limits::CONNECTIONS_PER_CORE_MAX)?, permits.take()?)))
}

/// Tries again behind one that was closed for it.
fn or_close_one<T, R>(closing: &ClosingLine<T>, enter: impl Fn() -> Option<R>) -> Option<R> {
    enter().or_else(|| closing.close_one().then(enter).flatten())
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
        json!({
            "address": address.place.to_string(), "connections-max": permits.max(),
            "connections-per-core-max": limits::CONNECTIONS_PER_CORE_MAX,
        }),
    );
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _, Write as _};

    use super::*;
    use crate::net::listen::connect_file;
    use crate::queues::sleep::on_a_core;

    #[test]
    fn one_that_waits_to_be_closed_makes_room_for_a_new_one() {
        for (permits_max, inside_max) in [(2, 2), (usize::MAX, limits::CONNECTIONS_PER_CORE_MAX)] {
            let (gate, permits, line) =
                (Gate::default(), ConnectionPermits::new(permits_max), ClosingLine::new());
            let mut open: Vec<_> =
                std::iter::from_fn(|| admit(&gate, &permits, &line)).take(inside_max + 1).collect();
            assert_eq!(open.len(), inside_max, "all that there may be, none of which has gone");
            // Two clients go away: each of them has its place and its permit until it is closed.
            open.drain(..2).for_each(|gone| line.push(gone));
            assert_eq!(gate.inside(), inside_max);
            for _ in 0..2 {
                // One is closed for each that comes, and no more than that.
                open.push(admit(&gate, &permits, &line).unwrap());
                assert_eq!(gate.inside(), inside_max);
            }
            assert!(admit(&gate, &permits, &line).is_none() && !line.close_one());
            // Where there is room nothing is closed before its turn.
            drop(open.pop());
            line.push(open.pop().unwrap());
            assert!(admit(&gate, &permits, &line).is_some());
            assert!(line.close_one());
            assert_eq!(gate.inside(), inside_max - 2);
        }
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
            let pass = Rc::new(gate.enter(1).unwrap());
            let socket = Socket::new((stream, permits.take().unwrap(), Rc::clone(&pass)), &line);
            drop((socket, pass));
            theirs.write_all(&[1]).expect("it is open");
            assert!(permits.take().is_none() && gate.inside() == 1);
            assert!(line.close_one());
            assert!(permits.take().is_some() && gate.inside() == 0);
            // Reset, as a rule: there is a byte that nobody has read.
            let closed = theirs.read(&mut [0]).map_err(|error| error.kind());
            assert!(matches!(closed, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{closed:?}");
        });
    }
}
