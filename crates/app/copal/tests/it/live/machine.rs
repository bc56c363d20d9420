//! A machine without an operating system: firmware that searches for a boot disk, two disks on separate
//! devices.

use super::{
    daemon::{self, have_daemon},
    impostors,
};
use crate::{
    harness::{House, Running, wait_until},
    qemu::tool,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether the program is installed.
#[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
pub(super) fn have_machine() -> bool {
    let have = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    if !have {
        let required = std::env::var_os("COPAL_TEST_REQUIRE_GUEST").is_some();
        assert!(!required, "qemu-system-x86_64 is missing: apt install qemu-system-x86");
        eprintln!("SKIPPED: qemu-system-x86_64 is missing; apt install qemu-system-x86");
    }
    have && have_daemon()
}

pub(super) struct Machine {
    dir: PathBuf,
    child: Child,
}

impl Machine {
    /// With more options, devices above all; `vm0` and `vm1` are the nodes.
    pub(super) fn start(house: &House, more: &[&str]) -> Machine {
        let dir = house.path("vm");
        std::fs::create_dir(&dir).unwrap();
        let mut command = Command::new("qemu-system-x86_64");
        command.current_dir(&dir).stdin(Stdio::null()).stdout(Stdio::null());
        command.args(["-machine", "q35,accel=tcg", "-m", "64", "-display", "none", "-nodefaults"]);
        for socket in ["qmp.sock", "other.sock"] {
            command.args(["-qmp", &format!("unix:{socket},server=on,wait=off")]);
        }
        for disk in 0..2 {
            let image = dir.join(format!("{disk}.qcow2"));
            tool("qemu-img", &["create", "-q", "-f", "qcow2", image.to_str().unwrap(), "16M"]);
            let node = format!("driver=qcow2,node-name=vm{disk},file.driver=file,file.filename={disk}.qcow2");
            command.args(["-blockdev", &node]);
        }
        command.args(more).args(["-pidfile", "ready"]);
        let child = command.spawn().unwrap();
        let listens = || std::os::unix::net::UnixStream::connect(dir.join("other.sock")).is_ok();
        wait_until("the machine", || dir.join("ready").exists() && listens());
        Machine { dir, child }
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// One command, over the second socket.
    pub(super) fn execute(&self, command: &str, arguments: Value) -> Value {
        daemon::execute(&self.dir.join("other.sock"), command, arguments)
    }

    pub(super) fn runs(&self) -> bool {
        self.execute("query-status", json!({}))["running"] == true
    }

    /// Number of Copal's marks.
    fn marks(&self) -> usize {
        let objects = self.execute("qom-list", json!({ "path": "/objects" }));
        let objects = objects.as_array().unwrap().iter();
        objects.filter(|object| object["name"].as_str().unwrap().starts_with("copal-")).count()
    }

    pub(super) fn words(&self, qmp: &str, nodes: &[&str]) -> Vec<String> {
        let mut words = vec!["backup", "--vm", "db1", "--qmp", qmp];
        for node in nodes {
            words.extend(["--node", *node]);
        }
        let dir = self.path("");
        words.extend(["--fleece-dir", dir.as_str()]);
        words.into_iter().map(str::to_owned).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) const DEVICES: [&str; 4] =
    ["-device", "virtio-blk-pci,drive=vm0,id=d0", "-device", "virtio-blk-pci,drive=vm1,id=d1"];
pub(super) const BOTH: [&str; 2] = ["sda=vm0", "sdb=vm1"];

/// Symptom: a backup that was killed between `stop` and `cont` left its guest paused, and the next backup did
/// not notice.
/// Cause: only the dead process knew of the pause.
/// Fix: a guardian sends `cont`, over another connection if its own is lost; otherwise a mark in QEMU tells
/// the next contact.
#[test]
fn a_guest_goes_on_when_its_backup_is_killed_while_it_is_stopped() {
    if !have_machine() {
        return;
    }
    let house = House::plain();
    let machine = Machine::start(&house, &DEVICES);
    // Whether the connection is lost, and whether QEMU can be reached by the socket afterwards.
    for (is_lost, is_reached) in [(false, false), (true, false), (true, true)] {
        let (reached, killed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (told, over) = (Arc::clone(&reached), Arc::clone(&killed));
        // The command that gives a device its filter does not arrive; later commands do if the connection
        // persists.
        let hold = move |line: String| {
            if line.contains("qom-set") && !told.swap(true, Ordering::AcqRel) {
                wait_until("a kill", || over.load(Ordering::Acquire));
                return (!is_lost).then(String::new);
            }
            Some(line)
        };
        let socket = machine.path(if is_lost { "lost.qmp" } else { "held.qmp" });
        let (socket, passed) = impostors::between(machine.path("qmp.sock"), socket, hold, Some);
        let backup = Running::start(&house, machine.words(&socket, &BOTH));
        wait_until("a stop", || reached.load(Ordering::Acquire));
        assert!(!machine.runs() && machine.marks() == 1);
        let _ = std::fs::remove_file(&socket);
        if is_reached {
            std::os::unix::fs::symlink(machine.path("qmp.sock"), &socket).unwrap();
        }
        backup.signal(Signal::KILL);
        backup.end();
        killed.store(true, Ordering::Release);
        passed.join().unwrap();
        let stays = is_lost && !is_reached;
        if stays {
            assert!(!machine.runs() && machine.marks() == 1);
        } else {
            wait_until("a guest that runs", || machine.runs());
            wait_until("a guest without a mark", || machine.marks() == 0);
        }
        let next = house.summary(machine.words(&machine.path("qmp.sock"), &BOTH));
        assert!(machine.runs() && machine.marks() == 0, "{next}");
        let warnings = next["warnings"].to_string();
        assert_eq!(warnings.contains("had left the guest stopped"), stays, "{next}");
        let _ = std::fs::remove_file(&socket);
        assert!(!warnings.contains("stopped by others"), "{next}");
    }
    // A guest that another program has stopped stays stopped, and is reported.
    machine.execute("stop", json!({}));
    let next = house.summary(machine.words(&machine.path("qmp.sock"), &BOTH));
    assert!(next["warnings"].to_string().contains("it was stopped by others"), "{next}");
    assert!(!machine.runs());
    house.check();
}

/// Symptom: QEMU 7.2.22 aborted when a disk of a device in a separate thread was backed up.
/// Cause: its filter does not support other threads.
/// Fix: such a disk is refused before anything is changed, also if its controller names the thread. Other
/// disks are not.
#[test]
fn a_disk_whose_device_or_controller_has_a_thread_is_refused_and_others_are_not() {
    if !have_machine() {
        return;
    }
    let thread = ["-object", "iothread,id=io0"];
    let devices: [(&[&str], &str); 2] = [
        (&["-device", "virtio-blk-pci,drive=vm0,id=d0,iothread=io0"], "d0"),
        (
            &["-device", "virtio-scsi-pci,id=s0,iothread=io0", "-device", "scsi-hd,drive=vm0,bus=s0.0,id=d0"],
            "d0",
        ),
    ];
    for (first, name) in devices {
        let house = House::plain();
        let mut machine = Machine::start(&house, &[&thread[..], first, &DEVICES[2..]].concat());
        let qmp = machine.path("qmp.sock");
        for nodes in [&BOTH[..], &BOTH[..1]] {
            let run = house.run(machine.words(&qmp, nodes));
            assert_eq!(machine.child.try_wait().unwrap(), None, "{run:?}");
            assert_eq!(run.code, Some(3), "{run:?}");
            let sentence = run.sentence();
            assert!(sentence.contains("runs in the iothread io0") && sentence.contains(name), "{sentence}");
        }
        house.good(machine.words(&qmp, &BOTH[1..]));
        assert_eq!(machine.child.try_wait().unwrap(), None);
    }
}
