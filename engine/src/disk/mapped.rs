//! Files in memory, and where they are: when the disk cannot give a page, the system interrupts the
//! reader with a signal that has an address, and no more.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::disk::MapBytes;
use crate::limits::{FETCH_BYTES_MAX, MAPS_KNOWN_MAX};

/// Maps of this process. A signal handler reads them: no lock, no memory that moves.
static PLACES: [Place; MAPS_KNOWN_MAX] = [const { Place::free() }; MAPS_KNOWN_MAX];

/// From the first address to the one behind the last; both are 0 where there is no map.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Place {
    const fn free() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }

    fn is_taken_for(&self, start: usize) -> bool {
        self.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn offset_of(&self, address: usize) -> Option<usize> {
        let (start, end) = (self.start.load(Ordering::Acquire), self.end.load(Ordering::Acquire));
        (start..end).contains(&address).then(|| address - start)
    }
}

/// A file in memory.
pub(super) struct Mapped {
    bytes: memmap2::Mmap,
    /// Nothing is read around a page that is touched.
    is_exact: AtomicBool,
    /// None if there are more maps than places: its pages have no names then.
    place: Option<&'static Place>,
}

impl Mapped {
    pub(super) fn new(bytes: memmap2::Mmap) -> Self {
        let range = bytes.as_ptr_range();
        let place = PLACES.iter().find(|place| place.is_taken_for(range.start.addr()));
        if let Some(place) = place {
            place.end.store(range.end.addr(), Ordering::Release);
        }
        Self { bytes, is_exact: AtomicBool::new(false), place }
    }

    /// Whether a file of this length lies in it.
    pub(super) fn covers(&self, len: u64) -> bool {
        self.bytes.len() as u64 >= len
    }

    /// Whether point reads take the pages that they touch, and readers in order ask ahead. It
    /// is for a file that does not stay in memory: on a disk that reads ahead 8 MiB each read
    /// around a page throws out what others need.
    pub(super) fn read_exactly(&self, is_exact: bool) {
        if self.is_exact.swap(is_exact, Ordering::Relaxed) != is_exact {
            let advice = if is_exact { memmap2::Advice::Random } else { memmap2::Advice::Normal };
            // Only advice: where it is not taken, pages are read as they are.
            let _ = self.bytes.advise(advice);
        }
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl MapBytes for Mapped {
    /// Where the system reads around pages, it has what comes next already.
    fn will_need(&self, bytes: Range<usize>) {
        if !self.is_exact.load(Ordering::Relaxed) {
            return;
        }
        for piece in pieces(bytes) {
            let _ = self.bytes.advise_range(memmap2::Advice::WillNeed, piece.start, piece.len());
        }
    }
}

/// Ranges that a device takes in one request.
fn pieces(bytes: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = bytes.end;
    bytes.step_by(FETCH_BYTES_MAX).map(move |start| start..end.min(start.saturating_add(FETCH_BYTES_MAX)))
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.end.store(0, Ordering::Release);
            place.start.store(0, Ordering::Release);
        }
    }
}

/// The offset in its file of an address at which a file is mapped. A signal handler may ask.
#[must_use]
pub fn offset_of(address: usize) -> Option<usize> {
    PLACES.iter().find_map(|place| place.offset_of(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_comes_in_pieces() {
        let kib = |count: usize| count * 1024;
        assert!(pieces(8..kib(4)).eq(std::iter::once(8..kib(4))));
        let asked = pieces(kib(4)..kib(300)).collect::<Vec<_>>();
        assert_eq!(asked, [kib(4)..kib(132), kib(132)..kib(260), kib(260)..kib(300)]);
        assert_eq!(pieces(5..5).count(), 0);
    }

    #[test]
    fn addresses_have_offsets_while_the_file_is_mapped() {
        let map = || Mapped::new(memmap2::MmapMut::map_anon(10_000).unwrap().make_read_only().unwrap());
        let (one, other) = (map(), map());
        let start = one.as_ref().as_ptr().addr();
        assert_eq!([0, 9_999].map(|at| offset_of(start + at)), [Some(0), Some(9_999)]);
        assert_eq!(offset_of(other.as_ref().as_ptr().addr() + 7), Some(7));
        drop(one);
        assert_eq!(offset_of(start), None);
    }
}
