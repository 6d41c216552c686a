//! Noticing a peer that is silent: both ends of a connection show each other once a second that
//! they live, so that one whose machine, network or process stands still is given up although TCP
//! would wait for minutes.

use std::cell::Cell;
use std::io;

use futures_lite::AsyncWrite;

use crate::limits;
use crate::peer::transport;
use crate::queues::sleep::sleep;

/// The byte by which a listener shows that it lives.
pub(super) const PULSE: [u8; 1] = [b'.'];

/// Log core view: since when a peer is silent.
#[derive(Debug, Default)]
pub(super) struct Silence(Cell<u32>);

impl Silence {
    /// The peer has sent something, or is not listened to at the moment.
    pub(super) fn broken(&self) {
        self.0.set(0);
    }

    /// Calls `pulse` once a second; ends when the peer was silent for too long.
    pub(super) async fn watch(&self, mut pulse: impl FnMut()) -> io::Error {
        loop {
            sleep(limits::PEER_PULSE_INTERVAL).await;
            self.0.set(self.0.get() + 1);
            if self.0.get() > limits::PEER_SILENT_PULSES_MAX {
                return io::Error::new(io::ErrorKind::TimedOut, "the peer is silent");
            }
            pulse();
        }
    }
}

/// Shows the dialer that this member lives, until it cannot.
pub(super) async fn show_life(mut stream: impl AsyncWrite + Unpin) -> io::Error {
    loop {
        sleep(limits::PEER_PULSE_INTERVAL).await;
        if let Err(error) = transport::write(&mut stream, &PULSE).await {
            return error;
        }
    }
}
