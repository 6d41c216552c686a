//! From committed entries to state and replies: a pure function of the state and the entry.
//!
//! The chain a command passes: (auth, with its issue: may this user do it) -> `gates`: alarms and quota -> the command
//! itself. A refused command changes nothing but the applied index.

pub mod alarm;
pub mod command;
pub mod gates;
mod kv;
mod members;
pub mod outcome;
pub mod txn;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::{Applied, Store};
use revd_proto::etcdserverpb::{AlarmRequest, CompactionRequest, DeleteRangeRequest, PutRequest};

use crate::apply::alarm::Raised;
use crate::apply::command::{Command, Kind, Origin};
use crate::apply::gates::Gates;
use crate::apply::outcome::{Effect, Outcome};
use crate::error::Error;

/// A committed entry on its way from the log core to the state core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Position in the log.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// A `command` batch, or nothing.
    pub data: Bytes,
}

/// What the state core gets to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Apply this.
    Entry(CommittedEntry),
    /// An order to this member alone.
    Local(Command),
}

/// Why an entry cannot be applied: going on would make state differ from the log.
#[derive(Debug, thiserror::Error)]
pub enum FatalError {
    /// The entry is not ours.
    #[error("entry {index} of the log: {source}")]
    Entry {
        /// Which entry.
        index: u64,
        /// What is wrong with it.
        source: command::DecodeError,
    },
    /// Entries must come without gaps.
    #[error("entry {index} came after entry {applied} was applied")]
    Order {
        /// The entry.
        index: u64,
        /// The last one before.
        applied: u64,
    },
    /// The store is damaged.
    #[error("entry {index} could not be applied: {source}")]
    Engine {
        /// Which entry.
        index: u64,
        /// What is wrong.
        source: revd_engine::Error,
    },
}

/// State core view: the store and what applying needs besides.
#[derive(Debug)]
pub struct Machine {
    store: Store,
    own: Origin,
    /// Bytes the store may have; 0 or less is no limit.
    quota_bytes: i64,
    raised: Raised,
}

impl Machine {
    /// Applies to `store`; commands proposed by `own` are answered.
    #[must_use]
    pub fn new(store: Store, own: Origin, quota_bytes: i64) -> Self {
        let raised = Raised::of(store.tables());
        Self { store, own, quota_bytes, raised }
    }

    /// The state.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The state, for publication and checkpoints.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Applies the next entry.
    ///
    /// # Errors
    /// [`FatalError`]; the member must stop.
    pub fn apply(&mut self, entry: &CommittedEntry, effects: &mut Vec<Effect>) -> Result<(), FatalError> {
        let applied = self.store.applied().index;
        if entry.index != applied + 1 {
            return Err(FatalError::Order { index: entry.index, applied });
        }
        if !entry.data.is_empty() {
            let batch = command::decode(entry.data.clone())
                .map_err(|source| FatalError::Entry { index: entry.index, source })?;
            for command in &batch.commands {
                let effect = self.run(command);
                let damaged = !self.raised.corrupt
                    && matches!(&effect, Effect::Reply(_, outcome) if outcome.result == Err(Error::Corrupt));
                if damaged {
                    let source =
                        revd_engine::Error::Corrupt("a record could not be read while applying".to_owned());
                    return Err(FatalError::Engine { index: entry.index, source });
                }
                if batch.origin == self.own {
                    effects.push(effect);
                }
            }
        }
        self.store.set_applied(Applied { index: entry.index, term: entry.term });
        Ok(())
    }

    fn run(&mut self, command: &Command) -> Effect {
        let payload = command.payload.clone();
        let gates = Gates { raised: self.raised, quota_bytes: self.quota_bytes };
        let store = &mut self.store;
        let result = match command.kind {
            Kind::Put => decoded(PutRequest::decode(payload))
                .and_then(|put| gates.pass(store, gates::put_cost(&put), |store| kv::put(store, &put))),
            Kind::DeleteRange => decoded(DeleteRangeRequest::decode(payload))
                .and_then(|delete| gates.pass(store, 0, |store| kv::delete_range(store, &delete))),
            Kind::Txn => txn::decode(&payload).and_then(|request| {
                gates.pass(store, gates::txn_cost(&request), |store| txn::apply(store, &request))
            }),
            Kind::Alarm => {
                let result =
                    decoded(AlarmRequest::decode(payload)).map(|request| alarm::set(store, &request));
                self.raised = Raised::of(self.store.tables());
                result
            }
            Kind::Compact => {
                let request = decoded(CompactionRequest::decode(payload));
                let result = request
                    .as_ref()
                    .map_err(Clone::clone)
                    .and_then(|request| gates.pass(store, 0, |store| kv::compact(store, request)));
                if result.is_ok() && request.is_ok_and(|request| request.physical) {
                    let outcome = Outcome { revision: self.store.revision(), result };
                    return Effect::ReplyWhenCompacted(command.id, outcome);
                }
                result
            }
            Kind::MemberAttributes => members::set_attributes(store, &payload),
            Kind::ClusterVersion => members::set_cluster_version(store, &payload),
            Kind::Defragment => unreachable!("an order to one member is never in the log"),
        };
        Effect::Reply(command.id, Outcome { revision: self.store.revision(), result })
    }
}

/// Every member decodes the same bytes with the same result, so a malformed request is an answer, not a failure.
fn decoded<T>(result: Result<T, prost::DecodeError>) -> Result<T, Error> {
    result.map_err(|error| Error::Malformed(error.to_string()))
}
