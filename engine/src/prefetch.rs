//! Hints to the caches of the processor.

/// Begins to fetch so many items into the caches, and waits for nothing: memory that is asked for
/// side by side comes in the time of one piece.
pub(crate) fn prefetch<T>(items: *const T, len: usize) {
    let first = items.cast::<u8>();
    lines(first.addr(), len * size_of::<T>()).for_each(|at| line(first.with_addr(at)));
}

/// Where the lines of the caches begin that have so many bytes from this address on.
fn lines(from: usize, bytes: usize) -> impl Iterator<Item = usize> {
    const LINE: usize = 64;
    let first = from - from % LINE;
    let end = if bytes == 0 { first } else { from.saturating_add(bytes) };
    (first..end).step_by(LINE)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: each processor of this kind has it, and it does nothing that can be seen, whatever
    // lies there.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn line(_at: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_asked_for_that_have_a_part() {
        let asked = |from, bytes| lines(from, bytes).collect::<Vec<_>>();
        assert_eq!(asked(640, 0), []);
        assert_eq!(asked(655, 0), []);
        assert_eq!(asked(640, 64), [640]);
        assert_eq!(asked(655, 1), [640]);
        assert_eq!(asked(703, 2), [640, 704]);
        assert_eq!(asked(688, 88), [640, 704, 768]);
        assert_eq!(asked(640, 129), [640, 704, 768]);
    }
}
