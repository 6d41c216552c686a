//! Answers to changes of members, held against the log.

use std::collections::BTreeMap;

use revd_member::apply::CommittedEntry;
use revd_member::apply::command::{self, CommandId, Origin};
use revd_member::error::Error;

/// The member and the boot at which a command was asked for, and its id there.
type Asked = (u64, u64, CommandId);

/// Changes of members that were answered for good, and how.
#[derive(Debug, Default)]
pub(crate) struct Told(Vec<(Asked, Option<Error>)>);

impl Told {
    /// A caller is told that its change is done, or why not. A lost one may be done all the same.
    pub(crate) fn answered(&mut self, origin: Origin, id: CommandId, refusal: Option<&Error>) {
        if !matches!(refusal, Some(Error::TimeoutLeaderFailed | Error::TimeoutConnectionLost)) {
            self.0.push(((origin.member, origin.boot, id), refusal.cloned()));
        }
    }

    /// A change whose caller was told that it is done has been made once, and one that was refused
    /// never.
    pub(crate) fn check<'e>(&self, applied: impl Iterator<Item = &'e CommittedEntry>) {
        let mut made: BTreeMap<Asked, u64> = BTreeMap::new();
        for entry in applied {
            if entry.change.as_ref().is_some_and(|judged| judged.verdict.is_ok()) {
                let found = command::decode_member_change(&entry.data);
                let (origin, command) = found.expect("it was judged well");
                *made.entry((origin.member, origin.boot, command.id)).or_default() += 1;
            }
        }
        for (asked, refusal) in &self.0 {
            let times = made.get(asked).copied().unwrap_or(0);
            assert_eq!(times, u64::from(refusal.is_none()), "{asked:?} was answered with {refusal:?}");
        }
    }
}
