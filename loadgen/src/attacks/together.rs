//! Connections that are waited for together: a server that keeps silent is waited for once, not
//! once for each of them.

use std::io::{self, Read};
use std::time::Duration;

use crate::clock;

/// How long a server that answers at all may take, also on a machine that is busy otherwise.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at connections that all keep silent.
const REST: Duration = Duration::from_millis(5);
/// Reads in which a connection must show that it is closed: one on which more is said is open.
const READS_MAX: usize = 64;

/// Takes steps on each connection until one does not end with silence, or until `patience` is over:
/// `None` for those that kept silent. The sockets must not block.
pub(super) fn together<C, T>(
    connections: &mut [C],
    patience: Duration,
    mut step: impl FnMut(&mut C) -> io::Result<T>,
) -> Vec<Option<io::Result<T>>> {
    let until = clock::nanos() + clock::in_nanos(patience);
    let mut ends: Vec<_> = connections.iter().map(|_| None).collect();
    loop {
        // Asked before the last look: what has come by then is seen.
        let is_last = clock::nanos() >= until;
        let mut is_silent = true;
        for (connection, end) in connections.iter_mut().zip(&mut ends).filter(|(_, end)| end.is_none()) {
            let done = step(connection);
            if !done.as_ref().is_err_and(is_silence) {
                (*end, is_silent) = (Some(done), false);
            }
        }
        if is_last || ends.iter().all(Option::is_some) {
            return ends;
        }
        if is_silent {
            clock::rest(REST);
        }
    }
}

/// Whether the server closes a connection; an error of silence as long as it does not.
pub(super) fn closed(socket: &mut impl Read) -> io::Result<()> {
    let mut nowhere = [0; 4096];
    for _ in 0..READS_MAX {
        match socket.read(&mut nowhere) {
            Ok(1..) => {}
            Err(error) if is_silence(&error) => return Err(error),
            Ok(_) | Err(_) => return Ok(()),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Nothing has come in time, or yet.
pub(super) fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind::{ConnectionReset, WouldBlock};

    use super::*;

    #[test]
    fn those_that_keep_silent_are_waited_for_together() {
        let patience = Duration::from_millis(100);
        let (start, mut looks) = (clock::nanos(), 0);
        let mut all: Vec<usize> = (0..1_000).collect();
        let ends = together(&mut all, patience, |at| {
            looks += 1;
            match *at {
                7 => Ok("answered"),
                8 => Err(ConnectionReset.into()),
                9 if looks > 5_000 => Ok("answered late"),
                _ => Err(WouldBlock.into()),
            }
        });
        let ended: Vec<_> = ends.iter().enumerate().filter(|(_, end)| end.is_some()).collect();
        assert!(matches!(ended[..], [(7, Some(Ok("answered"))), (8, Some(Err(_))), (9, Some(Ok(_)))]));
        // One after the other they would have taken 100 s.
        assert!(clock::nanos() - start < 50 * clock::SECOND);
    }

    /// Says something for ever.
    struct Talkative(usize);

    impl Read for Talkative {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            assert!(self.0 <= READS_MAX, "it is listened to for ever");
            Ok(into.len())
        }
    }

    #[test]
    fn a_server_that_talks_for_ever_has_not_closed() {
        assert!(closed(&mut Talkative(0)).is_err_and(|error| is_silence(&error)));
        assert!(closed(&mut io::empty()).is_ok());
        assert!(closed(&mut &[1; 10_000][..]).is_ok());
    }
}
