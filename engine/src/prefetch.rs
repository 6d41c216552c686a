//! Hints to the processor that memory will be read soon, so that waits for several pieces of it
//! overlap. A hint changes nothing that a program can read.

/// Bytes that caches fetch at once.
const LINE: usize = 64;

/// Begins to fetch all lines that a value lies in.
pub(crate) fn fetch<T: ?Sized>(value: &T) {
    let begin = std::ptr::from_ref(value).cast::<u8>();
    let lead = begin.addr() % LINE;
    for at in (0..lead + size_of_val(value)).step_by(LINE) {
        fetch_line(begin.wrapping_sub(lead).wrapping_add(at));
    }
}

#[cfg(target_arch = "x86_64")]
fn fetch_line(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    // SAFETY: a prefetch reads nothing for the program and faults at no address; SSE, which has it,
    // is part of every x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
fn fetch_line(_: *const u8) {}
