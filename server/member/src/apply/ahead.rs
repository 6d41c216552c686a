//! Keys of commands that are to come: what their puts will read in the index is fetched into the
//! caches for several of them together, before the first is carried out. Outcomes do not depend on
//! it.

use revd_engine::limits::LOOK_AHEAD_KEYS_MAX;

use crate::apply::command::{self, Kind};
use crate::apply::{CommittedEntry, Machine};

/// How a put begins whose key stands in front, where encoders place it.
const KEY_TAG: u8 = 0x0a;

/// Keys that are looked ahead at, and the commands they are of.
#[derive(Default)]
struct Ahead<'k> {
    keys: [&'k [u8]; LOOK_AHEAD_KEYS_MAX],
    found: usize,
    commands: usize,
}

impl<'k> Ahead<'k> {
    /// Adds commands while there is room.
    fn add(&mut self, commands: impl Iterator<Item = (Kind, &'k [u8])>) {
        for (kind, payload) in commands.take(LOOK_AHEAD_KEYS_MAX - self.commands) {
            self.commands += 1;
            if let Some(key) = (kind == Kind::Put).then(|| key_of(payload)).flatten() {
                self.keys[self.found] = key;
                self.found += 1;
            }
        }
    }

    fn is_full(&self) -> bool {
        self.commands == LOOK_AHEAD_KEYS_MAX
    }
}

/// The key of a put; none where it would have to be looked for.
fn key_of(put: &[u8]) -> Option<&[u8]> {
    let (tag, rest) = put.split_first()?;
    let (len, key) = rest.split_first()?;
    let (len, key) = match (*len, key.split_first()) {
        (len @ 0..0x80, _) => (usize::from(len), key),
        (low, Some((high @ 0..0x80, key))) => (usize::from(low & 0x7f) | usize::from(*high) << 7, key),
        _ => return None,
    };
    key.get(..len).filter(|_| *tag == KEY_TAG)
}

impl Machine {
    /// Looks ahead at commands of the entry that is being applied, then at those of entries that
    /// follow; at how many.
    pub fn look_ahead<'e>(&self, entries: impl Iterator<Item = &'e CommittedEntry>) -> usize {
        let mut ahead = Ahead::default();
        if let Some(current) = &self.current {
            ahead.add(current.commands.as_slice().iter().map(|command| (command.kind, &command.payload[..])));
        }
        for entry in entries {
            if ahead.is_full() {
                break;
            }
            ahead.add(command::raw(&entry.data));
        }
        // One alone would be waited for twice.
        if ahead.found > 1 {
            self.store().look_ahead(ahead.keys[..ahead.found].iter().copied());
        }
        ahead.commands
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message as _;
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;
    use revd_engine::random::Random;
    use revd_proto::etcdserverpb::{DeleteRangeRequest, PutRequest};

    use super::*;
    use crate::apply::MachineConfig;
    use crate::apply::command::{Command, CommandId, Origin};

    const OWN: Origin = Origin { member: 1, boot: 1 };

    fn machine() -> Machine {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        Machine::new(store, MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 0 }).unwrap()
    }

    fn entry(index: u64, commands: usize, random: &mut Random) -> CommittedEntry {
        let command = |slot| {
            let key = format!("key/{}", random.below(2_000)).into_bytes().into();
            let (kind, payload) = if random.one_in(10) {
                (Kind::DeleteRange, DeleteRangeRequest { key, ..Default::default() }.encode_to_vec())
            } else {
                (Kind::Put, PutRequest { key, ..Default::default() }.encode_to_vec())
            };
            Command { id: CommandId::new(0, slot, 0), kind, payload: payload.into() }
        };
        let commands: Vec<_> = (0..commands).map(command).collect();
        CommittedEntry { index, term: 1, data: command::encode(OWN, &commands).into(), change: None }
    }

    #[test]
    fn commands_of_this_entry_and_of_later_ones_are_looked_ahead_at() {
        let (mut machine, mut random, mut effects) = (machine(), Random::new(1), Vec::new());
        let mut coming = |index, commands| entry(index, commands, &mut random);
        let entries = [coming(1, 3), coming(2, 0), coming(3, 5), coming(4, 100)];
        assert_eq!(machine.look_ahead([].iter()), 0);
        assert_eq!(machine.look_ahead(entries[..3].iter()), 8);
        machine.begin(&entries[0]).unwrap();
        machine.step(0, &mut effects).unwrap();
        assert_eq!(machine.look_ahead(entries[1..3].iter()), 7);
        assert_eq!(machine.look_ahead(entries[1..].iter()), LOOK_AHEAD_KEYS_MAX);
    }

    #[test]
    fn what_commands_do_does_not_depend_on_it() {
        let (mut plain, mut ahead) = (machine(), machine());
        let mut random = Random::new(2);
        let (mut views, mut effects) = ((None, None), (Vec::new(), Vec::new()));
        for index in 1..=300 {
            let entry = entry(index, 1 + usize::try_from(random.below(30)).unwrap(), &mut random);
            plain.apply(&entry, 0, &mut effects.0).unwrap();
            ahead.look_ahead([entry.clone()].iter());
            ahead.begin(&entry).unwrap();
            while ahead.is_within_entry() {
                ahead.look_ahead([].iter());
                ahead.step(0, &mut effects.1).unwrap();
            }
            assert!(effects.0 == effects.1, "the outcomes of entry {index}");
            assert_eq!(plain.store().state_hash(), ahead.store().state_hash(), "behind entry {index}");
            if random.one_in(3) {
                views = (Some(plain.store_mut().view()), Some(ahead.store_mut().view()));
            }
        }
        drop(views);
        assert!(plain.store().revision() > 2_000);
    }

    #[test]
    fn the_key_of_a_put_is_found_in_front() {
        for len in [0, 1, 127, 128, 300, 16_383, 16_384] {
            let key = vec![b'k'; len];
            let put =
                PutRequest { key: key.clone().into(), value: vec![1; 300].into(), ..Default::default() };
            let encoded = put.encode_to_vec();
            let expected = (1..16_384).contains(&len).then_some(&key[..]);
            assert_eq!(key_of(&encoded), expected, "{len} bytes");
            for cut in 0..len.min(encoded.len()) {
                assert_eq!(key_of(&encoded[..cut]), None, "{len} bytes, cut at {cut}");
            }
        }
        assert_eq!(key_of(&[0x12, 1, b'v', 0x0a, 1, b'k']), None, "the value stands in front");
        assert_eq!(key_of(&[0x0a, 0xff, 0xff, 0xff, 1]), None);
    }
}
