//! The bytes of a file, which those who map it share until one writes.
//!
//! The engine maps its file at each commit and drops the map at one of the next. A write between
//! them would copy the whole file: instead the bytes of the map before, which nobody has by then,
//! are brought up to date by the writes since. Zeros at the end of a file, as a segment of the log
//! is made of, take no memory before somebody maps them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

/// With so many writes since, copying everything is as cheap.
const WRITES_MAX: usize = 4_096;

/// The bytes of a file.
#[derive(Debug, Default)]
pub(super) struct FileBytes {
    /// Bytes behind them are zero.
    now: Arc<Vec<u8>>,
    len: usize,
    before: Option<Before>,
}

/// The bytes as a map had them, and the places of the writes since.
#[derive(Debug)]
struct Before {
    bytes: Arc<Vec<u8>>,
    changed: Vec<Range<usize>>,
}

impl Clone for FileBytes {
    fn clone(&self) -> Self {
        Self { now: Arc::clone(&self.now), len: self.len, before: None }
    }
}

impl FileBytes {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A map: all bytes as they are now; later writes do not show.
    pub(super) fn share(&mut self) -> Arc<Vec<u8>> {
        if self.now.len() < self.len {
            let len = self.len;
            self.own().resize(len, 0);
        }
        Arc::clone(&self.now)
    }

    /// A copy of some bytes; none if they are not all there.
    pub(super) fn read(&self, place: Range<usize>) -> Option<Bytes> {
        if place.end > self.len {
            return None;
        }
        let mut bytes = self.now.get(place.start..place.end.min(self.now.len())).unwrap_or_default().to_vec();
        bytes.resize(place.len(), 0);
        Some(bytes.into())
    }

    pub(super) fn is_equal(&self, other: &Self) -> bool {
        let both = self.now.len().min(other.now.len());
        let is_zero = |file: &Self| file.now[both..].iter().all(|byte| *byte == 0);
        self.len == other.len && self.now[..both] == other.now[..both] && is_zero(self) && is_zero(other)
    }

    pub(super) fn set_len(&mut self, len: usize) {
        if len < self.now.len() {
            self.own().truncate(len);
            self.before = None; // bytes behind may be zero since, and no write says so
        }
        self.len = len;
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let place = at..at + bytes.len();
        self.len = self.len.max(place.end);
        let now = self.own();
        now.resize(now.len().max(place.end), 0);
        now[place.clone()].copy_from_slice(bytes);
        match &mut self.before {
            Some(before) if before.changed.len() < WRITES_MAX => match before.changed.last_mut() {
                Some(last) if last.end == place.start => last.end = place.end,
                _ => before.changed.push(place),
            },
            _ => self.before = None,
        }
    }

    /// The bytes, which no map has.
    fn own(&mut self) -> &mut Vec<u8> {
        if Arc::get_mut(&mut self.now).is_none() {
            let next = self.before.take().and_then(|before| before.up_to_date(&self.now));
            let next = next.unwrap_or_else(|| Arc::new(self.now.to_vec()));
            let bytes = std::mem::replace(&mut self.now, next);
            self.before = Some(Before { bytes, changed: Vec::new() });
        }
        Arc::get_mut(&mut self.now).expect("no map has them")
    }
}

impl Before {
    /// The same as those now; none while a map has them.
    fn up_to_date(mut self, now: &[u8]) -> Option<Arc<Vec<u8>>> {
        let bytes = Arc::get_mut(&mut self.bytes)?;
        bytes.resize(now.len(), 0);
        for place in self.changed {
            bytes[place.clone()].copy_from_slice(&now[place]);
        }
        Some(self.bytes)
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
                    let len = below(3_000);
                    file.set_len(len);
                    model.resize(len, 0);
                }
                1 | 2 => maps.push((file.share(), model.clone())),
                3 if !maps.is_empty() => drop(maps.swap_remove(below(maps.len()))),
                4 => maps.clear(),
                _ => {
                    let (at, bytes) =
                        (below(3_000), vec![u8::try_from(step % 251).expect("a byte"); below(90)]);
                    file.write(at, &bytes);
                    model.resize(model.len().max(at + bytes.len()), 0);
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            assert_eq!(file.read(0..file.len()).expect("all of it"), model, "step {step}");
            let start = below(3_000);
            let some = start..start + below(300);
            let expected = model.get(some.clone()).map(|bytes| bytes.to_vec().into());
            assert_eq!(file.read(some), expected, "step {step}");
            assert!(maps.iter().all(|(map, then)| **map == *then), "step {step}");
        }
    }
}
