//! The context that all connections of an edge share: services, configuration, buffers, and the
//! count of those that are busy or behind.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::api::Api;
use crate::clock::Ticker;
use crate::config::Keepalive;
use crate::limits;
use crate::net::busy::BusyConnections;
use crate::net::messages::MessageLimits;
use crate::net::tls::{HandshakeTurns, TlsDomain};
use crate::net::unread::Unread;
use crate::observe::seldom::Seldom;

/// Edge view: made once, when the edge begins to listen.
pub(super) struct EdgeContext {
    pub api: Rc<Api>,
    /// The buffer that every connection reads its socket into.
    pub read_buffer: Rc<RefCell<Box<[u8]>>>,
    pub spare_buffers: Rc<RefCell<SpareBuffers>>,
    /// Connections that have not read everything.
    pub unread: Rc<Unread>,
    /// Connections that have asked for another turn.
    pub busy: Rc<BusyConnections>,
    pub messages: MessageLimits,
    pub http2: revd_http2::Config,
    pub keepalive: Keepalive,
    /// Certificates for clients.
    pub tls: Arc<TlsDomain>,
    pub handshakes: HandshakeTurns,
    /// Those at addresses of metrics.
    pub handshakes_for_metrics: HandshakeTurns,
    /// Lines about those that failed.
    pub rejected: Seldom,
    pub clock: Ticker,
}

/// Edge view: memory that no connection owns, so that idle connections have no buffers.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers {
    /// Slots of the calls that were woken, for the connection whose turn it is.
    pub woken_slots: Vec<usize>,
    send_buffers: Vec<Vec<u8>>,
}

impl SpareBuffers {
    /// An empty send buffer, if one is left.
    pub(super) fn take_send_buffer(&mut self) -> Option<Vec<u8>> {
        self.send_buffers.pop()
    }

    /// Keeps a send buffer for another connection, unless there are enough or it is large.
    pub(super) fn keep_send_buffer(&mut self, buffer: Vec<u8>) {
        let has_place = self.send_buffers.len() < limits::SPARE_BUFFERS;
        if has_place && buffer.capacity() <= limits::SPARE_BUFFER_BYTES_MAX {
            self.send_buffers.push(buffer);
        }
    }
}
