//! From a socket to a service and back; services (`api`) know nothing of it.
//!
//! - `listen` opens the sockets of addresses and of files (`unix`); `intake` accepts connections,
//!   `sharing` hands some of them to other cores; `connection` finds out which protocol a client
//!   speaks; `context` is what the connections of an edge share, `permits` bounds their number, and
//!   `closing` closes their sockets in turns.
//! - gRPC: `http2` drives a connection. `request_headers` decodes header blocks, `messages` cuts
//!   request bodies into messages, `calls` keeps the calls under way and `ready_queue` those that
//!   were woken, `reply` encodes response headers. `keepalive`, `deadline` and `pace` watch the
//!   time, `busy` shares the core between connections, `unread` knows which of them have not read
//!   everything. The protocol itself is in `revd_http2`.
//! - `tls` stands between a socket and all of this, where an address asks for it.
//! - Plain requests (`plain`): `http` answers them, `health` those of probes; HTTP/1.1 comes
//!   through `http1`.

mod busy;
mod calls;
mod closing;
mod connection;
mod context;
mod counted;
mod deadline;
mod health;
pub(crate) mod http;
pub(crate) mod http1;
mod http2;
mod intake;
mod keepalive;
pub mod listen;
mod messages;
mod pace;
pub mod permits;
pub(crate) mod plain;
mod ready_queue;
mod reply;
mod request_headers;
pub mod sharing;
pub(crate) mod socket;
pub mod tls;
pub mod unix;
pub mod unread;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::api::Api;
use crate::clock::Ticker;
use crate::config::{Keepalive, ListenAddress};
use crate::limits;
use crate::net::context::EdgeContext;
use crate::net::intake::Intake;
use crate::net::messages::MessageLimits;
use crate::net::permits::ConnectionPermits;
use crate::net::sharing::SharingSeed;
use crate::net::tls::{HandshakeTurns, TlsDomain};
use crate::net::unix::UnixSockets;
use crate::net::unread::Unread;
use crate::observe::seldom::Seldom;
use crate::queues::gate::Gate;
use crate::queues::latch::Latch;
use crate::queues::sleep::sleep;

/// Addresses of an edge, and limits of its connections.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    /// Where clients connect.
    pub clients: ListenGroup,
    /// Where nothing but metrics and health is asked for.
    pub metrics: ListenGroup,
    /// Certificates for those that speak TLS.
    pub tls: Arc<TlsDomain>,
    /// A larger message is refused.
    pub message_bytes_max: usize,
    /// Streams a client may have open on a connection.
    pub streams_max: u32,
    /// When clients may ping, and when silent ones are pinged.
    pub keepalive: Keepalive,
    /// Those of the addresses that are files.
    pub sockets: Arc<UnixSockets>,
}

/// Addresses of one purpose.
#[derive(Debug, Clone)]
pub struct ListenGroup {
    /// Where.
    pub addresses: Vec<ListenAddress>,
    /// Permits for connections there, to any core.
    pub permits: Arc<ConnectionPermits>,
}

/// Edge view: what this core listens on. Those that ask for metrics and health are answered from
/// the start and have places of their own, so that no crowd of clients hides how the member is.
pub struct Listeners {
    edge: Rc<EdgeContext>,
    config: ListenConfig,
    /// The files among the addresses, until nothing listens any more: they go with it.
    sockets: RefCell<Arc<UnixSockets>>,
    /// Connections of clients, and at addresses of metrics.
    gate: Gate,
    metrics_gate: Gate,
    /// Its part in the sharing of clients' connections, until it has begun.
    sharing: RefCell<SharingSeed>,
    /// Cancelled by being dropped.
    accepting: RefCell<Vec<glommio::Task<()>>>,
}

impl Listeners {
    /// Listens nowhere yet.
    #[must_use]
    pub fn new(api: Rc<Api>, unread: Rc<Unread>, (mut config, sharing): (ListenConfig, SharingSeed)) -> Self {
        let sockets = RefCell::new(std::mem::take(&mut config.sockets));
        let edge = Rc::new(EdgeContext {
            api,
            read_buffer: Rc::new(RefCell::new(vec![0; limits::READ_BYTES].into())),
            spare_buffers: Rc::default(),
            unread,
            busy: Rc::default(),
            messages: MessageLimits { bytes_max: config.message_bytes_max, unpacked: Cell::new(0) },
            http2: revd_http2::Config {
                streams_max: config.streams_max,
                stream_window: limits::STREAM_WINDOW_BYTES,
                connection_window: limits::CONNECTION_WINDOW_BYTES,
                header_bytes_max: limits::HEADER_LIST_BYTES_MAX,
                resets_max: limits::RESETS_PER_SECOND,
                resets_first: limits::RESETS_IN_FIRST_SECOND,
                idle_frames_max: limits::IDLE_FRAMES_PER_SECOND,
                settings_max: limits::SETTINGS_PER_SECOND,
                header_block_bytes_max: limits::HEADER_BLOCK_BYTES_MAX,
                out_bytes_max: limits::SEND_BUFFER_BYTES,
            },
            keepalive: config.keepalive,
            tls: Arc::clone(&config.tls),
            handshakes: HandshakeTurns::new(1),
            handshakes_for_metrics: HandshakeTurns::new(1),
            rejected: Seldom::default(),
            clock: Ticker::new(),
        });
        Self {
            edge,
            config,
            sockets,
            gate: Gate::default(),
            metrics_gate: Gate::default(),
            sharing: RefCell::new(sharing),
            accepting: RefCell::default(),
        }
    }

    fn open(&self, group: &ListenGroup, gate: &Gate) -> io::Result<Rc<Intake>> {
        let intake = Rc::new(Intake::new(&self.edge, &group.addresses, (gate, &group.permits)));
        glommio::spawn_local(Rc::clone(&intake).close_left()).detach();
        for (at, address) in group.addresses.iter().enumerate() {
            let listener = listen::bind(&address.place, &self.config.keepalive, &self.sockets.borrow())?;
            self.run(intake::accept(listener, Rc::clone(&intake), at));
        }
        Ok(intake)
    }

    /// Runs a task until nothing is accepted any more.
    fn run(&self, accepting: impl Future<Output = ()> + 'static) {
        self.accepting.borrow_mut().push(glommio::spawn_local(accepting));
    }

    /// Takes this edge's part in the sharing of connections.
    fn share(&self, intake: &Rc<Intake>) {
        match self.sharing.replace(SharingSeed::Keeps) {
            SharingSeed::Keeps => {}
            SharingSeed::Gives(others) => {
                for other in others {
                    let giver = Rc::clone(intake.giver());
                    self.run(async move { giver.open(other).await });
                }
            }
            // It ends behind the giver, which tells it so, or with its core: nothing waits to be
            // taken for as long as the giver still has connections.
            SharingSeed::Takes(from) => {
                glommio::spawn_local(Rc::clone(intake).take_handed(from)).detach();
            }
        }
    }

    /// Answers those that ask for metrics and health at addresses of their own.
    ///
    /// # Errors
    /// When such an address cannot be listened on.
    pub fn open_metrics(&self) -> io::Result<()> {
        self.open(&self.config.metrics, &self.metrics_gate).map(drop)
    }

    /// Serves this core's share of the clients until asked to stop; then open calls have a little
    /// time to finish. Calls `listening` once clients can connect.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub async fn serve(&self, stop: Latch, listening: impl FnOnce()) -> io::Result<()> {
        let intake = self.open(&self.config.clients, &self.gate)?;
        self.share(&intake);
        listening();
        stop.wait().await;
        let accepting = self.accepting.take();
        for task in accepting {
            task.cancel().await;
        }
        // The kernel closes what waits in the files' backlogs, and refuses others.
        self.sockets.take();
        intake.giver().close();
        drop(intake);
        self.edge.api.stop();
        self.gate.close();
        self.metrics_gate.close();
        let drained = async {
            self.gate.drained().await;
            self.metrics_gate.drained().await;
        };
        futures_lite::future::or(drained, sleep(limits::DRAIN_DEADLINE)).await;
        Ok(())
    }
}
