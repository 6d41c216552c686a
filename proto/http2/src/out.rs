//! Bytes on their way to the socket: short ones copied behind each other, long ones shared where they lie.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf as _, Bytes};

/// From this length on bytes are shared instead of copied.
pub(crate) const SHARED_BYTES_MIN: usize = 2048;

/// With so many bytes of the copies sent, and as many as are not, what is sent is let go of.
const SENT_BYTES_KEPT: usize = 16 * 1024;

/// A queue of bytes.
#[derive(Debug, Default)]
pub struct Out {
    flat: Vec<u8>,
    /// Bytes of `flat` that are sent.
    sent: usize,
    /// Each goes behind so many bytes of `flat`, counted with those that `flat` has let go of.
    shared: VecDeque<(usize, Bytes)>,
    /// How many those are.
    gone: usize,
    len: usize,
}

impl Out {
    /// Bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy.
    pub fn put(&mut self, bytes: &[u8]) {
        self.flat.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends bytes, as a copy only if they are short.
    pub fn put_shared(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_BYTES_MIN {
            return self.put(&bytes);
        }
        self.len += bytes.len();
        self.shared.push_back((self.gone + self.flat.len(), bytes));
    }

    /// What is to be sent next, in so many pieces as there is room for; how many are filled.
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

    /// So many bytes were sent.
    ///
    /// # Panics
    /// If there were not so many.
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

    /// Lets go of copies that are sent: all, or once they are many. A client that is always a little too slow never takes
    /// all, and must not make them grow.
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

    /// Takes the empty buffer away, for another connection to use.
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        (self.is_empty() && self.flat.capacity() > 0).then(|| std::mem::take(&mut self.flat))
    }

    /// Uses this buffer, if there is none.
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
    fn everything_leaves_in_order_whatever_is_sent_at_a_time() {
        for step in [1, 7, 2047, 2048, 5000, 100_000] {
            let mut out = Out::default();
            let mut expected = Vec::new();
            for number in 0..40_u8 {
                let bytes = vec![number; usize::from(number) * 131 % 4500];
                expected.extend_from_slice(&bytes);
                if number % 3 == 0 { out.put(&bytes) } else { out.put_shared(bytes.into()) }
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
    fn a_reader_that_is_always_a_little_too_slow_makes_nothing_grow() {
        let mut out = Out::default();
        let (mut expected, mut sent) = (Vec::new(), Vec::new());
        for number in 0..=255_u8 {
            let bytes = vec![number; 5_000];
            expected.extend_from_slice(&bytes);
            out.put(&bytes[..2_000]);
            out.put_shared(Bytes::from(bytes).slice(2_000..));
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
