//! The operator's page of a fleet, as printed.

use crate::{
    cluster::named_copal,
    pages::{commands_of, run_as_printed},
};

#[test]
fn the_commands_of_the_operators_page_of_a_fleet_work_as_printed() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let page = commands_of("docs/operating-a-fleet.md", &[]);
    let run = run_as_printed(&page, scratch.path(), &named_copal(scratch.path(), ""));
    let stdout = String::from_utf8_lossy(&run.stdout);
    for part in
        ["\"complete\":true,\"unresolved\":0", "no backup is under way", "removed VM web3", "no damage found"]
    {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}
