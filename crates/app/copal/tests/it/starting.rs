//! Checks at the start of a cluster's process: an address that others can reach, a living parent.

use crate::cluster::named_copal;
use std::process::{Command, Output, Stdio};

fn run(scratch: &std::path::Path, words: &[&str]) -> Output {
    let mut command = Command::new("copal");
    command
        .args(words)
        .current_dir(scratch)
        .env_clear()
        .env("PATH", named_copal(scratch, ""))
        .stdin(Stdio::null());
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Symptom: a data server in a container listened at 0.0.0.0. The master gave that address to all clients and
/// reported the cluster as healthy, but no client on another machine reached the server. Cause: only the
/// first master checked. Fix: every process refuses to advertise an unreachable address, in any notation.
#[test]
fn an_address_of_every_interface_is_not_announced() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(scratch.path().join("plan"), "{}").unwrap();
    let data = ["data", "--dir", "d", "--name", "d", "--join", "x/y/z", "--listen"];
    let master = ["master", "--dir", "m", "--new", "--listen"];
    let agent = ["agent", "--repo", "r", "--name", "a", "--plan", "plan", "--state", "s", "--listen"];
    for words in [&data[..], &master, &agent] {
        for address in ["0.0.0.0:7411", "[::]:7411", "0:7411", "[::ffff:0.0.0.0]:7411"] {
            let run = run(scratch.path(), &[words, &[address]].concat());
            let stderr = text(&run);
            assert_eq!(run.status.code(), Some(2), "{words:?} {address}: {stderr}");
            assert!(stderr.contains("--advertise"), "{words:?} {address}: {stderr}");
        }
    }
    // With an advertised address, it proceeds to the next missing option.
    let run = run(scratch.path(), &[&data[..], &["0.0.0.0:7411", "--advertise", "10.1.2.3:7411"]].concat());
    assert!(!text(&run).contains("--advertise"), "{}", text(&run));
}

/// Symptom: `copal serve --dev` as process 1 of a container started nothing. Cause: its children took "my
/// parent is process 1" for "my parent has ended". Fix: they receive the number of their parent.
#[test]
fn a_child_compares_its_parent_with_the_given_process_id() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let child = |parent: u32| {
        // Without a shell in between: the parent counts.
        let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
        command.args(["data", "--dir", "d", "--end-with-parent", &parent.to_string()]);
        text(&command.current_dir(scratch.path()).stdin(Stdio::null()).output().unwrap())
    };
    let own = child(std::process::id());
    assert!(!own.contains("has ended") && own.contains("no data server"), "{own}");
    let other = child(std::process::id() + 1);
    assert!(other.contains("has ended"), "{other}");
}
