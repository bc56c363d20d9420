//! The operator's page of repositories in an object store, as printed, over `moto_server`.

use crate::{
    cluster::named_copal,
    exports::have_fuse,
    pages::{commands_of, run_as_printed},
    qemu::have_qemu,
};
use copal_testkit::MotoServer;

/// Symptom: the page mounted a snapshot and then could not forget it. Cause: an export that ended by SIGTERM could not
/// remove its pin, since a stopped command sent no request. Fix: such a command has a few seconds to tidy up.
#[test]
fn the_commands_of_the_page_of_repositories_elsewhere_work_as_printed() {
    let Some(moto) = MotoServer::program() else { return };
    if !have_fuse() || !have_qemu() {
        return;
    }
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let page = commands_of("docs/operating-elsewhere.md", &[]);
    let path = format!("{}:{}", named_copal(scratch.path(), ""), moto.parent().unwrap().display());
    let run = run_as_printed(&page, scratch.path(), &path);
    let stdout = String::from_utf8_lossy(&run.stdout);
    for part in
        ["s3:if-none-match", "layout is fleet", "no damage found", "restored sda", " of mail: 1 snapshot"]
    {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}
