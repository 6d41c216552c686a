//! How much memory there is, and giving back what is free: the allocator gives free pages back when
//! it is used again, so a core that has become idle would keep what a load has left.

use std::ffi::c_long;

use crate::limits;

/// From now on the heap is made of pages of 4 KiB. The allocator asks for huge ones, of which the
/// first touch takes the kernel milliseconds in the middle of a turn, and which keep 2 MiB for what
/// little is left in them (decision 0022). A kernel that does not know the request goes on as
/// before.
pub fn without_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// From now on the allocator goes through all pages of a thread's heap a hundred times less often.
/// It does so every 10,000 allocations that find no free place at once, to free what is empty; with
/// ten million keys each time is half a millisecond of the core that has them, forty times a second
/// under a load of puts (decision 0022). Another number that the
/// environment has set (`MIMALLOC_GENERIC_COLLECT`) stays.
pub fn with_rare_collections() {
    replace_usual(GENERIC_COLLECT, 10_000, 1_000_000);
}

/// From now on no thread that allocates gives free pages of the process back to the system, which
/// was milliseconds of a core each second under load (decision 0022): [`give_back_all`] does. Where
/// nothing calls that, pages go back behind a minute. A time other than the usual second that the
/// environment has set (`MIMALLOC_PURGE_DELAY`) stays.
pub fn with_late_purges() {
    replace_usual(PURGE_DELAY, 1_000, 60_000);
}

/// Sets an option of the allocator, unless the environment has set it to another number than usual.
fn replace_usual(option: libmimalloc_sys::mi_option_t, usual: c_long, value: c_long) {
    // SAFETY: the option is read; one that is not there is 0.
    let is_usual = unsafe { libmimalloc_sys::mi_option_get(option) } == usual;
    if is_usual {
        // SAFETY: no other thread allocates yet, and both options may be any number up to these.
        unsafe { libmimalloc_sys::mi_option_set(option, value) };
    }
}

/// `mi_option_purge_delay`, in milliseconds, and `mi_option_generic_collect` of mimalloc's third
/// version, which its crate does not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
const GENERIC_COLLECT: libmimalloc_sys::mi_option_t = 34;
/// So many options that version has.
const _: () = assert!(libmimalloc_sys::_mi_option_last == 47);

/// Frees the pages that this thread's heap does not use; the system has them back with the next
/// [`give_back_all`].
pub fn give_back() {
    // SAFETY: no preconditions; it only looks after the calling thread's heap.
    unsafe { libmimalloc_sys::mi_collect(false) }
}

/// Gives all pages back to the system that no heap of this process has: milliseconds where they
/// are many, for a thread that no core waits for.
pub fn give_back_all() {
    // SAFETY: no preconditions; it makes the calling thread a heap if it has none yet, without
    // which the next call would do nothing.
    unsafe { libmimalloc_sys::mi_thread_init() };
    // SAFETY: no preconditions; it looks after this heap, and after pages that no heap has.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// Bytes that this process may use: what the machine has, or what the cgroup it runs in allows.
#[must_use]
pub fn available_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine =
        read("/proc/meminfo").as_deref().and_then(total_bytes).unwrap_or(limits::MEMORY_ASSUMED_BYTES);
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    cgroup_limit_files(&groups)
        .iter()
        .filter_map(|path| read(path)?.trim().parse().ok())
        .filter(|limit| *limit > 0) // no process runs within nothing: the file does not mean it
        .fold(machine, u64::min)
}

/// `MemTotal` of `/proc/meminfo`.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Files that may hold a limit, by `/proc/self/cgroup`: of the group and those around it, in both
/// versions; in a container its own group is the root.
fn cgroup_limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let (root, name) = match line.splitn(3, ':').collect::<Vec<_>>()[..] {
            ["0", "", _] => ("/sys/fs/cgroup", "memory.max"),
            [_, controllers, _] if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = line.splitn(3, ':').nth(2).unwrap_or_default();
        loop {
            files.push(format!("{root}{}/{name}", path.trim_end_matches('/')));
            let Some((around, _)) = path.rsplit_once('/').filter(|_| path != "/") else { break };
            path = around;
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocator_knows_the_option_by_this_number() {
        // SAFETY: the option is read.
        let every = || unsafe { libmimalloc_sys::mi_option_get(GENERIC_COLLECT) };
        assert_eq!(every(), 10_000);
        with_rare_collections();
        assert_eq!(every(), 1_000_000);
        with_rare_collections();
        assert_eq!(every(), 1_000_000);
    }

    /// Another thread's free pages, too, although the calling thread has never allocated: the
    /// allocator of this test is another one.
    #[test]
    fn pages_that_no_heap_has_are_given_back_at_once() {
        const BYTES: usize = 48 << 20;
        // SAFETY: the option is read.
        let delay = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), 1_000);
        with_late_purges();
        assert_eq!(delay(), 60_000);
        let used_and_freed = || {
            // SAFETY: any length may be asked for.
            let bytes = unsafe { libmimalloc_sys::mi_malloc(BYTES) };
            assert!(!bytes.is_null());
            // SAFETY: as many bytes are there.
            unsafe { bytes.cast::<u8>().write_bytes(1, BYTES) };
            // SAFETY: they came from there, and are freed once.
            unsafe { libmimalloc_sys::mi_free(bytes) };
            bytes.expose_provenance()
        };
        let freed = std::thread::spawn(used_and_freed).join().unwrap();
        assert!(resident_pages(freed, BYTES) > 10_000, "no thread has given them back");
        std::thread::spawn(give_back_all).join().unwrap();
        assert!(resident_pages(freed, BYTES) < 100);
        // SAFETY: no other thread of this process reads the option.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 7) };
        with_late_purges();
        assert_eq!(delay(), 7, "the environment asked for it");
        // SAFETY: as above.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 60_000) };
    }

    /// How many whole pages of so many bytes from an address on are in memory.
    fn resident_pages(from: usize, bytes: usize) -> usize {
        let page = rustix::param::page_size();
        let (from, pages) = (from.next_multiple_of(page), bytes / page - 1);
        let mut are_there = vec![0_u8; pages];
        let start = std::ptr::without_provenance_mut(from);
        // SAFETY: the kernel writes a byte for each page, and reads none of them.
        let failed = unsafe { libc::mincore(start, pages * page, are_there.as_mut_ptr()) };
        assert_eq!(failed, 0, "the allocator keeps the addresses");
        are_there.iter().filter(|is_there| **is_there & 1 == 1).count()
    }

    #[test]
    fn limits_are_looked_for_in_both_versions_and_in_the_groups_around() {
        assert_eq!(total_bytes("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16 * 1024));
        assert_eq!(total_bytes("nothing"), None);
        assert_eq!(
            cgroup_limit_files("5:cpu:/x\n4:hugetlb,memory:/a/b\n0::/c\n"),
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert_eq!(cgroup_limit_files("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        assert!(available_bytes() > 0);
    }
}
