//! The bytes of a file, in pieces that images share until one of them writes.
//!
//! The engine maps its file at each commit and drops the map at one of the next. A map is whole:
//! instead of copying the file for each, the bytes of a map before, which nobody has by then, are
//! brought up to date by the writes since. Zeros, as a segment of the log is made of, take no
//! memory before somebody maps them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

/// With so many writes since a map, copying everything is as cheap.
const WRITES_MAX: usize = 4_096;
/// Bytes of a piece.
const PIECE: usize = 4_096;

/// A part of a file; none is all zeros.
type Piece = Option<Arc<[u8; PIECE]>>;

/// The bytes of a file.
#[derive(Debug, Default)]
pub(super) struct FileBytes {
    /// Bytes behind them are zero, and so are those behind the end of the file.
    pieces: Vec<Piece>,
    len: usize,
    newest: Option<Mapped>,
    before: Option<Mapped>,
}

/// The bytes as a map had them, and the places of the writes since.
#[derive(Debug)]
struct Mapped {
    bytes: Arc<Vec<u8>>,
    changed: Vec<Range<usize>>,
}

impl Clone for FileBytes {
    fn clone(&self) -> Self {
        Self { pieces: self.pieces.clone(), len: self.len, newest: None, before: None }
    }
}

/// The pieces that a place lies in: their numbers, and the part of each.
fn parts(place: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let numbers = place.start / PIECE..place.end.div_ceil(PIECE);
    numbers.map(move |number| {
        let start = number * PIECE;
        (number, place.start.max(start) - start..place.end.min(start + PIECE) - start)
    })
}

impl FileBytes {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn piece(&self, number: usize) -> Option<&[u8; PIECE]> {
        self.pieces.get(number)?.as_deref()
    }

    fn copy(&self, place: Range<usize>, mut to: &mut [u8]) {
        for (number, part) in parts(place) {
            let (now, behind) = to.split_at_mut(part.len());
            match self.piece(number) {
                Some(piece) => now.copy_from_slice(&piece[part]),
                None => now.fill(0),
            }
            to = behind;
        }
    }

    fn collect(&self, place: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(place.len());
        for (number, part) in parts(place) {
            match self.piece(number) {
                Some(piece) => bytes.extend_from_slice(&piece[part]),
                None => bytes.resize(bytes.len() + part.len(), 0),
            }
        }
        bytes
    }

    /// A map: all bytes as they are now; later writes do not show.
    pub(super) fn share(&mut self) -> Arc<Vec<u8>> {
        let is_current = |newest: &&Mapped| newest.changed.is_empty() && newest.bytes.len() == self.len;
        if let Some(newest) = self.newest.as_ref().filter(is_current) {
            return Arc::clone(&newest.bytes);
        }
        let newest = self.newest.take();
        let before = std::mem::replace(&mut self.before, newest);
        let bytes = before.and_then(|before| self.up_to_date(before));
        let bytes = bytes.unwrap_or_else(|| Arc::new(self.collect(0..self.len)));
        self.newest = Some(Mapped { bytes: Arc::clone(&bytes), changed: Vec::new() });
        bytes
    }

    /// The same as those now; none while a map has them.
    fn up_to_date(&self, mut before: Mapped) -> Option<Arc<Vec<u8>>> {
        let bytes = Arc::get_mut(&mut before.bytes)?;
        bytes.reserve_exact(self.len - bytes.len());
        bytes.resize(self.len, 0);
        for place in before.changed {
            self.copy(place.clone(), &mut bytes[place]);
        }
        Some(before.bytes)
    }

    /// A copy of some bytes; none if they are not all there.
    pub(super) fn read(&self, place: Range<usize>) -> Option<Bytes> {
        (place.end <= self.len).then(|| self.collect(place).into())
    }

    pub(super) fn is_equal(&self, other: &Self) -> bool {
        let is_equal = |number: usize| match (self.piece(number), other.piece(number)) {
            (Some(own), Some(others)) => std::ptr::eq(own, others) || own == others,
            (own, others) => own.or(others).is_none_or(|piece| *piece == [0; PIECE]),
        };
        self.len == other.len && (0..self.len.div_ceil(PIECE)).all(is_equal)
    }

    pub(super) fn set_len(&mut self, len: usize) {
        if len < self.len {
            self.pieces.truncate(len.div_ceil(PIECE));
            if let Some(Some(last)) = self.pieces.get_mut(len / PIECE) {
                Arc::make_mut(last)[len % PIECE..].fill(0);
            }
            // Bytes behind may be zero since, and no write says so.
            (self.newest, self.before) = (None, None);
        }
        self.len = len;
    }

    pub(super) fn write(&mut self, at: usize, mut bytes: &[u8]) {
        let place = at..at + bytes.len();
        self.len = self.len.max(place.end);
        for (number, part) in parts(place.clone()) {
            if self.pieces.len() <= number {
                self.pieces.resize(number + 1, None);
            }
            let piece = self.pieces[number].get_or_insert_with(|| Arc::new([0; PIECE]));
            let (now, behind) = bytes.split_at(part.len());
            Arc::make_mut(piece)[part].copy_from_slice(now);
            bytes = behind;
        }
        for mapped in [&mut self.newest, &mut self.before] {
            let _ = mapped.take_if(|mapped| !mapped.is_changed_by(&place));
        }
    }
}

impl Mapped {
    /// Notes a write; false if there are too many.
    fn is_changed_by(&mut self, place: &Range<usize>) -> bool {
        match self.changed.last_mut() {
            Some(last) if last.end == place.start => last.end = place.end,
            _ => self.changed.push(place.clone()),
        }
        self.changed.len() <= WRITES_MAX
    }
}

#[cfg(test)]
mod tests {
    use revd_engine::random::Random;

    use super::*;

    /// Zeros at the end are the same whether somebody has mapped them or not.
    #[test]
    fn files_are_equal_by_their_bytes() {
        let mut one = FileBytes::default();
        one.set_len(2_000);
        one.write(10, b"abc");
        let mut other = one.clone();
        assert_eq!(other.share().len(), 2_000);
        assert!(one.is_equal(&other) && other.is_equal(&one));
        other.write(1_500, &[1]);
        assert!(!one.is_equal(&other) && !other.is_equal(&one));
        one.set_len(1_400);
        other.set_len(1_400);
        assert!(one.is_equal(&other));
        one.set_len(1_500);
        assert!(!one.is_equal(&other));
        // A part that one of them has never written is zeros in the other.
        one.set_len(9_000);
        let mut other = one.clone();
        other.write(5_000, &[0]);
        assert!(one.is_equal(&other) && other.is_equal(&one));
        other.write(5_000, &[1]);
        assert!(!one.is_equal(&other) && !other.is_equal(&one));
    }

    /// Each map keeps its bytes, and the file has all writes, with any maps at any time.
    #[test]
    fn a_map_keeps_its_bytes_and_the_file_has_all_writes() {
        let mut random = Random::new(1);
        let mut below = |bound: usize| usize::try_from(random.below(bound as u64)).expect("small");
        let (mut file, mut model) = (FileBytes::default(), Vec::new());
        let mut maps: Vec<(Arc<Vec<u8>>, Vec<u8>)> = Vec::new();
        for step in 0..20_000 {
            match below(20) {
                0 => {
                    let len = below(9_000);
                    file.set_len(len);
                    model.resize(len, 0);
                }
                1 | 2 => maps.push((file.share(), model.clone())),
                3 if !maps.is_empty() => drop(maps.swap_remove(below(maps.len()))),
                4 => maps.clear(),
                _ => {
                    let (at, bytes) =
                        (below(9_000), vec![u8::try_from(step % 251).expect("a byte"); below(90)]);
                    file.write(at, &bytes);
                    model.resize(model.len().max(at + bytes.len()), 0);
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            assert_eq!(file.read(0..file.len()).expect("all of it"), model, "step {step}");
            let start = below(9_000);
            let some = start..start + below(6_000);
            let expected = model.get(some.clone()).map(|bytes| bytes.to_vec().into());
            assert_eq!(file.read(some), expected, "step {step}");
            assert!(maps.iter().all(|(map, then)| **map == *then), "step {step}");
        }
    }
}
