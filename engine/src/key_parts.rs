//! A key in two pieces, of which keys beside it share the first: so they lie in a node of the key
//! index and in a leaf of the file.

use std::cmp::Ordering;

/// How many bytes of two keys are compared at once.
const WORD: usize = size_of::<u64>();

/// A key. Its bytes are those of the two pieces, one behind the other; where they are
/// divided says nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyParts<'k> {
    begin: &'k [u8],
    rest: &'k [u8],
}

impl<'k> KeyParts<'k> {
    pub(crate) fn new(begin: &'k [u8], rest: &'k [u8]) -> Self {
        Self { begin, rest }
    }

    /// Its bytes, in two pieces.
    #[must_use]
    pub fn parts(&self) -> [&'k [u8]; 2] {
        [self.begin, self.rest]
    }

    /// Its bytes, if they lie in one piece.
    #[must_use]
    pub fn sole(&self) -> Option<&'k [u8]> {
        self.begin.is_empty().then_some(self.rest)
    }

    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.begin.len() + self.rest.len()
    }

    /// It has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes in one piece.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.parts().concat()
    }

    /// The smallest key behind it.
    #[must_use]
    pub fn next(&self) -> Vec<u8> {
        [self.begin, self.rest, &[0]].concat()
    }

    /// Puts it in one piece in place of what was there.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.begin);
        out.extend_from_slice(self.rest);
    }

    /// Whether it begins with these bytes.
    #[must_use]
    pub fn starts_with(&self, bytes: &[u8]) -> bool {
        let (front, behind) = bytes.split_at(bytes.len().min(self.begin.len()));
        self.begin.starts_with(front) && self.rest.starts_with(behind)
    }

    /// Its first bytes, so many; all if it has fewer.
    #[must_use]
    pub fn until(self, len: usize) -> Self {
        let in_begin = len.min(self.begin.len());
        let in_rest = (len - in_begin).min(self.rest.len());
        Self { begin: &self.begin[..in_begin], rest: &self.rest[..in_rest] }
    }

    /// Its bytes behind the first ones, so many, which it must have.
    #[must_use]
    pub(crate) fn behind(self, at: usize) -> Self {
        let in_begin = at.min(self.begin.len());
        Self { begin: &self.begin[in_begin..], rest: &self.rest[at - in_begin..] }
    }

    /// How many bytes both begin with alike.
    #[must_use]
    pub(crate) fn common(self, other: Self) -> usize {
        if self.begins_like(&other) {
            return self.begin.len() + common(self.rest, other.rest);
        }
        let (mut one, mut other) = (self, other);
        let mut alike = 0;
        loop {
            // The pieces that come next; of an empty first one, the second.
            let (mine, theirs) = (one.front(), other.front());
            let len = mine.len().min(theirs.len());
            let same = common(&mine[..len], &theirs[..len]);
            alike += same;
            if same < len || len == 0 {
                return alike;
            }
            (one, other) = (one.behind(len), other.behind(len));
        }
    }

    /// Both are of one node or leaf, which has their beginning once: it need not be read.
    fn begins_like(&self, other: &Self) -> bool {
        std::ptr::eq(self.begin, other.begin)
    }

    fn front(&self) -> &'k [u8] {
        if self.begin.is_empty() { self.rest } else { self.begin }
    }
}

impl<'k> From<&'k [u8]> for KeyParts<'k> {
    fn from(bytes: &'k [u8]) -> Self {
        Self { begin: &[], rest: bytes }
    }
}

impl PartialEq for KeyParts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for KeyParts<'_> {}

impl PartialOrd for KeyParts<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyParts<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.begins_like(other) {
            // Mostly their first bytes tell them apart.
            return match (self.rest.first_chunk::<WORD>(), other.rest.first_chunk()) {
                (Some(one), Some(other)) if one != other => {
                    u64::from_be_bytes(*one).cmp(&u64::from_be_bytes(*other))
                }
                _ => self.rest.cmp(other.rest),
            };
        }
        let alike = self.common(*other);
        let (one, other) = (self.behind(alike), other.behind(alike));
        one.front().cmp(other.front())
    }
}

impl PartialEq<[u8]> for KeyParts<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        self.len() == other.len() && self.starts_with(other)
    }
}

impl PartialOrd<[u8]> for KeyParts<'_> {
    fn partial_cmp(&self, other: &[u8]) -> Option<Ordering> {
        let (front, behind) = other.split_at(other.len().min(self.begin.len()));
        let order = self.begin.cmp(front);
        Some(order.then_with(|| self.rest.cmp(behind)))
    }
}

/// How many bytes two slices begin with alike.
fn common(one: &[u8], other: &[u8]) -> usize {
    let (words, others) = (one.as_chunks::<WORD>().0, other.as_chunks::<WORD>().0);
    for (at, (word, other)) in words.iter().zip(others).enumerate() {
        let differ = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if differ != 0 {
            return at * WORD + (differ.trailing_zeros() / u8::BITS) as usize;
        }
    }
    let alike = WORD * words.len().min(others.len());
    let rest = one[alike..].iter().zip(&other[alike..]);
    alike + rest.take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The same bytes, divided anywhere.
    fn divided(bytes: &[u8], random: &mut Random) -> usize {
        usize::try_from(random.below(bytes.len() as u64 + 1)).unwrap()
    }

    /// Wherever they are divided, keys are those of their bytes.
    #[test]
    fn two_pieces_are_as_good_as_one() {
        let mut random = Random::new(1);
        let bytes = |random: &mut Random| -> Vec<u8> {
            let len = [3, 9, 70, 140][usize::try_from(random.below(4)).unwrap()];
            let same = vec![7; usize::try_from(random.below(len)).unwrap()];
            let rest =
                (0..random.below(3)).map(|_| [6, 7, 8, 255][usize::try_from(random.below(4)).unwrap()]);
            same.into_iter().chain(rest).collect()
        };
        for _ in 0..20_000 {
            let (one, other) = (bytes(&mut random), bytes(&mut random));
            let (at, there) = (divided(&one, &mut random), divided(&other, &mut random));
            let (mine, theirs) =
                (KeyParts::new(&one[..at], &one[at..]), KeyParts::new(&other[..there], &other[there..]));
            let (is_less, alike) = (one < other, one.iter().zip(&other).take_while(|(a, b)| a == b).count());
            assert_eq!(mine.cmp(&theirs), one.cmp(&other), "{one:?} {at}, {other:?} {there}");
            assert_eq!((mine == theirs, mine < other[..]), (one == other, is_less));
            assert_eq!((mine == other[..], mine.common(theirs)), (one == other, alike));
            assert_eq!(mine.starts_with(&other), one.starts_with(&other));
            assert_eq!(
                (mine.to_vec(), mine.len(), mine.is_empty()),
                (one.clone(), one.len(), one.is_empty())
            );
            let beside = KeyParts::new(&one[..at], &other[there..]); // of the same leaf
            let (whole, alike) = (beside.to_vec(), mine.common(KeyParts::from(&beside.to_vec()[..])));
            assert_eq!((mine.cmp(&beside), mine.common(beside)), (one.cmp(&whole), alike));
            let cut = divided(&one, &mut random);
            assert_eq!(mine.until(cut).to_vec(), one[..cut]);
            assert_eq!(mine.behind(cut).to_vec(), one[cut..]);
            let mut out = vec![1, 2];
            mine.write_to(&mut out);
            assert_eq!(out, one);
        }
    }

    #[test]
    fn keys_begin_alike_up_to_where_they_differ() {
        for len in [0, 1, 63, 64, 65, 128, 200] {
            let one = vec![7; len];
            for differs in 0..=len {
                let mut other = [&one[..], &[8]].concat();
                other[differs] = 9;
                assert_eq!((common(&one, &other), common(&other, &one)), (differs, differs));
            }
        }
    }
}
