//! Callers of one thread that have nothing to do.

use std::collections::VecDeque;

/// The one that has rested for longest first.
#[derive(Debug, Default)]
pub(super) struct IdleCallers(VecDeque<u32>);

impl IdleCallers {
    /// A caller has nothing to do any more.
    pub(super) fn rest(&mut self, caller: u32) {
        self.0.push_back(caller);
    }

    /// The one that has rested for longest of those that can call. So all connections have as many
    /// calls: the last one to rest would call on the connection whose replies were read last, and
    /// for many milliseconds most calls would go to some of the connections, and to the server's
    /// core that has them.
    pub(super) fn take(&mut self, can_call: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.0.iter().position(|caller| can_call(*caller))?;
        self.0.remove(at)
    }

    /// All of them.
    pub(super) fn take_all(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_take_turns_whoever_was_answered_last() {
        let mut idle = IdleCallers::default();
        (0..4).for_each(|caller| idle.rest(caller));
        let mut called = Vec::new();
        for _ in 0..8 {
            let caller = idle.take(|caller| caller != 2).expect("an idle caller");
            called.push(caller);
            idle.rest(caller); // answered at once
        }
        assert_eq!(called, [0, 1, 3, 0, 1, 3, 0, 1], "2 cannot call");
        assert_eq!(idle.take(|caller| caller == 2), Some(2));
        assert_eq!(idle.take(|caller| caller == 2), None);
        assert_eq!(idle.take_all(), [3, 0, 1]);
    }
}
