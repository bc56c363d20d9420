//! Settings of the C allocator: freed memory returns to the system, and the bodies of files reuse heap blocks
//! instead of new pages.
//!
//! glibc serves large blocks by `mmap`, but raises that threshold whenever such a block is freed. From then
//! on segments and packs of megabytes come from the heaps of all threads and fragment them. With a fixed
//! threshold, a backup of a 2 GB disk peaked at 53 MB instead of 111, a restore at 41 instead of 118, at the
//! same processor time.
//!
//! A process that serves or requests files needs a few blocks of about the body's size for each call. With
//! the threshold above, a third of the processor time of reading 512 KiB went to pages that the kernel
//! allocated, cleared and reclaimed. With a higher threshold, 24,000 such reads, four at a time, took 19 s
//! (16 to 21) instead of 26 (25 to 27). Each of three servers peaked at 45 to 53 MB instead of 50 to 53; with
//! 64 reads at a time at 88 to 96 MB instead of 92 to 95. Two heaps instead of one took 101 to 110.
#![expect(unsafe_code, reason = "mallopt is a C function")]

/// Fixes the size in bytes from which blocks are mapped from the system and returned to it.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back_large_blocks() {
    set(libc::M_MMAP_THRESHOLD, 128 << 10);
}

/// Keeps blocks of up to 1 MiB plus message overhead in few heaps: one for two cores, each with at most 1 MiB
/// of unused memory.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_blocks_of_files() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    set(libc::M_MMAP_THRESHOLD, 1_200_000);
    set(libc::M_TRIM_THRESHOLD, 1 << 20);
    set(libc::M_ARENA_MAX, cores.div_ceil(2) as libc::c_int);
}

#[cfg(target_env = "gnu")]
fn set(what: libc::c_int, value: libc::c_int) {
    // SAFETY: mallopt takes two integers and may be called at any time. Its result is ignored: without the
    // setting the process only uses more memory or time.
    unsafe { libc::mallopt(what, value) };
}

/// Other allocators need no setting.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back_large_blocks() {}

/// Other allocators need no setting.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_blocks_of_files() {}
