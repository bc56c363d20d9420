//! qcow2 images and NBD exports, with the real `qemu-nbd`.

use crate::{
    disks::{Disk, MIB, assert_restored},
    harness::{House, Run, Running, count, id},
};
use rustix::process::Signal;
use std::{path::Path, process::Command};

/// Whether the programs of QEMU are there; missing ones are a loud skip, or a failure where the
/// suite must be complete.
#[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
fn have_qemu() -> bool {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let have = there("qemu-nbd") && there("qemu-img") && there("qemu-io") && there("nbdinfo");
    if !have {
        let required = std::env::var_os("COPAL_TEST_REQUIRE_QEMU").is_some();
        assert!(
            !required,
            "qemu-nbd or nbdinfo is missing: apt install qemu-utils libnbd-bin"
        );
        eprintln!("SKIPPED: qemu-nbd or nbdinfo is missing; apt install qemu-utils libnbd-bin");
    }
    have
}

fn tool(program: &str, args: &[&str]) -> Vec<u8> {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
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
    tool(
        "qemu-img",
        &[
            "convert",
            "-f",
            "raw",
            "-O",
            "qcow2",
            raw.to_str().unwrap(),
            &qcow2,
        ],
    );
    qcow2
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
    let first = house.backup("web", Path::new(&qcow2));
    assert_eq!(count(&first, "logical_bytes"), 32 * MIB);
    assert_eq!(servers_of(&qcow2), 0);
    assert_restored(&house.restore(&id(&first), "first.out"), &disk.bytes);

    tool(
        "qemu-io",
        &[
            "-f",
            "qcow2",
            "-c",
            "write -P 0xaa 3M 1M",
            "-c",
            "write -P 0xbb 20M 130k",
            &qcow2,
        ],
    );
    disk.bytes[3 << 20..4 << 20].fill(0xaa);
    disk.bytes[20 << 20..(20 << 20) + (130 << 10)].fill(0xbb);
    // The map as nbdinfo prints it, from a server of our own, and then the same by --bitmap.
    let socket = house.word("s");
    let export = [
        "-t", "-r", "-f", "qcow2", "-k", &socket, "-x", "vm", "-B", "copal-0", "--fork", &qcow2,
    ];
    let pid_file = house.word("pid");
    tool("qemu-nbd", &[&["--pid-file", &pid_file], &export[..]].concat());
    let uri = format!("nbd+unix:///vm?socket={socket}");
    let map = tool("nbdinfo", &["--json", "--map=qemu:dirty-bitmap:copal-0", &uri]);
    std::fs::write(house.path("map.json"), map).unwrap();
    let list = house.word("map.json");
    let words = [
        "backup",
        "--vm",
        "web",
        "--strict-incremental",
        "--changed-extents",
        &list,
    ];
    let listed = house.summary([&words[..], &[&uri]].concat());
    let pid: i32 = std::fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    assert_eq!(listed["disks"][0]["mode"], "incremental");
    assert_eq!(count(&listed, "dirty_bytes"), MIB + (192 << 10));
    assert_restored(&house.restore(&id(&listed), "listed.out"), &disk.bytes);

    // Symptom: a bitmap that is not there was answered with the words of `qemu-nbd` alone.
    // Cause: they were taken for enough. Fix: what to do stands behind them.
    let missing = house.run(["backup", "--vm", "web", "--bitmap", "copal-9", &qcow2]);
    assert_eq!(missing.code, Some(3), "{missing:?}");
    for part in ["copal-9", "qemu-img bitmap --add", "leave --bitmap out"] {
        assert!(missing.sentence().contains(part), "{part:?}: {missing:?}");
    }
    let by_bitmap = house.summary(["backup", "--vm", "web", "--bitmap", "copal-0", &qcow2]);
    assert_eq!(by_bitmap["disks"][0]["mode"], "incremental", "{by_bitmap}");
    assert_eq!(count(&by_bitmap, "new_bytes"), 0);
    assert_restored(&house.restore(&id(&by_bitmap), "bitmap.out"), &disk.bytes);
    assert_eq!(servers_of(&qcow2), 0);
}

#[test]
fn a_missing_qemu_nbd_is_named_with_its_package() {
    let house = House::plain();
    std::fs::write(house.path("disk.qcow2"), b"QFI\xfb and more").unwrap();
    let image = house.word("disk.qcow2");
    let run = Run::of(
        house
            .command(["backup", "--vm", "web", &image])
            .env("PATH", "/none")
            .output()
            .unwrap(),
    );
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
    for (signals, code) in [
        (&[Signal::INT][..], Some(130)),
        (&[Signal::INT, Signal::INT], Some(130)),
        (&[Signal::KILL], None),
    ] {
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
        // Ours is gone; its server hears of that through the closed connection and goes too.
        while servers_of(&qcow2) > 0 {
            std::thread::yield_now();
        }
    }
    house.check();
}
