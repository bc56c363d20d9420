//! The operator's page of a cluster, as printed.

use crate::{
    cluster::named_copal,
    pages::{commands_of, run_as_printed},
};

/// Symptom: pasted into an empty directory, the page failed at its first command: it named addresses of other
/// machines and directories of the system, and described events without a cause.
/// Cause: the test replaced all of these before it ran the page. Fix: the page contains them, and the test
/// runs it unedited.
#[test]
fn the_commands_of_the_operators_page_of_a_cluster_work_as_printed() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let page = commands_of("docs/operating-a-cluster.md", &[]);
    run_as_printed(&page, scratch.path(), &named_copal(scratch.path(), ""));
}
