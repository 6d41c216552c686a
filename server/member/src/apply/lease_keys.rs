//! The keys of leases that have very many: their answers are made a part at a time, so that others
//! are served meanwhile. Each describes the moment in which it was begun.

use std::collections::VecDeque;

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::LeaseTimeToLiveResponse;
use revd_proto::tags::lease_time_to_live_response;

use crate::apply::command::CommandId;
use crate::apply::outcome::{Effect, Outcome, Rest};
use crate::apply::state::State;
use crate::error::Error;
use crate::lease::Leases;
use crate::limits;
use crate::wire::put_field;

/// State core view: who wants to know the keys of which lease, and the answer that is being made:
/// one for all who had asked for that lease by then.
#[derive(Debug, Default)]
pub(super) struct KeyLists {
    next: VecDeque<(CommandId, KeysOf)>,
    current: Option<List>,
}

/// A question for the keys of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeysOf {
    pub(super) lease: i64,
    /// Nothing else is asked about it: any member can answer.
    pub(super) is_alone: bool,
}

/// Bytes of everything that such a reply says of a lease beside its keys.
const LIST_BYTES_BEFORE_KEYS: usize = 64;
/// A tag, and the length of a key of less than 256 MiB.
const KEY_HEAD_BYTES_MAX: usize = 5;

#[derive(Debug)]
struct List {
    askers: Vec<CommandId>,
    revision: i64,
    /// The answer so far.
    body: Vec<u8>,
}

impl KeyLists {
    /// No keys are asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty() && self.current.is_none()
    }

    /// The state is another one from now on: all that wait are refused.
    pub(super) fn refuse_all(&mut self, revision: i64, why: &Error, effects: &mut Vec<Effect>) {
        let current = self.current.take().into_iter().flat_map(|list| list.askers);
        for asker in current.chain(self.next.drain(..).map(|(asker, _)| asker)) {
            let outcome = Outcome { revision, result: Err(why.clone()), rest: Rest::NONE };
            effects.push(Effect::Reply(asker, outcome));
        }
    }

    /// A caller asks for the keys of a lease, which may have many.
    pub(super) fn ask(&mut self, asker: CommandId, keys: KeysOf) {
        self.next.push_back((asker, keys));
    }

    /// Goes on with the answer that is being made, then with others, for a turn; `begin` is what
    /// else there is to say about a lease.
    pub(super) fn go_on(
        &mut self,
        state: &mut State,
        effects: &mut Vec<Effect>,
        begin: impl Fn(&State, KeysOf) -> Result<LeaseTimeToLiveResponse, Error>,
    ) {
        let mut bytes = 0;
        for _ in 0..limits::LEASE_PARTS_PER_TURN {
            bytes += self.make_part(state, effects, &begin);
            if bytes >= limits::LEASE_KEY_BYTES_PER_TURN {
                return; // a part has a key at least, and keys may be long
            }
        }
    }

    /// Makes a part of an answer; how many bytes it has.
    fn make_part(
        &mut self,
        state: &mut State,
        effects: &mut Vec<Effect>,
        begin: impl Fn(&State, KeysOf) -> Result<LeaseTimeToLiveResponse, Error>,
    ) -> usize {
        if self.current.is_none()
            && let Some((_, keys)) = self.next.front().copied()
        {
            let revision = state.store.revision();
            let askers: Vec<CommandId> =
                self.next.iter().filter(|(_, other)| *other == keys).map(|(asker, _)| *asker).collect();
            self.next.retain(|(_, other)| *other != keys);
            match begin(state, keys) {
                Ok(response) => {
                    let KeysOf { lease, .. } = keys;
                    let mut body = Vec::with_capacity(key_list_bytes_max(&state.leases, lease));
                    body.extend(response.encode_to_vec());
                    state.leases.begin_reading(lease);
                    self.current = Some(List { askers, revision, body });
                }
                Err(error) => reply(&askers, revision, &Err(error), effects),
            }
        }
        let Some(List { body, .. }) = &mut self.current else { return 0 };
        let before = body.len();
        let enough = body.len() + limits::LEASE_KEY_BYTES_PER_TURN / limits::LEASE_PARTS_PER_TURN;
        let keys = limits::LEASE_KEYS_PER_TURN / limits::LEASE_PARTS_PER_TURN;
        let more = state.leases.read_on(keys, |key| {
            put_field(body, lease_time_to_live_response::KEYS, key);
            body.len() < enough
        });
        let bytes = body.len() - before;
        if !more && let Some(List { askers, revision, body }) = self.current.take() {
            reply(&askers, revision, &Ok(body.into()), effects);
        }
        bytes
    }
}

/// The most bytes of a reply with the keys of a lease: each has a tag and its length before it.
fn key_list_bytes_max(leases: &Leases, lease: i64) -> usize {
    LIST_BYTES_BEFORE_KEYS + KEY_HEAD_BYTES_MAX * leases.key_count(lease) + leases.key_bytes(lease)
}

/// Answers [`crate::apply::local::LeaseRequest::KeyBytes`].
pub(super) fn tell_bytes(asker: CommandId, state: &State, lease: i64, effects: &mut Vec<Effect>) {
    let bytes = key_list_bytes_max(&state.leases, lease) as u64;
    let bytes = Bytes::copy_from_slice(&bytes.to_le_bytes());
    reply(&[asker], state.store.revision(), &Ok(bytes), effects);
}

fn reply(askers: &[CommandId], revision: i64, result: &Result<Bytes, Error>, effects: &mut Vec<Effect>) {
    for asker in askers {
        let outcome = Outcome { revision, result: result.clone(), rest: Rest::NONE };
        effects.push(Effect::Reply(*asker, outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;
    use std::sync::Arc;

    const KEYS: usize = 10 * limits::LEASE_KEYS_PER_TURN;

    fn state() -> State {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let mut state = State { store, leases: Leases::default() };
        for lease in [7, 8] {
            state.leases.grant(&mut state.store, lease, 60).unwrap();
        }
        let touched = (0..KEYS).map(|number| (key(number), 7)).collect();
        state.leases.attach(&mut state.store, touched);
        state
    }

    fn key(number: usize) -> Vec<u8> {
        format!("key {number:09}").into_bytes()
    }

    /// Makes answers until there are none left to make; `between` happens after each
    /// part. The parts, and the replies.
    fn answer(
        lists: &mut KeyLists,
        state: &mut State,
        mut between: impl FnMut(usize, &mut State),
    ) -> (usize, Vec<(CommandId, LeaseTimeToLiveResponse)>) {
        let (mut parts, mut effects) = (0, Vec::new());
        while !lists.is_empty() {
            lists.go_on(state, &mut effects, |_, KeysOf { lease: id, .. }| {
                Ok(LeaseTimeToLiveResponse { id, ttl: 5, ..LeaseTimeToLiveResponse::default() })
            });
            parts += 1;
            between(parts, state);
        }
        let replies = effects.into_iter().map(|effect| match effect {
            Effect::Reply(id, outcome) => {
                (id, LeaseTimeToLiveResponse::decode(outcome.result.unwrap()).unwrap())
            }
            other => panic!("{other:?}"),
        });
        (parts, replies.collect())
    }

    /// Issue 14, number 22: all keys of a lease were copied in one turn.
    #[test]
    fn an_answer_is_made_in_parts_and_describes_one_moment() {
        let (mut state, mut lists) = (state(), KeyLists::default());
        let askers = [1, 2].map(|slot| CommandId::new(0, slot, 0));
        askers.iter().for_each(|asker| lists.ask(*asker, KeysOf { lease: 7, is_alone: false }));
        let (parts, replies) = answer(&mut lists, &mut state, |part, state| {
            // Some go to another lease, in front of what was read and behind it, some
            // come, and some go and come again.
            let touched = vec![
                (key(part), 8),
                (key(KEYS - part), 8),
                (format!("key {:09} too", KEYS - 2 * part).into_bytes(), 7),
                (key(KEYS - 100 - part), 0),
                (key(KEYS - 100 - part), 7),
            ];
            state.leases.attach(&mut state.store, touched);
        });
        assert!((10..=12).contains(&parts), "{parts} parts");
        assert_eq!(replies.iter().map(|(id, _)| *id).collect::<Vec<_>>(), askers);
        for (_, reply) in replies {
            assert_eq!((reply.id, reply.ttl), (7, 5));
            assert!(reply.keys.iter().map(|key| key.to_vec()).eq((0..KEYS).map(key)));
        }
    }

    #[test]
    fn the_keys_of_a_lease_that_ends_meanwhile_are_all_told() {
        let (mut state, mut lists) = (state(), KeyLists::default());
        lists.ask(CommandId::new(0, 1, 0), KeysOf { lease: 7, is_alone: false });
        let (parts, replies) = answer(&mut lists, &mut state, |part, state| {
            if part == 3 {
                state.leases.revoke(&mut state.store, 7).unwrap();
                state.leases.grant(&mut state.store, 7, 60).unwrap();
                state.leases.attach(&mut state.store, vec![(b"new".to_vec(), 7), (key(KEYS - 1), 7)]);
            }
        });
        assert!(parts >= 10, "{parts} parts");
        assert!(replies[0].1.keys.iter().map(|key| key.to_vec()).eq((0..KEYS).map(key)));
    }

    #[test]
    fn long_keys_make_shorter_parts() {
        let (mut state, mut lists) = (state(), KeyLists::default());
        let long = |number: usize| format!("{number} {}", "k".repeat(100_000)).into_bytes();
        state.leases.attach(&mut state.store, (0..20).map(|number| (long(number), 8)).collect());
        lists.ask(CommandId::new(0, 1, 0), KeysOf { lease: 8, is_alone: false });
        let (parts, replies) = answer(&mut lists, &mut state, |_, _| {});
        assert!((7..=9).contains(&parts), "{parts} parts");
        assert_eq!(replies[0].1.keys.len(), 20);
    }
}
