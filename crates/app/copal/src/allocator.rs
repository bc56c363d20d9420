//! Settings of the C allocator, so that memory that was given back leaves the process, and bodies of files do
//! not come from the system one by one.
//!
//! glibc serves large blocks by `mmap`, but raises the size from which it does so as soon as one is
//! freed; from then on segments and packs of megabytes come from the heaps of all threads and fragment
//! them. With the threshold fixed a backup of a 2 GB disk peaked at 53 MB instead of 111, a restore at 41
//! instead of 118, at the same processor time.
//!
//! Who serves or asks for files has a few blocks of about a body for each call: with that threshold a third
//! of the processor time of reading 512 KiB went for pages that the kernel gave, cleared and took back. With
//! a higher one 24,000 such reads, four at a time, took 19 s (16 to 21) instead of 26 (25 to 27), and each of
//! three servers peaked at 45 to 53 MB instead of 50 to 53; 64 at a time at 88 to 96 MB instead of 92 to 95.
//! With two heaps instead of one it was 101 to 110.
#![expect(unsafe_code, reason = "mallopt is a C function")]

/// Fixes the size from which blocks come from the system and go back to it, in bytes.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back_large_blocks() {
    set(libc::M_MMAP_THRESHOLD, 128 << 10);
}

/// Keeps blocks of up to a MiB, with what messages add to a body, in few heaps: one for four cores, of each
/// at most a MiB that nobody uses.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_blocks_of_files() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    set(libc::M_MMAP_THRESHOLD, 1_200_000);
    set(libc::M_TRIM_THRESHOLD, 1 << 20);
    set(libc::M_ARENA_MAX, cores.div_ceil(4) as libc::c_int);
}

#[cfg(target_env = "gnu")]
fn set(what: libc::c_int, value: libc::c_int) {
    // SAFETY: mallopt takes two integers and may be called at any time. Its answer does not matter: without
    // the setting the process only grows larger, or is slower.
    unsafe { libc::mallopt(what, value) };
}

/// Other allocators need no telling.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back_large_blocks() {}

/// Other allocators need no telling.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_blocks_of_files() {}
