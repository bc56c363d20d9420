//! Exports of a repository in a cluster, one of whose servers dies.

use crate::{
    cluster::Served,
    exports::have_fuse,
    harness::Running,
    qemu::{have_qemu, tool},
};
use copal_testkit::Random;
use rustix::process::Signal;
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

const BYTES: usize = 24 << 20;
/// Enough of a disk to know that an export was read before the server died.
const HEAD_BYTES: usize = 1 << 20;

/// An open export of the cluster's repository.
fn open_export(cluster: &Served, common: &[&str], words: &[&str]) -> Running {
    let mut command = cluster.command(&["--json"]);
    command.args(words).args(common);
    let mut export = Running::of(command);
    export.wait_for("ready");
    export
}

fn only_entry(directory: &Path) -> PathBuf {
    let mut entries = std::fs::read_dir(directory).unwrap();
    entries.next().unwrap().unwrap().path()
}

#[test]
fn exports_are_read_to_the_end_while_a_server_is_killed() {
    if !have_qemu() || !have_fuse() {
        return;
    }
    let cluster = Served::start(&[]);
    let repo = format!("copal://127.0.0.1:{}/vms", cluster.port);
    let password = cluster.file("pw", b"secret\n");
    let common = ["--repo", repo.as_str(), "--password-file", password.as_str()];
    let mut bytes = vec![0; BYTES];
    Random::new(1).text(&mut bytes);
    let disk = cluster.file("disk.raw", &bytes);
    cluster.good(&[&["init"], &common[..]].concat());
    cluster.good(&[&["backup", "--vm", "web", disk.as_str()], &common[..]].concat());

    let at = |name: &str| cluster.scratch.path().join(name).to_str().unwrap().to_owned();
    let (socket, copy, directory) = (at("s.sock"), at("copy.raw"), at("m"));
    std::fs::create_dir(&directory).unwrap();
    let served = open_export(&cluster, &common, &["nbd", "latest", "--vm", "web", "--socket", &socket]);
    let mounted = open_export(&cluster, &common, &["mount", &directory]);
    let of_web = only_entry(&Path::new(&directory).join("web"));
    let file = File::open(of_web.join("sda.raw")).unwrap();
    let mut head = vec![0; HEAD_BYTES];
    file.read_exact_at(&mut head, 0).unwrap();
    assert!(head == bytes[..HEAD_BYTES]);

    cluster.signal("data2", "-KILL");
    let mut all = vec![0; BYTES];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all == bytes, "the mount shows something else");
    drop(file);
    tool("nbdcopy", &[&format!("nbd+unix:///?socket={socket}"), &copy]);
    assert!(std::fs::read(&copy).unwrap() == bytes, "the export serves something else");

    for export in [served, mounted] {
        export.signal(Signal::TERM);
        let run = export.end();
        assert_eq!(run.code, Some(0), "{run:?}");
    }
}
