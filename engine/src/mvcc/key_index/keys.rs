//! The keys of a node, and how one of them is found.
//!
//! All keys of a node lie in one piece of memory, which the copies of the node share: a change of a
//! history copies no key, and a key that comes or goes has the piece made anew. The bytes that all
//! of them begin with are there once. Four bytes of each key lie in front, its tag: the first in
//! which keys of this node can differ. Most searches look at tags and at one key; where tags do not
//! tell the keys apart, at a few more.
//!
//! ```text
//! u32 tag of each key | u16 where each key ends, counted from the first | the common beginning
//!   | the rest of each key; all of one that says nothing
//! ```
//!
//! Keys that are too many bytes for that have memory of their own each; their tags lie together
//! too.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::key_parts::KeyParts;
use crate::prefetch::prefetch;

/// A key with memory of its own.
pub type Key = Arc<[u8]>;

/// Bytes of all keys of a node, whole, that are kept in one piece: so many are copied at most for a
/// key that comes or goes. So keys above half a kilobyte lie apart, whatever they begin with.
const PACKED_BYTES_MAX: usize = 16 << 10;
const TAG: usize = size_of::<u32>();
const END: usize = size_of::<u16>();
const _: () = assert!(PACKED_BYTES_MAX <= u16::MAX as usize);

/// A key on its way into a node or out of it.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyRef<'k> {
    Parts(KeyParts<'k>),
    /// With memory of its own, which can be shared.
    Own(&'k Key),
}

/// The keys of a node, in order. Some at the front may say nothing and are not searched.
#[derive(Debug, Clone)]
pub(super) enum Keys {
    Packed(PackedKeys),
    Apart(Arc<KeysApart>),
}

/// Keys in one piece of memory.
#[derive(Debug, Clone, Default)]
pub(super) struct PackedKeys {
    bytes: Arc<[u8]>,
    len: u16,
    /// Bytes that all searched keys begin with; tags are what follows.
    same: u16,
    /// Keys at the front that say nothing, and that lie there whole.
    unsearched: u8,
}

/// Keys with memory of their own each.
#[derive(Debug, Clone)]
pub(super) struct KeysApart {
    tags: Vec<u32>,
    keys: Vec<Key>,
    /// Bytes of all of them.
    total: usize,
    /// Bytes that all searched keys begin with.
    same: usize,
}

impl<'k> KeyRef<'k> {
    /// A key in one piece.
    pub(super) fn bytes(bytes: &'k [u8]) -> Self {
        Self::Parts(KeyParts::from(bytes))
    }

    pub(super) fn key(self) -> KeyParts<'k> {
        match self {
            Self::Parts(key) => key,
            Self::Own(key) => KeyParts::from(&**key),
        }
    }

    pub(super) fn to_key(self) -> Key {
        match self {
            Self::Parts(key) => Key::from(key.to_vec()),
            Self::Own(key) => Arc::clone(key),
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self::Packed(PackedKeys::default())
    }
}

impl Keys {
    /// These keys, which are in order, so many at the front apart.
    pub(super) fn new<'k>(
        keys: impl DoubleEndedIterator<Item = KeyRef<'k>> + Clone,
        unsearched: usize,
    ) -> Self {
        let (mut len, mut total) = (0, 0);
        for key in keys.clone() {
            (len, total) = (len + 1, total + key.key().len());
        }
        if total > PACKED_BYTES_MAX {
            return Self::Apart(Arc::new(KeysApart::new(keys.map(KeyRef::to_key).collect(), unsearched)));
        }
        Self::Packed(PackedKeys::new(keys.map(KeyRef::key), len, total, unsearched))
    }

    /// Adds a key, which is the one at `at` then.
    pub(super) fn insert(&mut self, at: usize, key: KeyRef<'_>, unsearched: usize) {
        let with_tag = match self {
            Self::Apart(keys) => return Arc::make_mut(keys).insert(at, key.to_key(), unsearched),
            Self::Packed(keys) => keys.with_tag(at, key.key()).map(Self::Packed),
        };
        *self = with_tag.unwrap_or_else(|| {
            let (before, behind) = (self.range(0..at), self.range(at..self.len()));
            Self::new(before.chain(std::iter::once(key)).chain(behind), unsearched)
        });
    }

    pub(super) fn remove(&mut self, at: usize, unsearched: usize) {
        if let Self::Apart(keys) = self
            && keys.total - keys.keys[at].len() > PACKED_BYTES_MAX
        {
            return Arc::make_mut(keys).remove(at, unsearched);
        }
        *self = Self::new(self.range(0..at).chain(self.range(at + 1..self.len())), unsearched);
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Packed(keys) => keys.len(),
            Self::Apart(apart) => apart.keys.len(),
        }
    }

    /// Asks for the memory that a search and a copy look at first.
    pub(super) fn prefetch(&self) {
        self.prefetch_owners();
        if let Self::Packed(keys) = self {
            prefetch(keys.bytes.as_ptr(), keys.len() * (TAG + END));
        }
    }

    /// Asks for the count of the owners of the keys.
    pub(super) fn prefetch_owners(&self) {
        let shared = match self {
            Self::Packed(keys) => keys.bytes.as_ptr(),
            Self::Apart(apart) => Arc::as_ptr(apart).cast(),
        };
        // An `Arc` has two numbers in front of what it shares.
        prefetch(shared.wrapping_sub(2 * size_of::<usize>()), 1);
    }

    pub(super) fn get(&self, at: usize) -> KeyRef<'_> {
        match self {
            Self::Packed(keys) => KeyRef::Parts(keys.get(at)),
            Self::Apart(apart) => KeyRef::Own(&apart.keys[at]),
        }
    }

    pub(super) fn range(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = KeyRef<'_>> + ExactSizeIterator + Clone {
        range.map(|at| self.get(at))
    }

    /// The first of the searched keys that is not `before`, which is told how a key compares with
    /// `key` and goes by their order.
    pub(super) fn first_where(&self, key: &[u8], unsearched: usize, before: fn(Ordering) -> bool) -> usize {
        let searched = unsearched..self.len();
        if searched.is_empty() {
            return self.len();
        }
        match self {
            Self::Packed(keys) => Tagged {
                begin: keys.begin(),
                below: |range, wanted| packed_tags_below(&keys.bytes, range, wanted),
                tag_at: |at| packed_tag(&keys.bytes, at),
                rest_at: |at| keys.piece(at),
            }
            .first_where(key, searched, before),
            Self::Apart(apart) => Tagged {
                begin: &apart.keys[unsearched][..apart.same],
                below: |range, wanted| partition(range, |at| apart.tags[at] < wanted),
                tag_at: |at: usize| apart.tags[at],
                rest_at: |at: usize| &apart.keys[at][apart.same..],
            }
            .first_where(key, searched, before),
        }
    }
}

impl PackedKeys {
    /// These keys, so many of so many bytes, which are in order, so many at the front apart.
    fn new<'k>(
        keys: impl DoubleEndedIterator<Item = KeyParts<'k>> + Clone,
        len: usize,
        total: usize,
        unsearched: usize,
    ) -> Self {
        let same = same(keys.clone(), unsearched);
        let begin = |at: usize| if at < unsearched { 0 } else { same };
        let rests = total - len.saturating_sub(unsearched) * same;
        let bytes = laid_out(len * (TAG + END) + same + rests, |all| {
            let (mut tags, rest) = all.split_at_mut(len * TAG);
            let (mut ends, mut packed) = rest.split_at_mut(len * END);
            let mut end = 0;
            if let Some(first) = keys.clone().nth(unsearched) {
                put_key(&mut packed, first.until(same));
            }
            for (at, key) in keys.enumerate() {
                let rest = key.behind(begin(at));
                let tag = if at < unsearched { 0 } else { tag(rest) };
                end += rest.len();
                put(&mut tags, &tag.to_le_bytes());
                put(&mut ends, &short(end).to_be_bytes());
                put_key(&mut packed, rest);
            }
        });
        let unsearched = u8::try_from(unsearched.min(len)).expect("few keys say nothing");
        Self { bytes, len: short(len), same: short(same), unsearched }
    }

    fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// The bytes that all searched keys begin with.
    fn begin(&self) -> &[u8] {
        &self.bytes[self.len() * (TAG + END)..][..usize::from(self.same)]
    }

    /// The bytes that are there of one key alone.
    fn piece(&self, at: usize) -> &[u8] {
        let (ends, keys) = self.bytes[self.len() * TAG..].split_at(self.len() * END);
        &keys[usize::from(self.same)..][packed_begin(ends, at)..packed_begin(ends, at + 1)]
    }

    fn get(&self, at: usize) -> KeyParts<'_> {
        let begin = if at < usize::from(self.unsearched) { &[] } else { self.begin() };
        KeyParts::new(begin, self.piece(at))
    }

    /// The keys and one more where the tags of the others stay, which is usual: copies the pieces.
    fn with_tag(&self, at: usize, key: KeyParts<'_>) -> Option<Self> {
        let (len, same, unsearched) = (self.len(), usize::from(self.same), usize::from(self.unsearched));
        let stay = len >= unsearched + 2 && at >= unsearched && key.starts_with(self.begin());
        let (tags, rest) = self.bytes.split_at(len * TAG);
        let (ends, packed) = rest.split_at(len * END);
        let all = packed.len() + (len - unsearched).saturating_sub(1) * same + key.len();
        if !stay || all > PACKED_BYTES_MAX {
            return None;
        }
        let key = key.behind(same);
        let begin = same + packed_begin(ends, at);
        let bytes = laid_out((len + 1) * (TAG + END) + packed.len() + key.len(), |mut out| {
            put(&mut out, &tags[..at * TAG]);
            put(&mut out, &tag(key).to_le_bytes());
            put(&mut out, &tags[at * TAG..]);
            put(&mut out, &ends[..at * END]);
            for at in at..=len {
                put(&mut out, &short(packed_begin(ends, at) + key.len()).to_be_bytes());
            }
            put(&mut out, &packed[..begin]);
            put_key(&mut out, key);
            put(&mut out, &packed[begin..]);
        });
        Some(Self { bytes, len: short(len + 1), ..*self })
    }
}

impl KeysApart {
    fn new(keys: Vec<Key>, unsearched: usize) -> Self {
        let total = keys.iter().map(|key| key.len()).sum();
        let mut apart = Self { tags: Vec::new(), keys, total, same: 0 };
        apart.set_tags(unsearched);
        apart
    }

    fn set_tags(&mut self, unsearched: usize) {
        self.same = same(self.keys.iter().map(|key| KeyParts::from(&**key)), unsearched);
        let tag = |(at, key): (usize, &Key)| if at < unsearched { 0 } else { tag_of(&key[self.same..]) };
        self.tags = self.keys.iter().enumerate().map(tag).collect();
    }

    /// Adds a key; its tag alone if those of the others stay.
    fn insert(&mut self, at: usize, key: Key, unsearched: usize) {
        self.total += key.len();
        let searched = &self.keys[unsearched.min(self.keys.len())..];
        // One alone begins like itself, and says nothing of another.
        let stay = at >= unsearched && searched.len() >= 2 && key.starts_with(&searched[0][..self.same]);
        if stay {
            self.tags.insert(at, tag_of(&key[self.same..]));
        }
        self.keys.insert(at, key);
        if !stay {
            self.set_tags(unsearched);
        }
    }

    /// Removes a key; its tag alone if it stood between others.
    fn remove(&mut self, at: usize, unsearched: usize) {
        self.total -= self.keys.remove(at).len();
        if at > unsearched && at < self.keys.len() {
            self.tags.remove(at);
        } else {
            self.set_tags(unsearched);
        }
    }
}

/// Keys that are searched by their tags.
struct Tagged<'k, B, T, R> {
    /// The bytes that all of them begin with.
    begin: &'k [u8],
    /// The first of a range whose tag is not below one.
    below: B,
    tag_at: T,
    /// The bytes behind these.
    rest_at: R,
}

impl<'k, B, T, R> Tagged<'k, B, T, R>
where
    B: Fn(Range<usize>, u32) -> usize,
    T: Fn(usize) -> u32,
    R: Fn(usize) -> &'k [u8],
{
    /// The first of these, of which there are some, that is not `before`.
    fn first_where(&self, key: &[u8], searched: Range<usize>, before: fn(Ordering) -> bool) -> usize {
        let Self { begin, below, tag_at, rest_at } = self;
        let (front, rest) = key.split_at(key.len().min(begin.len()));
        match front.cmp(begin) {
            Ordering::Less => return searched.start,
            Ordering::Greater => return searched.end,
            Ordering::Equal => {}
        }
        let wanted = tag_of(rest);
        let low = below(searched.clone(), wanted);
        let is_alike = |at: usize| tag_at(at) == wanted;
        let high = match low + 1 {
            next if next < searched.end && is_alike(next) => partition(next..searched.end, is_alike),
            next => next.min(searched.end),
        };
        partition(low..high, |at| is_alike(at) && before(rest_at(at).cmp(rest)))
    }
}

/// The first of a range that is not `before`, where those that are come first.
fn partition(range: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let Range { start: mut low, end: mut high } = range;
    while low < high {
        let middle = low.midpoint(high);
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The first of a range of tags that is not below one: all are counted, several in one step of the
/// processor, which takes less time than wrong guesses at the way of a search.
fn packed_tags_below(bytes: &[u8], range: Range<usize>, wanted: u32) -> usize {
    let (tags, _) = bytes[range.start * TAG..range.end * TAG].as_chunks::<TAG>();
    let below: u32 = tags.iter().map(|tag| u32::from(u32::from_le_bytes(*tag) < wanted)).sum();
    range.start + below as usize
}

fn packed_tag(bytes: &[u8], at: usize) -> u32 {
    let tag = bytes[at * TAG..].first_chunk().expect("each key has a tag");
    u32::from_le_bytes(*tag)
}

/// Where a key begins: at the end of the one before.
fn packed_begin(ends: &[u8], at: usize) -> usize {
    let Some(before) = at.checked_sub(1) else { return 0 };
    let end = ends[before * END..].first_chunk().expect("each key has an end");
    usize::from(u16::from_be_bytes(*end))
}

/// So many bytes, laid out in the memory that they stay in.
fn laid_out(len: usize, lay_out: impl FnOnce(&mut [u8])) -> Arc<[u8]> {
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
    lay_out(Arc::get_mut(&mut bytes).expect("nothing else knows it yet"));
    bytes
}

/// Puts bytes at the front of a place, which becomes the rest of it.
fn put(place: &mut &mut [u8], bytes: &[u8]) {
    let (front, rest) = std::mem::take(place).split_at_mut(bytes.len());
    front.copy_from_slice(bytes);
    *place = rest;
}

fn put_key(place: &mut &mut [u8], key: KeyParts<'_>) {
    key.parts().iter().for_each(|part| put(place, part));
}

/// A number that is bounded by the bytes of packed keys.
fn short(number: usize) -> u16 {
    u16::try_from(number).expect("packed keys are short")
}

/// A short key that is above `before` and not above `key`: the key itself where most of it would be
/// copied, and it can be shared.
pub(super) fn between(before: KeyParts<'_>, key: KeyRef<'_>) -> Key {
    let begin = key.key().until(before.common(key.key()) + 1);
    match key {
        KeyRef::Own(own) if begin.len() > own.len() / 2 => Key::clone(own),
        _ => Key::from(begin.to_vec()),
    }
}

/// How many bytes all searched ones of these keys, which are in order, begin with alike.
fn same<'k>(mut keys: impl DoubleEndedIterator<Item = KeyParts<'k>>, unsearched: usize) -> usize {
    let Some(first) = keys.nth(unsearched) else { return 0 };
    first.common(keys.next_back().unwrap_or(first))
}

/// The first four bytes, as a number that is ordered as they are.
fn tag_of(rest: &[u8]) -> u32 {
    if let Some(bytes) = rest.first_chunk::<TAG>() {
        return u32::from_be_bytes(*bytes);
    }
    let mut bytes = [0; TAG];
    bytes[..rest.len()].copy_from_slice(rest);
    u32::from_be_bytes(bytes)
}

fn tag(rest: KeyParts<'_>) -> u32 {
    let mut bytes = [0; TAG];
    put_key(&mut &mut bytes[..], rest.until(TAG));
    u32::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static LOOKS: Cell<u32> = const { Cell::new(0) };
    }

    /// Keys so long that they are not packed, which differ in their last bytes.
    fn long_keys() -> Vec<Key> {
        let key = |number: u32| [&[b'k'; 3_000][..], &number.to_be_bytes()].concat();
        (0..32).map(|number| Key::from(key(3 * number + 1))).collect()
    }

    #[test]
    fn tags_tell_long_keys_apart_that_differ_in_their_last_bytes() {
        let all = long_keys();
        let made = Keys::new(all.iter().map(KeyRef::Own), 0);
        let mut grown = Keys::new(all[..16].iter().map(KeyRef::Own), 0);
        (16..32).for_each(|at| grown.insert(at, KeyRef::Own(&all[at]), 0));
        for keys in [made, grown] {
            assert!(matches!(keys, Keys::Apart(_)));
            for (at, key) in all.iter().enumerate() {
                LOOKS.set(0);
                let found = keys.first_where(key, 0, |order| {
                    LOOKS.set(LOOKS.get() + 1);
                    order == Ordering::Less
                });
                assert!(found == at && LOOKS.get() <= 2, "key {at}: {found} after {LOOKS:?} looks");
            }
        }
    }

    /// A key that comes or goes touches the counters of the others in a copy alone.
    #[test]
    fn long_keys_that_are_not_shared_are_changed_where_they_are() {
        let place = |keys: &Keys| match keys {
            Keys::Apart(apart) => Arc::as_ptr(apart),
            Keys::Packed(_) => panic!("the keys are packed"),
        };
        let all = long_keys();
        let mut keys = Keys::new(all[..20].iter().map(KeyRef::Own), 0);
        let before = place(&keys);
        keys.insert(20, KeyRef::Own(&all[20]), 0);
        assert_eq!(place(&keys), before);
        for at in [7, 0] {
            keys.remove(at, 0);
            assert_eq!(place(&keys), before);
        }
        let copy = keys.clone();
        keys.remove(3, 0);
        assert_eq!((keys.len(), copy.len(), place(&copy)), (18, 19, before));
    }

    #[test]
    fn a_key_between_two_is_as_short_as_can_be() {
        let pairs: [(&[u8], &[u8], &[u8]); 6] = [
            (b"", b"key", b"k"),
            (b"a long one", b"key", b"k"),
            (b"key", b"key\0", b"key\0"),
            (b"key", b"key\0and more", b"key\0"),
            (b"key/000999/of a pod", b"key/001000/of a pod", b"key/001"),
            (b"key/1", b"key/2", b"key/2"),
        ];
        for (before, key, expected) in pairs {
            let cut = between(KeyParts::from(before), KeyRef::bytes(key));
            assert_eq!(&*cut, expected, "between {before:?} and {key:?}");
            assert!(before < &*cut && &*cut <= key);
        }
    }

    #[test]
    fn a_key_between_two_is_shared_where_most_of_it_would_be_copied() {
        let key = Key::from([&[b'k'; 100][..], b"2", &[b'z'; 100]].concat());
        let (half, most) = ([b'k'; 99], [b'k'; 101]);
        let cut = between(KeyParts::from(&half[..]), KeyRef::Own(&key));
        assert!(half[..] < *cut && *cut == key[..100], "{cut:?}");
        let key = Key::from([&[b'k'; 101][..], &[b'z'; 99]].concat());
        let most = KeyParts::from(&most[..]);
        assert!(Arc::ptr_eq(&between(most, KeyRef::Own(&key)), &key));
        assert_eq!(&*between(most, KeyRef::bytes(&key)), &key[..102]);
    }
}
