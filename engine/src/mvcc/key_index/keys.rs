//! The keys of a node, and how one of them is found.
//!
//! All keys of a node lie in one piece of memory, which the copies of the node share: a change of a
//! history copies no key, and a key that comes or goes has the piece made anew. Four bytes of each
//! key lie in front, its tag: the first in which keys of this node can differ. Most searches look
//! at tags and at one key; where tags do not tell the keys apart, at a few more.
//!
//! ```text
//! u32 tag of each key | u16 where each key ends, counted from the first | the keys
//! ```
//!
//! Keys that are too many bytes for that have memory of their own each, and no tags.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

/// A key with memory of its own.
pub type Key = Arc<[u8]>;

/// Bytes of all keys of a node that are kept in one piece: so many are copied at most for a key
/// that comes or goes.
const PACKED_BYTES_MAX: usize = 16 << 10;
const TAG: usize = size_of::<u32>();
const END: usize = size_of::<u16>();
const _: () = assert!(PACKED_BYTES_MAX <= u16::MAX as usize);

/// A key on its way into a node.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyRef<'k> {
    Bytes(&'k [u8]),
    /// With memory of its own, which can be shared.
    Own(&'k Key),
}

/// The keys of a node, in order. Some at the front may say nothing and are not searched.
#[derive(Debug, Clone)]
pub(super) enum Keys {
    Packed {
        bytes: Arc<[u8]>,
        len: u16,
        /// Bytes that all searched keys begin with; tags are what follows.
        same: u16,
    },
    Apart(Arc<[Key]>),
}

impl<'k> KeyRef<'k> {
    pub(super) fn bytes(self) -> &'k [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Own(key) => key,
        }
    }

    pub(super) fn to_key(self) -> Key {
        match self {
            Self::Bytes(bytes) => Key::from(bytes),
            Self::Own(key) => Arc::clone(key),
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self::Packed { bytes: Arc::default(), len: 0, same: 0 }
    }
}

impl Keys {
    /// These keys, which are in order, so many at the front apart.
    pub(super) fn new<'k>(keys: impl Iterator<Item = KeyRef<'k>> + Clone, unsearched: usize) -> Self {
        let (mut len, mut total) = (0, 0);
        for key in keys.clone() {
            (len, total) = (len + 1, total + key.bytes().len());
        }
        if total > PACKED_BYTES_MAX {
            return Self::Apart(keys.map(KeyRef::to_key).collect());
        }
        let mut searched = keys.clone().skip(unsearched).map(KeyRef::bytes);
        let first = searched.next().unwrap_or_default();
        let same = common(first, searched.last().unwrap_or(first));
        let bytes = laid_out(len * (TAG + END) + total, |all| {
            let (mut tags, rest) = all.split_at_mut(len * TAG);
            let (mut ends, mut packed) = rest.split_at_mut(len * END);
            let mut end = 0;
            for (at, key) in keys.map(KeyRef::bytes).enumerate() {
                let tag = if at < unsearched { 0 } else { tag(key, same) };
                end += key.len();
                put(&mut tags, &tag.to_be_bytes());
                put(&mut ends, &short(end).to_be_bytes());
                put(&mut packed, key);
            }
        });
        Self::Packed { bytes, len: short(len), same: short(same) }
    }

    /// These keys and one more, which is the one at `at` then.
    pub(super) fn with(&self, at: usize, key: KeyRef<'_>, unsearched: usize) -> Self {
        if let Some(keys) = self.with_tag(at, key.bytes(), unsearched) {
            return keys;
        }
        let (before, behind) = (self.range(0..at), self.range(at..self.len()));
        Self::new(before.chain(std::iter::once(key)).chain(behind), unsearched)
    }

    /// The same where the tags of the others stay, which is usual: copies the pieces.
    fn with_tag(&self, at: usize, key: &[u8], unsearched: usize) -> Option<Self> {
        let Self::Packed { bytes, len, same } = self else { return None };
        let (len, same) = (usize::from(*len), usize::from(*same));
        let (tags, rest) = bytes.split_at(len * TAG);
        let (ends, packed) = rest.split_at(len * END);
        let total = packed.len() + key.len();
        // One searched key alone begins like itself.
        if at < unsearched || len < unsearched + 2 || total > PACKED_BYTES_MAX {
            return None;
        }
        let neighbour = packed_key(bytes, len, if at > unsearched { at - 1 } else { at });
        if key.get(..same) != Some(&neighbour[..same]) {
            return None;
        }
        let begin = packed_begin(ends, at);
        let bytes = laid_out((len + 1) * (TAG + END) + total, |mut out| {
            put(&mut out, &tags[..at * TAG]);
            put(&mut out, &tag(key, same).to_be_bytes());
            put(&mut out, &tags[at * TAG..]);
            put(&mut out, &ends[..at * END]);
            for at in at..=len {
                put(&mut out, &short(packed_begin(ends, at) + key.len()).to_be_bytes());
            }
            put(&mut out, &packed[..begin]);
            put(&mut out, key);
            put(&mut out, &packed[begin..]);
        });
        Some(Self::Packed { bytes, len: short(len + 1), same: short(same) })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Packed { len, .. } => usize::from(*len),
            Self::Apart(keys) => keys.len(),
        }
    }

    pub(super) fn get(&self, at: usize) -> KeyRef<'_> {
        match self {
            Self::Packed { bytes, len, .. } => KeyRef::Bytes(packed_key(bytes, usize::from(*len), at)),
            Self::Apart(keys) => KeyRef::Own(&keys[at]),
        }
    }

    pub(super) fn range(&self, range: Range<usize>) -> impl Iterator<Item = KeyRef<'_>> + Clone {
        range.map(|at| self.get(at))
    }

    /// The first of the searched keys that is not `before`, which goes by their order to `key`.
    pub(super) fn first_where(&self, key: &[u8], unsearched: usize, before: impl Fn(&[u8]) -> bool) -> usize {
        let searched = unsearched..self.len();
        let (bytes, same) = match self {
            _ if searched.is_empty() => return self.len(),
            Self::Apart(keys) => return partition(searched, |at| before(&keys[at])),
            Self::Packed { bytes, same, .. } => (bytes, usize::from(*same)),
        };
        let (tag_at, key_at) = (|at| packed_tag(bytes, at), |at| packed_key(bytes, searched.end, at));
        let wanted = tag(key, same);
        let low = partition(searched.clone(), |at| tag_at(at) < wanted);
        // All begin alike: the one that is likely to be looked at anyway says how.
        let begin = &key_at(low.min(searched.end - 1))[..same];
        match key[..same.min(key.len())].cmp(begin) {
            Ordering::Less => return searched.start,
            Ordering::Greater => return searched.end,
            Ordering::Equal => {}
        }
        let is_alike = |at: usize| tag_at(at) == wanted;
        let high = match low + 1 {
            next if next < searched.end && is_alike(next) => partition(next..searched.end, is_alike),
            next => next.min(searched.end),
        };
        partition(low..high, |at| is_alike(at) && before(key_at(at)))
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

fn packed_tag(bytes: &[u8], at: usize) -> u32 {
    let tag = bytes[at * TAG..].first_chunk().expect("each key has a tag");
    u32::from_be_bytes(*tag)
}

fn packed_key(bytes: &[u8], len: usize, at: usize) -> &[u8] {
    let (ends, keys) = bytes[len * TAG..].split_at(len * END);
    &keys[packed_begin(ends, at)..packed_begin(ends, at + 1)]
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

/// A number that is bounded by the bytes of packed keys.
fn short(number: usize) -> u16 {
    u16::try_from(number).expect("packed keys are short")
}

/// How many bytes two keys begin with alike.
pub(super) fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Four bytes of a key from `from` on, as a number that is ordered as they are.
fn tag(key: &[u8], from: usize) -> u32 {
    let rest = key.get(from..).unwrap_or_default();
    if let Some(bytes) = rest.first_chunk::<TAG>() {
        return u32::from_be_bytes(*bytes);
    }
    let mut bytes = [0; TAG];
    bytes[..rest.len()].copy_from_slice(rest);
    u32::from_be_bytes(bytes)
}
