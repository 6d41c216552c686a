//! Memory that is free goes back to the system. The allocator gives free pages back when it is used again; a core that has
//! become idle would keep what a load has left.

/// Gives back what this thread's heap does not use.
pub fn give_back() {
    // SAFETY: no arguments, no preconditions; it only looks after the calling thread's heap.
    unsafe { libmimalloc_sys::mi_collect(false) }
}
