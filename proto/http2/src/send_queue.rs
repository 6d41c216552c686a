//! Data of one stream that waits for its windows: long pieces are shared, short ones copied behind
//! each other, so that the queue takes about as much memory as it counts.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes};

use crate::out::{Out, SHARED_BYTES_MIN};

/// How far the buffer of copies grows: what does not fit any more begins the next one.
const COPIES_BYTES: usize = 16 * 1024;
const _: () = assert!(SHARED_BYTES_MIN <= COPIES_BYTES, "a short piece fits into an empty buffer");

/// Data that is queued on a stream until the windows allow to send it.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    chunks: VecDeque<Bytes>,
    /// Short pieces behind the chunks. Each would take some 100 bytes as a chunk, however short it
    /// is: events of a client that reads nothing are many.
    copies: Vec<u8>,
    bytes: usize,
    /// Bytes of the first chunk that are sent: a chunk's memory is held until all of it is sent.
    front_sent: usize,
    pub(crate) end: Option<StreamEnd>,
}

/// How a stream ends.
#[derive(Debug)]
pub(crate) enum StreamEnd {
    /// END_STREAM on the last DATA frame.
    Data,
    /// This header block behind the data.
    Trailers(Vec<u8>),
}

impl SendQueue {
    /// Bytes that are queued.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory that the queue holds: a chunk that is sent in part is held in full.
    pub(crate) fn held(&self) -> usize {
        self.bytes + self.front_sent
    }

    /// Appends a piece.
    pub(crate) fn push(&mut self, piece: &Bytes) {
        self.bytes += piece.len();
        if piece.len() >= SHARED_BYTES_MIN {
            self.end_copies();
            self.chunks.push_back(piece.clone());
        } else {
            self.copy(piece);
        }
    }

    /// A buffer that grows by itself may end with twice the room that it counts.
    fn copy(&mut self, piece: &[u8]) {
        if self.copies.len() + piece.len() > COPIES_BYTES {
            self.end_copies();
        }
        let (len, room) = (self.copies.len(), self.copies.capacity());
        if len + piece.len() > room {
            let larger = (2 * room).clamp(len + piece.len(), COPIES_BYTES);
            self.copies.reserve_exact(larger - len);
        }
        self.copies.extend_from_slice(piece);
    }

    /// The copies become a chunk behind which others wait. An allocator leaves a piece that shrinks
    /// by less than a half as large as it was: where there is much room, the copies move.
    fn end_copies(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        if copies.capacity() - copies.len() > copies.len() / 8 {
            self.chunks.push_back(Bytes::copy_from_slice(&copies));
        } else if !copies.is_empty() {
            self.chunks.push_back(copies.into());
        }
    }

    /// Moves bytes from the front to `out`; how much memory the queue has let go.
    ///
    /// # Panics
    /// If fewer are queued.
    pub(crate) fn take(&mut self, bytes: usize, out: &mut Out) -> usize {
        let (before, mut left) = (self.held(), bytes);
        self.bytes -= bytes;
        while left > 0 {
            if self.chunks.is_empty() && !self.copies.is_empty() {
                // They go out now, or are the one chunk that does in part: they stay where they
                // are.
                self.chunks.push_back(std::mem::take(&mut self.copies).into());
            }
            let chunk = self.chunks.front_mut().expect("the chunks hold so many bytes");
            let part = left.min(chunk.len());
            if part >= SHARED_BYTES_MIN {
                out.share(chunk.split_to(part));
            } else {
                out.put(&chunk[..part]);
                chunk.advance(part);
            }
            self.front_sent += part;
            if chunk.is_empty() {
                self.chunks.pop_front();
                self.front_sent = 0;
            }
            left -= part;
        }
        before - self.held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of 12 bytes to a client that reads nothing: as chunks they took nine times as much.
    #[test]
    fn many_short_pieces_take_about_the_memory_that_they_count() {
        let mut queue = SendQueue::default();
        (0..100_000).for_each(|_| queue.push(&Bytes::from_static(b"twelve bytes")));
        assert_eq!(queue.held(), 1_200_000);
        let (held, taken) = (queue.held(), taken(queue));
        assert!(taken <= held + held / 20, "{taken} bytes for {held}");
    }

    /// The memory of a queue, with all the room of its buffers.
    fn taken(queue: SendQueue) -> usize {
        let places = queue.chunks.capacity() * size_of::<Bytes>();
        let room = |chunk: Bytes| chunk.try_into_mut().expect("it is the queue's alone").capacity();
        places + queue.copies.capacity() + queue.chunks.into_iter().map(room).sum::<usize>()
    }

    /// Short pieces of all lengths, alone and with long ones between them, which end a buffer that
    /// has more room.
    #[test]
    fn buffers_of_copies_have_little_more_room_than_they_count() {
        for length in [1, 12, 100, 1_000, 1_100, SHARED_BYTES_MIN - 1] {
            for between in [0, 3, 700, 100_000] {
                let mut queue = SendQueue::default();
                for number in 1..=1_200 {
                    queue.push(&vec![7; length].into());
                    if between > 0 && number % between == 0 {
                        queue.push(&vec![7; SHARED_BYTES_MIN].into());
                    }
                    assert!(queue.copies.capacity() <= COPIES_BYTES.min(2 * queue.copies.len()));
                }
                let (held, buffer) = (queue.held(), queue.copies.capacity());
                let places = queue.chunks.capacity() * size_of::<Bytes>();
                let taken = taken(queue) - buffer - places;
                assert!(taken <= held + held / 8, "{taken} for {held}: {length} bytes, long after {between}");
            }
        }
    }

    #[test]
    fn pieces_of_all_lengths_leave_in_their_order_whatever_is_taken_at_once() {
        for step in [1, 7, 100, 5_000, 1_000_000] {
            let (mut queue, mut out, mut expected) = (SendQueue::default(), Out::default(), Vec::new());
            for number in 0..200_usize {
                let length = [12, 3_000, 0, 700, 2_048, 2_047, 1][number % 7] + number;
                let piece = vec![u8::try_from(number).unwrap(); length];
                expected.extend_from_slice(&piece);
                queue.push(&piece.into());
                if number % 5 == 0 {
                    queue.take(step.min(queue.bytes()), &mut out);
                }
            }
            let mut held = queue.held();
            while queue.bytes() > 0 {
                held -= queue.take(step.min(queue.bytes()), &mut out);
            }
            assert_eq!((held, queue.held(), out.len()), (0, 0, expected.len()));
            let mut sent = Vec::new();
            while !out.is_empty() {
                let mut slices = [std::io::IoSlice::new(&[])];
                assert_eq!(out.fill(&mut slices), 1);
                sent.extend_from_slice(&slices[0]);
                let bytes = slices[0].len();
                out.advance(bytes);
            }
            assert!(sent == expected, "steps of {step}");
        }
    }
}
