//! From a socket to a service and back. This first transport is hyper; services (`api`) know nothing of it.
//!
//! `listen` accepts, `connection` finds out what is spoken, `grpc` turns a request into a call, `request` cuts its
//! messages out of the body, `body` frames the replies, and `hyper_io` sends all of a turn at once.

mod body;
mod connection;
mod grpc;
mod http;
mod hyper_io;
pub mod listen;
mod request;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::api::Api;
use crate::limits;
use crate::net::connection::Shared;
use crate::net::request::RequestBytes;
use crate::xcore::gate::Gate;
use crate::xcore::latch::Latch;

/// What an edge listens on, and what it accepts there.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    /// Client addresses.
    pub addresses: Vec<SocketAddr>,
    /// A larger message is refused.
    pub message_bytes_max: usize,
    /// Streams a client may have open on a connection.
    pub streams_max: u32,
}

/// Serves this core's share of the clients until asked to stop; then open calls have a little time to finish. Calls
/// `listening` once clients can connect.
///
/// # Errors
/// When an address cannot be listened on.
pub async fn serve(
    api: Rc<Api>,
    config: ListenConfig,
    stop: Latch,
    listening: impl FnOnce(),
) -> io::Result<()> {
    let shared = Shared {
        api: Rc::clone(&api),
        scratch: hyper_io::new_scratch(),
        request_bytes: RequestBytes::default(),
        message_bytes_max: config.message_bytes_max,
        streams_max: config.streams_max,
    };
    let gate = Gate::default();
    let mut accepting = Vec::new();
    for address in config.addresses {
        let listener = listen::bind(address)?;
        accepting.push(glommio::spawn_local(listen::accept(listener, shared.clone(), gate.clone())));
    }
    listening();
    stop.wait().await;
    for task in accepting {
        task.cancel().await;
    }
    api.stop();
    gate.close();
    futures_lite::future::or(gate.drained(), glommio::timer::sleep(limits::DRAIN_DEADLINE)).await;
    Ok(())
}
