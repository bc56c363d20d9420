//! The commands of `docs/operating.md`, run as printed, in order, in one shell.
//!
//! Blocks marked `sh qemu` are run where QEMU's programs are installed, `sh qemu-daemon` where its storage daemon is, too.
//! Only the places are moved: `/backup`, `/images`, `/restore` and `/etc/copal` lie in a scratch directory.

use crate::{
    disks::{Disk, MIB},
    examples::path_with_copal,
    live::have_daemon,
    pages::commands,
    qemu::have_qemu,
};
use std::{path::Path, process::Command};

const PLACES: [&str; 4] = ["/backup", "/images", "/restore", "/etc/copal"];

#[test]
fn the_commands_of_the_operators_page_work_as_printed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/operating.md");
    let (with_qemu, with_daemon) = (have_qemu(), have_daemon());
    let kinds: Vec<&str> = [(with_qemu, "qemu"), (with_daemon, "qemu-daemon")]
        .into_iter()
        .filter_map(|(is_there, kind)| is_there.then_some(kind))
        .collect();
    let script = commands(&std::fs::read_to_string(page).unwrap(), &kinds);
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
    if with_qemu {
        let image = scratch.path().join("images/mail.qcow2");
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2"])
            .arg(&image)
            .arg("4M")
            .status();
        assert!(made.unwrap().success());
    }
    let run = Command::new("bash")
        .args(["-c", &format!("set -euo pipefail\n{script}")])
        .env_clear()
        .env("PATH", path_with_copal(&scratch.path().join("bin")))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{stderr}\n{script}");
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert!(stdout.contains("no damage found"), "{stdout}");
    let is_incremental = |line: &&str| line.starts_with("  sda: ") && line.ends_with(", incremental");
    let count = stdout.lines().filter(is_incremental).count();
    // By a list, by a bitmap of an image, by a bitmap of an export, by one of a VM that runs.
    assert_eq!(
        count,
        1 + if with_qemu { 2 } else { 0 } + usize::from(with_daemon),
        "{stdout}"
    );
}
