//! The commands of `docs/operating.md`, as printed.
//!
//! Blocks marked `sh qemu` are run where QEMU's programs are installed, `sh qemu-daemon` where its storage
//! daemon is, too.

use crate::{
    cluster::named_copal,
    live::have_daemon,
    pages::{commands_of, run_as_printed},
    qemu::have_qemu,
};

/// Symptom: pasted into an empty directory, the page failed: it expected existing images, and named
/// directories of the system.
/// Cause: the test created the images and replaced the directories. Fix: the page does both, and the test
/// runs it unedited.
#[test]
fn the_commands_of_the_operators_page_work_as_printed() {
    let (with_qemu, with_daemon) = (have_qemu(), have_daemon());
    let kinds: Vec<&str> = [(with_qemu, "qemu"), (with_daemon, "qemu-daemon")]
        .into_iter()
        .filter_map(|(is_there, kind)| is_there.then_some(kind))
        .collect();
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let page = commands_of("docs/operating.md", &kinds);
    let run = run_as_printed(&page, scratch.path(), &named_copal(scratch.path(), ""));
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert!(stdout.contains("no damage found"), "{stdout}");
    let is_incremental = |line: &&str| line.starts_with("  sda: ") && line.ends_with(", incremental");
    let count = stdout.lines().filter(is_incremental).count();
    // By a list, by a bitmap of an image, by a bitmap of an export, by one of a running VM.
    let wanted = 1 + if with_qemu { 2 } else { 0 } + usize::from(with_daemon);
    assert_eq!(count, wanted, "{stdout}");
}
