//! Linearizable reads that wait for entries to be applied.

use std::collections::BTreeMap;

use crate::apply::ReadReady;
use crate::cores::effects::StateEffects;
use crate::mutants::{self, Mutant};

/// State core view: the newest ticket of each edge by the index that its reads wait for. There are
/// at most as many as edges times entries that are committed and not applied.
#[derive(Debug, Default)]
pub(super) struct PendingReads(BTreeMap<(u64, u16), u64>);

impl PendingReads {
    /// Reads may be served once the View of this index is published, which `published` may hold
    /// already.
    pub(super) fn add(&mut self, ready: ReadReady, published: u64, effects: &mut impl StateEffects) {
        let ReadReady { edge, ticket, index } = ready;
        match index {
            Err(why) => effects.end_reads(edge, ticket, Err(why)),
            Ok(index) if index <= published || mutants::is(Mutant::ReadBeforeApplied) => {
                effects.end_reads(edge, ticket, Ok(()));
            }
            Ok(index) => {
                let newest = self.0.entry((index, edge)).or_default();
                *newest = ticket.max(*newest);
            }
        }
    }

    /// A View of this index is published.
    pub(super) fn published(&mut self, index: u64, effects: &mut impl StateEffects) {
        while let Some(first) = self.0.first_entry().filter(|first| first.key().0 <= index) {
            let ((_, edge), ticket) = first.remove_entry();
            effects.end_reads(edge, ticket, Ok(()));
        }
    }
}
