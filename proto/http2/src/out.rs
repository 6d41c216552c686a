//! The send buffer of a connection: short pieces are copied behind each other, long ones shared.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf as _, Bytes};

/// Length from which a piece is shared instead of copied.
pub(crate) const SHARED_BYTES_MIN: usize = 2048;

/// Sent bytes of the copies that are kept: more are dropped once they are at least as many as the
/// unsent.
const SENT_BYTES_KEPT: usize = 16 * 1024;

/// Bytes that wait for the socket.
#[derive(Debug, Default)]
pub struct Out {
    flat: Vec<u8>,
    /// Bytes of `flat` that are sent.
    sent: usize,
    /// Shared pieces, each with its position: the bytes of `flat` before it, dropped ones included.
    shared: VecDeque<(usize, Bytes)>,
    /// Bytes that `flat` has dropped.
    gone: usize,
    len: usize,
}

impl Out {
    /// Bytes that wait to be sent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy.
    pub fn put(&mut self, bytes: &[u8]) {
        self.flat.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends a chunk: shares it, or copies a short one, because sharing may allocate.
    pub fn put_shared(&mut self, chunk: &Bytes) {
        if chunk.len() < SHARED_BYTES_MIN { self.put(chunk) } else { self.share(chunk.clone()) }
    }

    /// Appends bytes without a copy.
    pub(crate) fn share(&mut self, bytes: Bytes) {
        self.len += bytes.len();
        self.shared.push_back((self.gone + self.flat.len(), bytes));
    }

    /// Fills `slices` with the next pieces to send; the number of slices filled.
    pub fn fill<'o>(&'o self, slices: &mut [IoSlice<'o>]) -> usize {
        let (mut filled, mut at) = (0, self.sent);
        let shared = self.shared.iter().map(|(behind, bytes)| (*behind - self.gone, &bytes[..]));
        for (behind, bytes) in shared.chain([(self.flat.len(), &[][..])]) {
            for piece in [&self.flat[at..behind], bytes] {
                if filled == slices.len() {
                    return filled;
                }
                if !piece.is_empty() {
                    slices[filled] = IoSlice::new(piece);
                    filled += 1;
                }
            }
            at = behind;
        }
        filled
    }

    /// Drops `bytes` that were sent.
    ///
    /// # Panics
    /// If fewer wait.
    pub fn advance(&mut self, mut bytes: usize) {
        assert!(bytes <= self.len, "{bytes} bytes of {} were sent", self.len);
        self.len -= bytes;
        while let Some((behind, shared)) = self.shared.front_mut() {
            let behind = *behind - self.gone;
            let flat = bytes.min(behind - self.sent);
            self.sent += flat;
            bytes -= flat;
            let part = bytes.min(shared.len());
            shared.advance(part);
            bytes -= part;
            if self.sent < behind || !shared.is_empty() {
                return self.let_go();
            }
            self.shared.pop_front();
        }
        self.sent += bytes;
        self.let_go();
    }

    /// Drops copies that are sent: all, or once they are many. A client that is always a little too
    /// slow never reads all, and must not make them grow.
    fn let_go(&mut self) {
        if self.len == 0 {
            self.flat.clear();
            (self.sent, self.gone) = (0, 0);
        } else if self.sent >= SENT_BYTES_KEPT && self.sent >= self.flat.len() - self.sent {
            self.flat.drain(..self.sent);
            self.gone += self.sent;
            self.sent = 0;
        }
    }

    /// Takes the empty buffer, for another connection.
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        (self.is_empty() && self.flat.capacity() > 0).then(|| std::mem::take(&mut self.flat))
    }

    /// Sets a buffer, if there is none.
    pub fn give_buffer(&mut self, buffer: impl FnOnce() -> Option<Vec<u8>>) {
        if self.flat.capacity() == 0
            && let Some(buffer) = buffer()
        {
            self.flat = buffer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_whatever_is_sent_at_a_time() {
        for step in [1, 7, 2047, 2048, 5000, 100_000] {
            let mut out = Out::default();
            let mut expected = Vec::new();
            for number in 0..40_u8 {
                let bytes = vec![number; usize::from(number) * 131 % 4500];
                expected.extend_from_slice(&bytes);
                if number % 3 == 0 { out.put(&bytes) } else { out.put_shared(&bytes.into()) }
            }
            let mut sent = Vec::new();
            while !out.is_empty() {
                let mut slices = [IoSlice::new(&[]); 3];
                let filled = out.fill(&mut slices);
                let all: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
                let part = all.len().min(step);
                sent.extend_from_slice(&all[..part]);
                out.advance(part);
            }
            assert!(sent == expected, "{step} bytes at a time");
            assert!(out.take_buffer().is_some());
        }
    }

    #[test]
    fn a_client_that_is_always_a_little_too_slow_does_not_grow_the_buffer() {
        let mut out = Out::default();
        let (mut expected, mut sent) = (Vec::new(), Vec::new());
        for number in 0..=255_u8 {
            let bytes = vec![number; 5_000];
            expected.extend_from_slice(&bytes);
            out.put(&bytes[..2_000]);
            out.put_shared(&Bytes::from(bytes).slice(2_000..));
            while out.len() > 3_000 {
                let mut slices = [IoSlice::new(&[]); 2];
                let filled = out.fill(&mut slices);
                let all: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
                let part = all.len().min(700);
                sent.extend_from_slice(&all[..part]);
                out.advance(part);
            }
            assert!(out.flat.capacity() <= 4 * SENT_BYTES_KEPT, "{} bytes", out.flat.capacity());
        }
        assert!(expected.starts_with(&sent) && sent.len() + out.len() == expected.len());
    }
}
