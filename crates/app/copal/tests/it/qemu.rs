//! qcow2 images and NBD exports, with the real `qemu-nbd`.

use crate::{
    disks::{Disk, MIB, assert_restored},
    harness::{House, Run, Running, count, id},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{path::Path, process::Command};

/// Whether the programs of QEMU are installed; otherwise the test is skipped with a message, or fails if the
/// suite must be complete.
#[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
pub(crate) fn have_qemu() -> bool {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let have = there("qemu-nbd") && there("qemu-img") && there("qemu-io") && there("nbdinfo");
    if !have {
        let required = std::env::var_os("COPAL_TEST_REQUIRE_QEMU").is_some();
        assert!(!required, "qemu-nbd or nbdinfo is missing: apt install qemu-utils libnbd-bin");
        eprintln!("SKIPPED: qemu-nbd or nbdinfo is missing; apt install qemu-utils libnbd-bin");
    }
    have
}

pub(crate) fn tool(program: &str, args: &[&str]) -> Vec<u8> {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn servers_of(image: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let serving = processes.filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("--read-only") && line.contains(image)
    });
    serving.count()
}

fn qcow2_of(house: &House, raw: &Path) -> String {
    let qcow2 = house.word("disk.qcow2");
    tool("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", raw.to_str().unwrap(), &qcow2]);
    qcow2
}

/// Writes into an image.
fn write(image: &str, disk: &mut Disk, byte: u8, range: std::ops::Range<u64>) {
    let (start, length) = (range.start, range.end - range.start);
    let command = format!("write -P {byte} {start} {length}");
    tool("qemu-io", &["-f", "qcow2", "-c", &command, image]);
    disk.bytes[range.start as usize..range.end as usize].fill(byte);
}

/// Backs up by one bitmap while another one begins.
fn by_bitmap(house: &House, image: &str, bitmap: &str, starts: &str) -> Value {
    house.summary(["backup", "--vm", "web", "--bitmap", bitmap, "--starts-bitmap", starts, image])
}

/// An NBD server of an image, which ends when this is dropped.
struct Server {
    image: String,
    pid_file: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(&self.pid_file).unwrap();
        let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        while servers_of(&self.image) > 0 {
            std::thread::yield_now();
        }
    }
}

/// Exports an image, with more options; returns its URI.
fn serve(house: &House, image: &str, more: &[&str]) -> (String, Server) {
    let (socket, pid_file) = (house.word("s"), house.word("pid"));
    let export = ["--persistent", "--read-only", "-f", "qcow2", "-k", &socket, "-x", "vm", "--fork"];
    let end = ["--pid-file", &pid_file, image];
    tool("qemu-nbd", &[&export[..], more, &end].concat());
    let image = image.to_owned();
    (format!("nbd+unix:///vm?socket={socket}"), Server { image, pid_file })
}

fn mode_and_reason(summary: &Value) -> (&str, &str) {
    let disk = &summary["disks"][0];
    (disk["mode"].as_str().unwrap(), disk["reason"].as_str().unwrap())
}

#[test]
fn a_qcow2_image_and_its_dirty_bitmap() {
    if !have_qemu() {
        return;
    }
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 32 * MIB, 50);
    let qcow2 = qcow2_of(&house, &house.path("disk.raw"));
    tool("qemu-img", &["bitmap", "--add", "-g", "64K", &qcow2, "copal-0"]);
    let first = house.summary(["backup", "--vm", "web", "--starts-bitmap", "copal-0", &qcow2]);
    assert_eq!(count(&first, "logical_bytes"), 32 * MIB);
    assert_eq!((&first["disks"][0]["bitmap"], &first["warnings"]), (&"copal-0".into(), &json!([])));
    assert_eq!(servers_of(&qcow2), 0);
    assert_restored(&house.restore(&id(&first), "first.out"), &disk.bytes);

    write(&qcow2, &mut disk, 0xaa, 3 * MIB..4 * MIB);
    write(&qcow2, &mut disk, 0xbb, 20 * MIB..20 * MIB + (130 << 10));
    // The map of nbdinfo, from our own server, and then the same by --bitmap.
    let (uri, server) = serve(&house, &qcow2, &["-B", "copal-0"]);
    let map = tool("nbdinfo", &["--json", "--map=qemu:dirty-bitmap:copal-0", &uri]);
    std::fs::write(house.path("map.json"), map).unwrap();
    let list = house.word("map.json");
    let words = [
        "backup",
        "--vm",
        "web",
        "--strict-incremental",
        "--starts-bitmap",
        "copal-0",
        "--changed-extents",
        &list,
    ];
    // A map does not name its base.
    let silent = house.run([&words[..], &[&uri]].concat());
    assert_eq!(silent.code, Some(22), "{silent:?}");
    assert!(silent.sentence().contains("--base"), "{silent:?}");
    let base = id(&first);
    let listed = house.summary([&words[..], &["--base", &base, &uri]].concat());
    assert_eq!(listed["disks"][0]["mode"], "incremental");
    assert_eq!(count(&listed, "dirty_bytes"), MIB + (192 << 10));
    assert_restored(&house.restore(&id(&listed), "listed.out"), &disk.bytes);
    // The same bitmap directly from the export, by a server that has a second one, too.
    let exported = by_bitmap(&house, &uri, "copal-0", "copal-0");
    assert_eq!(mode_and_reason(&exported), ("incremental", ""));
    let missing = by_bitmap(&house, &uri, "copal-9", "copal-0");
    assert_eq!(mode_and_reason(&missing).0, "rescan");
    assert!(mode_and_reason(&missing).1.contains("exports no dirty bitmap"), "{missing}");
    drop(server);

    let by_bitmap = by_bitmap(&house, &qcow2, "copal-0", "copal-0");
    assert_eq!(mode_and_reason(&by_bitmap), ("incremental", ""));
    assert_eq!(count(&by_bitmap, "new_bytes"), 0);
    assert_restored(&house.restore(&id(&by_bitmap), "bitmap.out"), &disk.bytes);
    assert_eq!(servers_of(&qcow2), 0);
}

/// Symptom: a bitmap that was created after the last snapshot was trusted: writes in between were missing
/// from the next snapshot, exit code 0. A missing or inconsistent bitmap ended the backup with exit code 3.
/// Cause: the bitmap of a snapshot was not recorded.
/// Fix: the snapshot names it, and with any other bitmap the disk is read in full, which the summary reports.
#[test]
fn only_the_bitmap_that_began_with_the_newest_snapshot_is_believed() {
    if !have_qemu() {
        return;
    }
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 32 * MIB, 52);
    let qcow2 = qcow2_of(&house, &house.path("disk.raw"));
    let add = |name: &str| tool("qemu-img", &["bitmap", "--add", "-g", "64K", &qcow2, name]);
    house.backup("web", Path::new(&qcow2));
    write(&qcow2, &mut disk, 2, 8 * MIB..9 * MIB);
    add("late");
    write(&qcow2, &mut disk, 3, 16 * MIB..17 * MIB);
    // The next bitmap begins before the image is read.
    add("day-1");
    let late = by_bitmap(&house, &qcow2, "late", "day-1");
    assert_eq!(mode_and_reason(&late).0, "rescan");
    assert!(mode_and_reason(&late).1.contains("names no dirty bitmap"), "{late}");
    assert_restored(&house.restore(&id(&late), "late.out"), &disk.bytes);

    // Day by day, like in the manual; with a failed backup in between.
    write(&qcow2, &mut disk, 4, MIB..2 * MIB);
    add("day-2");
    let day = by_bitmap(&house, &qcow2, "day-1", "day-2");
    assert_eq!((mode_and_reason(&day), count(&day, "dirty_bytes")), (("incremental", ""), MIB));
    tool("qemu-img", &["bitmap", "--remove", &qcow2, "day-1"]);
    write(&qcow2, &mut disk, 5, 5 * MIB..6 * MIB);
    add("day-3");
    let gone = house.run([
        "backup",
        "--vm",
        "web",
        "--bitmap",
        "day-2",
        "--starts-bitmap",
        "day-3",
        "--disk",
        &format!("sda={qcow2}"),
        "--disk",
        "sdb=/none",
    ]);
    assert_eq!(gone.code, Some(3), "{gone:?}");
    write(&qcow2, &mut disk, 6, 7 * MIB..8 * MIB);
    add("day-4");
    // A bitmap that began with the failed backup did not begin with the newest snapshot.
    let strict = house.run([
        "backup",
        "--vm",
        "web",
        "--strict-incremental",
        "--bitmap",
        "day-3",
        "--starts-bitmap",
        "day-4",
        &qcow2,
    ]);
    assert_eq!(strict.code, Some(22), "{strict:?}");
    assert!(strict.sentence().contains("is day-2, not day-3"), "{strict:?}");
    let day = by_bitmap(&house, &qcow2, "day-2", "day-4");
    assert_eq!((mode_and_reason(&day), count(&day, "dirty_bytes")), (("incremental", ""), 2 * MIB));
    assert_restored(&house.restore(&id(&day), "day.out"), &disk.bytes);

    // Disabled, and recreated under the same name: it does not record, or marks less than before.
    write(&qcow2, &mut disk, 7, 10 * MIB..11 * MIB);
    tool("qemu-img", &["bitmap", "--disable", &qcow2, "day-4"]);
    let disabled = by_bitmap(&house, &qcow2, "day-4", "day-4");
    assert!(mode_and_reason(&disabled).1.contains("is disabled"), "{disabled}");
    let warnings = disabled["warnings"].to_string();
    assert!(warnings.contains("the next backup reads the whole disk"), "{warnings}");
    tool("qemu-img", &["bitmap", "--enable", &qcow2, "day-4"]);
    let begun = house.summary(["backup", "--vm", "web", "--starts-bitmap", "day-4", &qcow2]);
    assert_eq!(begun["disks"][0]["bitmap"], "day-4");
    write(&qcow2, &mut disk, 8, 12 * MIB..13 * MIB);
    tool("qemu-img", &["bitmap", "--clear", &qcow2, "day-4"]);
    let cleared = by_bitmap(&house, &qcow2, "day-4", "day-4");
    assert!(mode_and_reason(&cleared).1.contains("it was cleared"), "{cleared}");
    assert_restored(&house.restore(&id(&cleared), "cleared.out"), &disk.bytes);

    // The last writer did not close the image.
    let script = format!("qemu-io -f qcow2 -c 'write -P 9 0 64k' -c flush -c 'abort' {qcow2} >&2 || true");
    tool("bash", &["-c", &script]);
    disk.bytes[..64 << 10].fill(9);
    let torn = by_bitmap(&house, &qcow2, "day-4", "day-4");
    assert!(mode_and_reason(&torn).1.contains("is inconsistent"), "{torn}");
    assert_restored(&house.restore(&id(&torn), "torn.out"), &disk.bytes);

    // Another size.
    tool("qemu-img", &["bitmap", "--remove", &qcow2, "day-4"]);
    for name in ["late", "day-2", "day-3"] {
        tool("qemu-img", &["bitmap", "--remove", &qcow2, name]);
    }
    add("day-5");
    house.summary(["backup", "--vm", "web", "--starts-bitmap", "day-5", &qcow2]);
    tool("qemu-img", &["resize", "-f", "qcow2", &qcow2, "33M"]);
    disk.bytes.resize(33 << 20, 0);
    let resized = by_bitmap(&house, &qcow2, "day-5", "day-5");
    assert_eq!(mode_and_reason(&resized).0, "rescan", "{resized}");
    assert_restored(&house.restore(&id(&resized), "resized.out"), &disk.bytes);
    house.check();
}

/// Behind a manual export, a cleared bitmap is not detected: the manual says so, and names spot checks and
/// `--full-every`.
#[test]
fn a_cleared_bitmap_behind_an_export_is_found_by_comparing_and_by_age() {
    if !have_qemu() {
        return;
    }
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 32 * MIB, 53);
    let qcow2 = qcow2_of(&house, &house.path("disk.raw"));
    tool("qemu-img", &["bitmap", "--add", "-g", "64K", &qcow2, "day-1"]);
    // Like QEMU, which exports no recording bitmap.
    let begin = || {
        let (uri, _server) = serve(&house, &qcow2, &[]);
        house.summary(["backup", "--vm", "web", "--starts-bitmap", "day-1", &uri])
    };
    let by_export = |more: &[&str]| {
        let (uri, _server) = serve(&house, &qcow2, &["-B", "day-1"]);
        let words = ["backup", "--vm", "web", "--bitmap", "day-1", "--starts-bitmap", "day-1", &uri];
        house.summary([&words[..], more].concat())
    };
    for (more, reason) in [
        (&[][..], "a spot check found other bytes"),
        (&["--spot-check", "0%", "--full-every", "0h"], "(--full-every)"),
    ] {
        begin();
        write(&qcow2, &mut disk, 2, 8 * MIB..20 * MIB);
        tool("qemu-img", &["bitmap", "--clear", &qcow2, "day-1"]);
        let made = by_export(more);
        assert_eq!(mode_and_reason(&made).0, "rescan", "{made}");
        assert!(mode_and_reason(&made).1.contains(reason), "{made}");
        assert_restored(&house.restore(&id(&made), &id(&made)), &disk.bytes);
        write(&qcow2, &mut disk, 3, 8 * MIB..20 * MIB);
    }
    begin();
    write(&qcow2, &mut disk, 4, 8 * MIB..9 * MIB);
    let made = by_export(&["--strict-incremental"]);
    assert_restored(&house.restore(&id(&made), "day.out"), &disk.bytes);
}

/// Symptom: `qemu-nbd` was started with the repository's password in its environment, visible to users who
/// can inspect processes.
/// Cause: a child process inherited our whole environment. Fix: it gets only named variables.
#[test]
fn helpers_of_qemu_do_not_inherit_the_password() {
    let house = House::plain();
    std::fs::write(house.path("disk.qcow2"), [&b"QFI\xfb and more"[..], &[0; 100]].concat()).unwrap();
    let image = house.word("disk.qcow2");
    let programs = house.path("bin");
    std::fs::create_dir(&programs).unwrap();
    for program in ["qemu-nbd", "qemu-img"] {
        let heard = house.path(program);
        let script = format!("#!/bin/sh\nenv > '{}'\nexit 1\n", heard.display());
        std::fs::write(programs.join(program), script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(programs.join(program), mode).unwrap();
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let words = ["backup", "--vm", "web", "--bitmap", "b", &image];
    let run =
        house.command(words).env("PATH", path).env("COPAL_PASSWORD", "sesame").env("HOME", "/h").output();
    assert_eq!(Run::of(run.unwrap()).code, Some(3));
    for program in ["qemu-nbd", "qemu-img"] {
        let heard = std::fs::read_to_string(house.path(program)).unwrap();
        assert!(heard.contains("HOME=/h") && heard.contains("PATH="), "{heard}");
        assert!(!heard.contains("sesame") && !heard.contains("COPAL"), "{heard}");
    }
}

#[test]
fn a_missing_qemu_nbd_is_named_with_its_package() {
    let house = House::plain();
    std::fs::write(house.path("disk.qcow2"), [&b"QFI\xfb and more"[..], &[0; 100]].concat()).unwrap();
    let image = house.word("disk.qcow2");
    let run =
        Run::of(house.command(["backup", "--vm", "web", &image]).env("PATH", "/none").output().unwrap());
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.sentence().contains("apt install qemu-utils"), "{run:?}");
}

#[test]
fn the_server_ends_with_us_however_we_end() {
    if !have_qemu() {
        return;
    }
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), 4 * MIB, 51);
    let qcow2 = qcow2_of(&house, &house.path("disk.raw"));
    for (signals, code) in
        [(&[Signal::INT][..], Some(130)), (&[Signal::INT, Signal::INT], Some(130)), (&[Signal::KILL], None)]
    {
        let (sda, sdb) = (format!("sda={qcow2}"), "sdb=-".to_owned());
        // The second disk, a pipe without an end, keeps the first one's server running.
        let mut backup = Running::start(&house, ["backup", "--vm", "web", "--disk", &sda, "--disk", &sdb]);
        backup.wait_for("status");
        assert_eq!(servers_of(&qcow2), 1);
        for signal in signals {
            backup.signal(*signal);
        }
        if signals.len() == 1 && code.is_some() {
            backup.wait_for("exit_error");
        }
        let run = backup.end();
        assert_eq!(run.code, code, "{run:?}");
        // Our process is dead; its server notices the closed connection and ends too.
        while servers_of(&qcow2) > 0 {
            std::thread::yield_now();
        }
    }
    house.check();
}
