//! The line of calls that are read but not begun: their client does not drain its replies, or calls
//! that read very many keys come before them.

use std::collections::VecDeque;

use crate::limits;

/// Of one connection. A call that its client has given up keeps its place and counts until it is
/// its turn, so that the line is bounded whatever a client resets.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    calls: VecDeque<WaitingCall>,
    /// Bytes of the messages of all of them.
    message_bytes: usize,
}

#[derive(Debug)]
struct WaitingCall {
    stream: u32,
    message_bytes: usize,
}

/// As many calls wait as may, or their messages have as many bytes as they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitQueueFull;

impl WaitQueue {
    /// Calls that wait.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether no call waits.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The stream of the call that has waited longest.
    pub(super) fn front(&self) -> Option<u32> {
        self.calls.front().map(|call| call.stream)
    }

    /// Takes up a call behind all others.
    ///
    /// # Errors
    /// When `calls_max` calls wait, or [`limits::WAITING_CALL_BYTES_MAX`] would be exceeded.
    pub(super) fn push(
        &mut self,
        stream: u32,
        message_bytes: usize,
        calls_max: usize,
    ) -> Result<(), WaitQueueFull> {
        let bytes = self.message_bytes + message_bytes;
        if self.calls.len() >= calls_max || bytes > limits::WAITING_CALL_BYTES_MAX {
            return Err(WaitQueueFull);
        }
        self.message_bytes = bytes;
        self.calls.push_back(WaitingCall { stream, message_bytes });
        Ok(())
    }

    /// Lets go of the call that has waited longest.
    pub(super) fn pop(&mut self) {
        if let Some(call) = self.calls.pop_front() {
            self.message_bytes -= call.message_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_wait_in_order_up_to_a_number_and_a_size() {
        let mut queue = WaitQueue::default();
        let half = limits::WAITING_CALL_BYTES_MAX / 2;
        assert_eq!(queue.push(1, half, 3), Ok(()));
        assert_eq!(queue.push(3, half + 1, 3), Err(WaitQueueFull), "too many bytes");
        assert_eq!(queue.push(3, half, 3), Ok(()));
        assert_eq!(queue.push(5, 0, 3), Ok(()));
        assert_eq!(queue.push(7, 0, 3), Err(WaitQueueFull), "too many calls");
        assert_eq!((queue.front(), queue.len()), (Some(1), 3));
        queue.pop();
        assert_eq!(queue.push(7, half, 3), Ok(()), "the first call's bytes are free again");
        for stream in [3, 5, 7] {
            assert_eq!(queue.front(), Some(stream));
            queue.pop();
        }
        assert!(queue.is_empty() && queue.message_bytes == 0);
    }
}
