//! The operator's page of repositories in an object store, as printed, over `moto_server` or a server of others.

use crate::{
    cluster::named_copal,
    exports::have_fuse,
    pages::{commands_of, run_as_printed, run_with_variables},
    qemu::have_qemu,
};
use copal_testkit::MotoServer;
use std::{env, process::Output};

const PAGE: &str = "docs/operating-elsewhere.md";
/// Names of variables with credentials of object stores.
const CREDENTIALS: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// The page did all of it.
fn assert_complete(run: &Output) {
    let stdout = String::from_utf8_lossy(&run.stdout);
    for part in ["A second create of a file is refused    yes", "layout is fleet", "no damage found"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    for part in ["restored sda", " of mail: 1 snapshot"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}

/// Symptom: the page mounted a snapshot and then could not forget it. Cause: an export that ended by SIGTERM could not
/// remove its pin, since a stopped command sent no request. Fix: such a command has a few seconds to tidy up.
#[test]
fn the_commands_of_the_page_of_repositories_elsewhere_work_as_printed() {
    let Some(moto) = MotoServer::program() else { return };
    if !have_fuse() || !have_qemu() {
        return;
    }
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let page = commands_of(PAGE, &["moto"]);
    let path = format!("{}:{}", named_copal(scratch.path(), ""), moto.parent().unwrap().display());
    assert_complete(&run_as_printed(&page, scratch.path(), &path));
}

/// On demand, without the block that starts a server: over that of `COPAL_REMOTE_URL`, below a prefix of its own, with the
/// credentials of this process.
#[test]
fn the_commands_of_the_page_work_over_a_server_of_others() {
    let Ok(address) = env::var("COPAL_REMOTE_URL") else { return };
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (base, query) = address.split_once('?').unwrap_or((&address, ""));
    let own = scratch.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.');
    let is_credential = |name: &str| CREDENTIALS.iter().any(|prefix| name.starts_with(prefix));
    let mut variables: Vec<_> = env::vars().filter(|(name, _)| is_credential(name)).collect();
    variables.push(("COPAL_REPOSITORY".to_owned(), format!("{base}/{own}?{query}")));
    let (page, path) = (commands_of(PAGE, &[]), named_copal(scratch.path(), ""));
    assert_complete(&run_with_variables(&page, scratch.path(), &path, &variables));
}
