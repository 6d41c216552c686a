//! The bytes of a file, which those who map it share until one writes.
//!
//! The engine maps its file at each commit and drops the map at one of the next. A write between
//! them would copy the whole file: instead the bytes of the map before, which nobody has by then,
//! are brought up to date by the writes since.

use std::ops::Range;
use std::sync::Arc;

/// With so many writes since, copying everything is as cheap.
const WRITES_MAX: usize = 4_096;

/// The bytes of a file.
#[derive(Debug, Default)]
pub(super) struct FileBytes {
    now: Arc<Vec<u8>>,
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
        Self { now: Arc::clone(&self.now), before: None }
    }
}

impl FileBytes {
    pub(super) fn len(&self) -> usize {
        self.now.len()
    }

    /// As they are now; later writes do not show.
    pub(super) fn share(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.now)
    }

    pub(super) fn set_len(&mut self, len: usize) {
        let is_cut = len < self.now.len();
        self.own().resize(len, 0);
        if is_cut {
            self.before = None; // bytes behind may be zero since, and no write says so
        }
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let place = at..at + bytes.len();
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
            assert_eq!(*file.share(), model, "step {step}");
            assert!(maps.iter().all(|(map, then)| **map == *then), "step {step}");
        }
    }
}
