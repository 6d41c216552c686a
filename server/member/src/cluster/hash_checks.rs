//! etcd's checks for corruption: the hashes of the key space (HashKV) of all members are compared,
//! at a start, now and then, or those of compactions. These are the rules. None of the checks is as
//! fast or as sure as the comparison of state hashes, but they read all that a member has at rest.

use std::collections::BTreeMap;

use revd_engine::mvcc::Hashed;

/// The hash of another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberHash {
    /// That member.
    pub member: u64,
    /// Its hash.
    pub hashed: Hashed,
    /// Its newest revision then.
    pub newest: i64,
}

/// Before a member serves: whether its hash differs from that of another one which has compacted
/// as much.
#[must_use]
pub fn differs_at_start(own: Hashed, others: &[MemberHash]) -> bool {
    let is_comparable = |other: &&MemberHash| other.hashed.compact_revision == own.compact_revision;
    others.iter().filter(is_comparable).any(|other| other.hashed.hash != own.hash)
}

/// On a leader, now and then: the first member that cannot be right. `before` and `after` are its
/// own hashes around those of the others, with a linearizable read behind them, `newest` its
/// revision then.
#[must_use]
pub fn periodic(
    own: u64,
    (before, after): (Hashed, Hashed),
    newest: i64,
    others: &[MemberHash],
) -> Option<u64> {
    let is_same_state =
        before.revision == after.revision && before.compact_revision == after.compact_revision;
    if is_same_state && before.hash != after.hash {
        return Some(own);
    }
    let is_wrong = |other: &&MemberHash| {
        let Hashed { hash, compact_revision, .. } = other.hashed;
        other.newest > newest
            || compact_revision > after.compact_revision
            || (compact_revision == before.compact_revision && hash != before.hash)
    };
    others.iter().find(is_wrong).map(|other| other.member)
}

/// The result of comparing the hash of a compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactionCheck {
    /// Every member has it, or some are corrupt: older compactions need no look.
    pub is_over: bool,
    /// Members that are to be named; 0 if it is not known which one is right.
    pub corrupt: Vec<u64>,
}

/// On a leader, of so many members: compares its hash of a compaction with those that the others
/// have of the same one.
#[must_use]
pub fn of_compaction(own: (u64, Hashed), members: usize, others: &[MemberHash]) -> CompactionCheck {
    let mut by_hash = BTreeMap::from([(own.1.hash, vec![own.0])]);
    let is_comparable = |other: &&MemberHash| other.hashed.compact_revision == own.1.compact_revision;
    let comparable: Vec<&MemberHash> = others.iter().filter(is_comparable).collect();
    for other in &comparable {
        by_hash.entry(other.hashed.hash).or_default().push(other.member);
    }
    if by_hash.len() == 1 {
        return CompactionCheck { is_over: comparable.len() + 1 == members, corrupt: Vec::new() };
    }
    let right = by_hash.iter().find(|(_, having)| having.len() > members / 2).map(|(hash, _)| *hash);
    let corrupt = match right {
        Some(right) => {
            by_hash.into_iter().filter(|(hash, _)| *hash != right).flat_map(|(_, having)| having).collect()
        }
        None => vec![0],
    };
    CompactionCheck { is_over: true, corrupt }
}

/// The leader's look at its newest compaction, now and then: some have no hash to compare.
#[derive(Debug, Default)]
pub struct NewestCompaction {
    /// Its revision at the look before.
    before: i64,
    told: i64,
}

impl NewestCompaction {
    /// The newest compaction is at this revision, and the newest that has a hash at that one. True,
    /// once for each, if the former was there at the look before and has none still.
    pub fn lacks_hash(&mut self, revision: i64, hashed: Option<i64>) -> bool {
        let is_old = std::mem::replace(&mut self.before, revision) == revision;
        let lacks = is_old && revision > self.told.max(0) && hashed.is_none_or(|hashed| hashed < revision);
        if lacks {
            self.told = revision;
        }
        lacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(hash: u32, revision: i64, compact_revision: i64) -> Hashed {
        Hashed { hash, revision, compact_revision }
    }

    fn of(member: u64, hash: u32, compact_revision: i64) -> MemberHash {
        MemberHash { member, hashed: hashed(hash, 9, compact_revision), newest: 9 }
    }

    #[test]
    fn a_start_compares_with_those_that_have_compacted_as_much() {
        let own = hashed(7, 9, 3);
        assert!(!differs_at_start(own, &[]));
        assert!(!differs_at_start(own, &[of(2, 7, 3), of(3, 8, 4)]));
        assert!(differs_at_start(own, &[of(2, 7, 3), of(3, 8, 3)]));
    }

    #[test]
    fn now_and_then_the_leader_names_the_first_that_cannot_be_right() {
        let own = hashed(7, 9, 3);
        let check = |others: &[MemberHash]| periodic(1, (own, own), 9, others);
        assert_eq!(check(&[of(2, 7, 3), of(3, 8, 2)]), None);
        assert_eq!(check(&[of(2, 7, 3), of(3, 8, 3)]), Some(3));
        assert_eq!(check(&[of(2, 7, 4)]), Some(2), "it has compacted what the leader has not");
        assert_eq!(check(&[MemberHash { newest: 10, ..of(2, 7, 3) }]), Some(2));
        assert_eq!(periodic(1, (own, hashed(8, 9, 3)), 9, &[]), Some(1), "the leader itself");
        // It has gone on meanwhile.
        assert_eq!(periodic(1, (own, hashed(8, 10, 3)), 10, &[of(2, 7, 3)]), None);
    }

    #[test]
    fn a_compaction_without_a_hash_is_told_of_once() {
        let mut newest = NewestCompaction::default();
        let mut look = |revision, hashed| newest.lacks_hash(revision, hashed);
        assert!(!look(-1, None) && !look(-1, None), "there is no compaction");
        assert!(!look(5, None), "it may be under way");
        assert!(look(5, None) && !look(5, None));
        assert!(!look(9, Some(5)) && !look(9, Some(9)) && !look(9, Some(9)));
        assert!(!look(12, Some(9)) && look(12, Some(9)) && !look(12, Some(9)));
    }

    #[test]
    fn of_a_compaction_the_minority_is_named() {
        let check = |others: &[MemberHash]| {
            let CompactionCheck { is_over, corrupt } = of_compaction((1, hashed(7, 9, 3)), 3, others);
            (is_over, corrupt)
        };
        assert_eq!(check(&[of(2, 7, 3), of(3, 7, 3)]), (true, vec![]));
        assert_eq!(check(&[of(2, 7, 3), of(3, 8, 2)]), (false, vec![]));
        assert_eq!(check(&[of(2, 7, 3), of(3, 8, 3)]), (true, vec![3]));
        assert_eq!(check(&[of(2, 8, 3), of(3, 8, 3)]), (true, vec![1]));
        assert_eq!(check(&[of(2, 8, 3)]), (true, vec![0]));
    }
}
