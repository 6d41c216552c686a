//! Members by their part in decisions: what raft calls a configuration, and its row.

use bytes::{Buf as _, BufMut as _};

const FORMAT: u8 = 1;

/// Which members have a vote, and which only learn.
///
/// ```text
/// row (all integers little-endian)
///   0  u8   format version, 1
///   1  u8   1 if a joint configuration is left as soon as it is committed
///   2  four lists, in the order of the fields, each: u32 count, then u64 member ids
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfState {
    /// Members with a vote.
    pub voters: Vec<u64>,
    /// Members that are sent the log and have no vote.
    pub learners: Vec<u64>,
    /// In a joint configuration: those that had a vote before.
    pub voters_outgoing: Vec<u64>,
    /// In a joint configuration: voters that learn once it is left.
    pub learners_next: Vec<u64>,
    /// A joint configuration is left as soon as it is committed.
    pub auto_leave: bool,
}

impl ConfState {
    /// All of these vote.
    #[must_use]
    pub fn of_voters(voters: Vec<u64>) -> Self {
        Self { voters, ..Self::default() }
    }

    /// A change of several members is not over. revd begins none.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.voters_outgoing.is_empty() || !self.learners_next.is_empty() || self.auto_leave
    }

    /// The bytes of its row.
    ///
    /// # Panics
    /// If there are more than 2^32 members.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT, u8::from(self.auto_leave)];
        for list in [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next] {
            out.put_u32_le(u32::try_from(list.len()).expect("members are few"));
            list.iter().for_each(|id| out.put_u64_le(*id));
        }
        out
    }

    /// Reads such bytes; none if they are not.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() < 2 || bytes.get_u8() != FORMAT {
            return None;
        }
        let auto_leave = bytes.get_u8() == 1;
        let mut list = || {
            let count = bytes.try_get_u32_le().ok()? as usize;
            if bytes.len() / 8 < count {
                return None;
            }
            Some((0..count).map(|_| bytes.get_u64_le()).collect())
        };
        let state = Self {
            voters: list()?,
            learners: list()?,
            voters_outgoing: list()?,
            learners_next: list()?,
            auto_leave,
        };
        bytes.is_empty().then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_survives_the_round_trip_and_no_cut() {
        let state = ConfState {
            voters: vec![1, u64::MAX],
            learners: vec![3],
            voters_outgoing: vec![],
            learners_next: vec![4, 5],
            auto_leave: true,
        };
        let row = state.encode();
        assert_eq!(ConfState::decode(&row), Some(state));
        for len in 0..row.len() {
            assert_eq!(ConfState::decode(&row[..len]), None, "cut at {len}");
        }
        assert_eq!(ConfState::decode(&[row, vec![0]].concat()), None);
    }
}
