//! Bytes on their way to the socket: short ones copied behind each other, long ones shared where they lie.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf as _, Bytes};

/// From this length on bytes are shared instead of copied.
const SHARED_BYTES_MIN: usize = 2048;

/// A queue of bytes.
#[derive(Debug, Default)]
pub struct Out {
    flat: Vec<u8>,
    /// Bytes of `flat` that are sent.
    sent: usize,
    /// Each goes behind so many bytes of `flat`.
    shared: VecDeque<(usize, Bytes)>,
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
        self.shared.push_back((self.flat.len(), bytes));
    }

    /// What is to be sent next, in so many pieces as there is room for; how many are filled.
    pub fn fill<'o>(&'o self, slices: &mut [IoSlice<'o>]) -> usize {
        let (mut filled, mut at) = (0, self.sent);
        let shared = self.shared.iter().map(|(behind, bytes)| (*behind, &bytes[..]));
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
            let flat = bytes.min(*behind - self.sent);
            self.sent += flat;
            bytes -= flat;
            let part = bytes.min(shared.len());
            shared.advance(part);
            bytes -= part;
            if self.sent < *behind || !shared.is_empty() {
                return;
            }
            self.shared.pop_front();
        }
        self.sent += bytes;
        if self.len == 0 {
            self.flat.clear();
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
}
