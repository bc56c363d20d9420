//! The commands of `docs/operating.md`, run as printed, in order, in one shell.
//!
//! Only the places are moved: `/backup`, `/images`, `/restore` and `/etc/copal` lie in a scratch directory.

use crate::disks::{Disk, MIB};
use std::{path::Path, process::Command};

const PLACES: [&str; 4] = ["/backup", "/images", "/restore", "/etc/copal"];

/// All `sh` blocks of a page, one after the other.
fn commands(page: &str) -> String {
    let mut script = String::new();
    let mut is_command = false;
    for line in page.lines() {
        match line {
            "```sh" => is_command = true,
            "```" => is_command = false,
            line if is_command => script.push_str(&format!("{line}\n")),
            _ => {}
        }
    }
    script
}

#[test]
fn the_commands_of_the_operators_page_work_as_printed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let script = commands(&std::fs::read_to_string(page).unwrap());
    assert!(script.lines().count() > 20, "{script}");
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = scratch.path().to_str().unwrap();
    let script = PLACES.iter().fold(script, |script, place| {
        script.replace(place, &format!("{root}{place}"))
    });
    std::fs::create_dir(scratch.path().join("images")).unwrap();
    for (name, seed) in [("web", 70), ("db", 71), ("db-data", 72)] {
        Disk::create(&scratch.path().join(format!("images/{name}.raw")), 2 * MIB, seed);
    }
    // The binary under test by its name, on whatever file system the tests run.
    let copal = env!("CARGO_BIN_EXE_copal");
    let named = format!("set -euo pipefail\ncopal() {{ {copal} --allow-cow --allow-volatile \"$@\"; }}\n");
    let run = Command::new("bash")
        .args(["-c", &format!("{named}{script}")])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{stderr}\n{script}");
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert!(stdout.contains("no damage found"), "{stdout}");
    // Symptom: `--base latest`, as the page prints it, never led to an incremental backup.
    // Cause: the word was compared with ids. Fix: it is looked up, like every other snapshot that is named.
    let is_incremental = |line: &str| line.starts_with("  sda: ") && line.ends_with(", incremental");
    assert!(stdout.lines().any(is_incremental), "{stdout}");
}
