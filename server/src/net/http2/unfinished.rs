//! Deadlines of input that a client has begun: its first SETTINGS, a header block in several
//! frames. No other frame may arrive on the connection before their end, so that no honest client
//! takes long.

use revd_http2::{ErrorCode, Fault};

use crate::limits;
use crate::net::deadline::milliseconds;
use crate::observe::bounds::Bound;

/// A connection whose first SETTINGS did not arrive in time.
const NO_SETTINGS: Fault =
    Fault::new(ErrorCode::EnhanceYourCalm, "a connection begins with settings, and none came in time");
/// A connection whose header block did not end in time.
const SLOW_BLOCK: Fault =
    Fault::new(ErrorCode::EnhanceYourCalm, "a header block was begun and not ended in time");

/// Of one connection. Times are milliseconds of the core's clock.
#[derive(Debug)]
pub(super) struct UnfinishedInput {
    /// When the first SETTINGS must have arrived; none once they have.
    settings_by: Option<u64>,
    /// The stream of a header block that has arrived in part, and when it must have ended.
    block_by: Option<(u32, u64)>,
    /// Looks at the connection since a frame was last completed.
    looks: u32,
}

impl UnfinishedInput {
    /// A connection whose preface was read.
    pub(super) fn new(now: u64) -> Self {
        Self { settings_by: Some(now + milliseconds(limits::HTTP2_DEADLINE)), block_by: None, looks: 0 }
    }

    /// Notes what is unfinished at the end of a turn; whether a header block was begun in it.
    pub(super) fn note(&mut self, now: u64, has_settings: bool, block: Option<u32>) -> bool {
        if has_settings {
            self.settings_by = None;
        }
        let known = self.block_by.filter(|(stream, _)| block == Some(*stream));
        self.block_by = known.or_else(|| Some((block?, now + milliseconds(limits::HTTP2_DEADLINE))));
        self.block_by.is_some() && known.is_none()
    }

    /// Notes whether a frame was completed.
    pub(super) fn went_on(&mut self, has_frame: bool) {
        if has_frame {
            self.looks = 0;
        }
    }

    /// Counts a look at a frame or header block that has arrived in part; whether it has been
    /// unfinished for too many looks.
    pub(super) fn look(&mut self) -> bool {
        self.looks += 1;
        self.looks >= limits::UNFINISHED_LOOKS
    }

    /// The next deadline.
    pub(super) fn due(&self) -> Option<u64> {
        self.settings_by.or(self.block_by.map(|(_, by)| by))
    }

    /// Why the connection must end now, if a deadline has passed, and the bound that was reached.
    pub(super) fn late(&self, now: u64) -> Option<(Fault, Bound)> {
        let is_late = self.due().is_some_and(|by| by <= now);
        let reason = if self.settings_by.is_some() {
            (NO_SETTINGS, Bound::FirstBytes)
        } else {
            (SLOW_BLOCK, Bound::HeaderBlockTime)
        };
        is_late.then_some(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_header_blocks_have_a_deadline() {
        let settings = milliseconds(limits::HTTP2_DEADLINE);
        let block = milliseconds(limits::HTTP2_DEADLINE);
        let mut begun = UnfinishedInput::new(5);
        assert!(!begun.note(5 + settings - 1, false, None));
        assert_eq!((begun.due(), begun.late(5 + settings - 1)), (Some(5 + settings), None));
        assert_eq!(begun.late(5 + settings), Some((NO_SETTINGS, Bound::FirstBytes)));

        let mut begun = UnfinishedInput::new(0);
        assert!(!begun.note(0, true, None));
        assert_eq!((begun.due(), begun.late(u64::MAX)), (None, None));
        assert!(begun.note(100, true, Some(1)), "a block has been begun");
        assert!(!begun.note(100 + block - 1, true, Some(1)), "more of it has come: its time goes on");
        assert_eq!((begun.due(), begun.late(100 + block - 1)), (Some(100 + block), None));
        assert_eq!(begun.late(100 + block), Some((SLOW_BLOCK, Bound::HeaderBlockTime)));
        assert!(begun.note(200, true, Some(3)), "another one");
        assert_eq!(begun.due(), Some(200 + block));
        assert!(!begun.note(300, true, None));
        assert_eq!((begun.due(), begun.late(u64::MAX)), (None, None));
    }

    #[test]
    fn a_frame_that_makes_no_progress_is_found_after_some_looks() {
        let mut begun = UnfinishedInput::new(0);
        for _ in 0..10 {
            assert!((1..limits::UNFINISHED_LOOKS).all(|_| !begun.look()));
            begun.went_on(false);
            assert!(begun.look());
            begun.went_on(true);
        }
    }
}
