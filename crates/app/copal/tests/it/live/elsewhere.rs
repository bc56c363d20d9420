//! Disks that no longer belong to the guest, and other programs that use the same QEMU meanwhile.

use super::{
    count,
    machine::{BOTH, DEVICES, Machine, have_machine},
    modes,
};
use crate::{disks::MIB, harness::House, qemu::tool};
use serde_json::json;
use std::{
    fs::File,
    sync::atomic::{AtomicBool, Ordering},
};

fn refused(house: &House, words: &[String], said: &str) {
    let run = house.run(words);
    assert!(run.code == Some(3) && run.sentence().contains(said), "{run:?}");
}

/// Symptom: after an external snapshot, or after a disk was copied elsewhere, every backup with the old
/// `--node` ended with exit code 0, was incremental, and held the disk in its old state. Cause: a node
/// without writes was taken for an idle disk. Fix: the node must belong to a device's disk, through nodes
/// that pass writes down to it.
#[test]
fn a_node_that_the_guest_does_not_write_to_is_refused() {
    if !have_machine() {
        return;
    }
    let house = House::plain();
    let machine = Machine::start(&house, &DEVICES);
    let words = |nodes: &[&str]| machine.words(&machine.path("qmp.sock"), nodes);
    house.summary(words(&BOTH));
    let overlay = machine.path("over.qcow2");
    machine.execute(
        "blockdev-snapshot-sync",
        json!({ "node-name": "vm0", "snapshot-file": overlay, "snapshot-node-name": "over0" }),
    );
    refused(&house, &words(&BOTH), "vm0 lies behind over0");
    let again = house.summary(words(&["sda=over0", "sdb=vm1"]));
    assert_eq!(modes(&again)[1], ("incremental", ""), "{again}");

    let spare = machine.path("spare.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &spare, "16M"]);
    machine.execute(
        "blockdev-add",
        json!({ "driver": "qcow2", "node-name": "spare", "file": { "driver": "file", "filename": spare } }),
    );
    refused(&house, &words(&["sdb=spare"]), "no device of the guest uses spare");
    machine.execute(
        "blockdev-mirror",
        json!({ "job-id": "copy", "device": "vm1", "target": "spare", "sync": "full", "speed": 1 }),
    );
    refused(&house, &words(&["sdb=vm1"]), "a block job (mirror_top) works on vm1");
    assert!(machine.runs());
    assert_eq!(house.snapshots().len(), 2);
}

/// Symptom: a QEMU whose guest had migrated away was backed up with exit code 0, and the disk was that of the
/// migration. Cause: a guest that does not run was taken for a paused one. Fix: QEMU's own state for it is
/// refused.
#[test]
fn a_guest_that_is_on_its_way_is_refused() {
    if !have_machine() {
        return;
    }
    let house = House::plain();
    let machine = Machine::start(&house, &[&DEVICES[..], &["-incoming", "defer"]].concat());
    let words = machine.words(&machine.path("qmp.sock"), &BOTH);
    refused(&house, &words, "QEMU says \"inmigrate\"");
}

/// Symptom: QEMU 7.2 aborted together with its guest when another program listed the block nodes while a
/// backup began. Cause: `blockdev-create`. Fix: Copal writes the fleecing image itself. For a disk that ends
/// within a unit of its bitmap, the symptom was a full read each time, since the marks counted for less than
/// QEMU reports.
#[test]
fn another_program_may_list_the_block_nodes_and_disks_of_any_size_are_incremental() {
    if !have_machine() {
        return;
    }
    let house = House::plain();
    let odd = house.path("odd.raw");
    File::create(&odd).unwrap().set_len(100 << 10).unwrap();
    let node = format!("driver=raw,node-name=odd,file.driver=file,file.filename={}", odd.display());
    let third = ["-blockdev", &node, "-device", "virtio-blk-pci,drive=odd,id=d2"];
    let machine = Machine::start(&house, &[&DEVICES[..], &third].concat());
    let words = machine.words(&machine.path("qmp.sock"), &["sda=vm0", "sdb=vm1", "sdc=odd"]);
    let is_over = AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                machine.execute("query-named-block-nodes", json!({}));
            }
        });
        let made: Vec<_> = (0..6).map(|_| house.run(&words)).collect();
        is_over.store(true, Ordering::Release);
        made
    });
    for run in made {
        assert_eq!(run.code, Some(0), "{run:?}");
    }
    let last = house.summary(&words);
    assert_eq!(modes(&last), [("incremental", ""); 3], "{last}");
    assert!(count(&last, "read_bytes") <= 33 * MIB, "{last}");
}

/// Symptom: of two backups that began at once, one took the other's nodes for those of a killed one, and both
/// failed with an error of QEMU. A backup that was killed before its first image left its NBD server, and
/// every later one failed. Cause: before its first image, nothing in QEMU identified a session. Fix: an
/// anchor is created first, and removed last.
#[test]
fn backups_that_begin_in_one_moment_and_a_server_that_was_left_do_no_harm() {
    if !have_machine() {
        return;
    }
    let (house, other) = (House::plain(), House::plain());
    let machine = Machine::start(&house, &DEVICES);
    let sockets = ["qmp.sock", "other.sock"].map(|socket| machine.words(&machine.path(socket), &BOTH));
    let mut done = 0;
    for _ in 0..6 {
        let runs = std::thread::scope(|scope| {
            let one = scope.spawn(|| house.run(&sockets[0]));
            let two = other.run(&sockets[1]);
            [one.join().unwrap(), two]
        });
        for run in &runs {
            assert!(matches!(run.code, Some(0 | 11)), "{run:?}");
        }
        done += runs.iter().filter(|run| run.code == Some(0)).count();
    }
    assert!(done >= 6, "one of two goes on: {done}");

    // Remains of a backup that was killed right after the start of its NBD server.
    let left = house.path("vm/copal-0badcafe");
    std::fs::create_dir(&left).unwrap();
    let anchor = left.join("copal-0badcafe-anchor1");
    std::fs::write(&anchor, [0; 512]).unwrap();
    std::fs::write(left.join("lock"), b"").unwrap();
    machine.execute(
        "blockdev-add",
        json!({ "driver": "file", "node-name": "copal-0badcafe-anchor1", "filename": anchor, "read-only": true }),
    );
    let socket = left.join("nbd.sock");
    machine.execute("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": socket } } }));
    house.summary(&sockets[0]);
    assert!(!left.exists());
    let nodes = machine.execute("query-named-block-nodes", json!({ "flat": true }));
    assert!(!nodes.to_string().contains("copal-0badcafe"), "{nodes}");
}
