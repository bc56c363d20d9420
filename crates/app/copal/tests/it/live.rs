//! Running VMs: a storage daemon whose disks are written all the time, and a guest under TCG.
//!
//! The correct content of a snapshot is read independently. The test pauses its writer, so that it knows each
//! byte at the moment that `copal` chooses; or it asks the daemon for a second point in time of its own.

mod daemon;
mod elsewhere;
mod guest;
mod impostors;
mod machine;
mod marks;
mod writers;

use crate::{
    disks::MIB,
    harness::{House, Run, Running, count, id, wait_until},
    loop_device::{FreezableMount, LoopDevice},
    qemu::tool,
};
pub(crate) use daemon::{Daemon, have_daemon};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
};
use writers::{GuestDisk, Writers};

/// `copal backup` of both disks of a daemon.
pub(crate) fn words(daemon: &Daemon) -> Vec<String> {
    let word = |word: &str| word.to_owned();
    let mut words = vec![word("backup"), word("--vm"), word("db1"), word("--qmp"), daemon.path("qmp.sock")];
    words.extend(["--node", "sda=vm0", "--node", "sdb=vm1", "--nbd-socket"].map(word));
    words.extend([daemon.path("nbd.sock"), word("--fleece-dir"), daemon.path("")]);
    words
}

fn modes(summary: &Value) -> Vec<(&str, &str)> {
    let disks = summary["disks"].as_array().unwrap().iter();
    disks.map(|disk| (disk["mode"].as_str().unwrap(), disk["reason"].as_str().unwrap())).collect()
}

/// Checks that a snapshot holds both disks unchanged.
fn assert_holds(house: &House, summary: &Value, disks: &[Vec<u8>; 2]) {
    for (name, bytes) in ["sda", "sdb"].iter().zip(disks) {
        let target = house.path("restored");
        house.good([
            "restore",
            &id(summary),
            "--disk",
            name,
            "--target",
            target.to_str().unwrap(),
            "--overwrite",
        ]);
        let restored = std::fs::read(&target).unwrap();
        let differs = restored.iter().zip(bytes).position(|(one, other)| one != other);
        assert!(restored.len() == bytes.len() && differs.is_none(), "{name} differs at {differs:?}");
    }
}

/// Properties of every disk of the daemon, except for names that QEMU generates.
fn assert_nothing_left(daemon: &Daemon) {
    assert_eq!(daemon.nodes(), ["top0", "top1", "vm0", "vm1"]);
    let left: Vec<String> = std::fs::read_dir(daemon.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("copal-"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_full_backup_and_three_incremental_ones_hold_the_content_of_their_time() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, 3 * MIB);
    daemon.write(1, 5 * MIB, MIB);
    let full = house.summary(words(&daemon));
    assert!(modes(&full).iter().all(|(mode, _)| *mode == "full"), "{full}");
    assert_eq!(full["consistency"], "crash");
    assert_holds(&house, &full, &daemon.bytes);
    for round in 0..3 {
        daemon.write(0, (8 + round) * MIB, 200 << 10);
        daemon.write(1, (2 + round) * MIB + 4096, 4096);
        let next = house.summary([words(&daemon), vec!["--strict-incremental".into()]].concat());
        assert_eq!(modes(&next), [("incremental", ""); 2], "{next}");
        // The written ranges, and those that mark the bitmaps.
        let written = (256 << 10) + (64 << 10);
        assert!((written..=written + 2 * (256 << 10)).contains(&count(&next, "dirty_bytes")), "{next}");
        assert_eq!(next["warnings"], serde_json::json!([]), "{next}");
        assert_holds(&house, &next, &daemon.bytes);
        assert_nothing_left(&daemon);
    }
    // One bitmap for each disk, named by the newest snapshot.
    let listed = house.summary(["bitmap", "ls", "--qmp", &daemon.path("qmp.sock")]);
    let listed = listed["bitmaps"].as_array().unwrap();
    let newest = house.snapshots().pop().unwrap();
    assert_eq!(listed.len(), 2, "{listed:?}");
    for (bitmap, (node, is_persistent)) in listed.iter().zip([("vm0", true), ("vm1", false)]) {
        assert_eq!(bitmap["node"], node);
        assert_eq!((&bitmap["snapshot"], &bitmap["recording"]), (&newest.clone().into(), &true.into()));
        assert_eq!(bitmap["persistent"], is_persistent);
    }
    house.check();
}

/// While `copal` reads, a writer writes block after block, round and round: only one moment has one round up
/// to some block and the previous round after it.
#[test]
fn writes_during_a_backup_are_in_the_next_snapshot_and_not_in_this_one() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, 8 * MIB);
    house.summary(words(&daemon));
    for _ in 0..3 {
        let writer = daemon.write_on();
        let made = house.summary([words(&daemon), vec!["--fleece-limit".into(), "100%".into()]].concat());
        writer.stop();
        assert_eq!(modes(&made)[0], ("incremental", ""), "{made}");
        house.good(["restore", &id(&made), "--disk", "sda", "--target", &house.word("out"), "--overwrite"]);
        let moment = daemon::moment_of(&std::fs::read(house.path("out")).unwrap());
        assert!(moment.is_some(), "the blocks are not of one moment");
        daemon.read_back();
    }
    let quiet = house.summary([words(&daemon), vec!["--strict-incremental".into()]].concat());
    assert_holds(&house, &quiet, &daemon.bytes);
}

/// Symptom: a backup stored zeros for blocks that the guest zeroed or trimmed meanwhile; exit code 0,
/// `verify` clean.
/// Cause: QEMU before 8.0 reports holes of the present disk, and reads it where a request extends beyond a
/// copied cluster.
/// Fix: QEMU's behaviour is tested first. If it is wrong, no holes are queried and each read lies within one
/// cluster.
#[test]
fn guests_that_write_zero_and_trim_are_backed_up_at_moments() {
    if !have_daemon() {
        return;
    }
    let rounds = std::env::var("COPAL_TEST_MOMENTS").map_or(1, |rounds| rounds.parse().unwrap());
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    for disk in 0..2 {
        daemon.write(disk, 0, 14 * MIB);
    }
    let wide = [words(&daemon), vec!["--fleece-limit".into(), "100%".into()]].concat();
    let writers = Writers::start(&daemon, 3 * MIB);
    let mut moments = Vec::new();
    for _ in 0..rounds {
        for more in ["--full", "--strict-incremental"] {
            let answered = writers.answered();
            let made = house.summary([&wide[..], &[more.to_owned()]].concat());
            let sent = writers.sent();
            moments.push((id(&made), answered, sent));
        }
    }
    let mut ended = writers.stop();
    for (snapshot, answered, sent) in moments {
        let restored = ["sda", "sdb"].map(|disk| {
            house.good(["restore", &snapshot, "--disk", disk, "--target", &house.word("out"), "--overwrite"]);
            std::fs::read(house.path("out")).unwrap()
        });
        ended.judge(&restored, &answered, &sent).unwrap();
        for (found, bytes) in restored.iter().zip(&daemon.bytes) {
            assert_eq!(found[12 * MIB as usize..], bytes[12 * MIB as usize..]);
        }
    }
    assert_nothing_left(&daemon);
    house.check();
}

/// Symptom: a guest that trimmed much during a backup (`fstrim`) broke the point in time, and the backup
/// ended.
/// Cause: the filter passed the trim on, after copying all of its range.
/// Fix: the filter ignores trims, which are optional. After the backup they work again.
#[test]
fn a_trim_of_much_does_not_break_the_point_in_time() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, 0, 14 * MIB);
    daemon.write(1, 0, 4 * MIB);
    daemon.limit_reads(MIB);
    let small = [words(&daemon), vec!["--fleece-limit".into(), "1%".into()]].concat();
    let backup = Running::start(&house, small);
    daemon.wait_for_moment();
    let mut guest = GuestDisk::connect(&daemon, 0);
    guest.trim(0..14 * MIB);
    daemon.limit_reads(0);
    let run = backup.end();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_holds(&house, &run.summary(), &daemon.bytes);
    guest.trim(0..14 * MIB);
    assert!(guest.read(&(0..14 * MIB)).iter().all(|byte| *byte == 0));
    daemon.bytes[0].fill(0);
    let next = house.summary([words(&daemon), vec!["--strict-incremental".into()]].concat());
    assert_holds(&house, &next, &daemon.bytes);
}

/// A trim of 1 GB on a disk of 2 GB with little data: more than the fleecing image may hold.
#[test]
fn a_trim_of_a_gigabyte_does_not_break_the_point_in_time() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start_large(&house, 2 << 30);
    let (marks, length) = ([5 * MIB, 700 * MIB, 1000 * MIB, 1900 * MIB], 4 * MIB);
    for place in marks {
        daemon.write(0, place, length);
    }
    // The other disk is read first, slowly.
    daemon.write(1, 0, 4 * MIB);
    daemon.limit_reads(MIB);
    let mut slow_first = words(&daemon);
    let at = slow_first.iter().position(|word| word == "sda=vm0").unwrap();
    slow_first.swap(at, at + 2);
    slow_first.extend(["--fleece-limit".into(), "0.1%".into()]);
    let backup = Running::start(&house, &slow_first);
    daemon.wait_for_moment();
    let mut guest = GuestDisk::connect(&daemon, 0);
    guest.trim(0..1 << 30);
    let run = backup.end();
    assert_eq!(run.code, Some(0), "{run:?}");
    house.good(["restore", &id(&run.summary()), "--disk", "sda", "--target", &house.word("out")]);
    let restored = File::open(house.path("out")).unwrap();
    let meta = restored.metadata().unwrap();
    // The rest is holes.
    assert!(meta.len() == 2 << 30 && meta.blocks() * 512 <= 17 * MIB, "{meta:?}");
    for (pattern, place) in (1..).zip(marks) {
        let mut piece = vec![0; length as usize];
        restored.read_exact_at(&mut piece, place).unwrap();
        assert!(piece.iter().all(|byte| *byte == pattern), "at {place}");
    }
    assert_nothing_left(&daemon);
}

/// Symptom: when the storage of a fleecing image stopped responding, a guest's write waited for the longest
/// time of a copy. Then all of the guest waited as long as the storage did.
/// Cause: QEMU waits for every copy in progress before it removes the filter.
/// Fix: the storage is tested first; if it does not respond, the filter stays until the next backup.
#[test]
fn a_fleecing_image_that_hangs_ends_the_backup_and_no_write_of_the_guest() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let Some(device) = LoopDevice::attach(&house.path("fleece.img"), 64 * MIB) else {
        return;
    };
    tool("mke2fs", &["-q", "-t", "ext4", device.path.to_str().unwrap()]);
    let storage = FreezableMount::over(&device, &house.path("fleece"));
    let mut daemon = Daemon::start(&house);
    daemon.write(0, 0, 14 * MIB);
    daemon.write(1, 0, 4 * MIB);
    daemon.limit_reads(MIB);
    let own = daemon.path("");
    let mut there = words(&daemon);
    there.extend(["--fleece-limit", "100%"].map(str::to_owned));
    for word in there.iter_mut().filter(|word| **word == own) {
        *word = house.word("fleece");
    }
    let backup = Running::start(&house, &there);
    daemon.wait_for_moment();
    backup.signal(Signal::STOP);
    storage.freeze();
    daemon.write(0, 0, 14 * MIB);
    backup.signal(Signal::CONT);
    let run = backup.end();
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.stderr.contains("took longer than 4 s"), "{run:?}");
    assert!(run.stderr.contains("and the guest writes on"), "{run:?}");
    assert!(house.snapshots().is_empty());
    daemon.write(0, MIB, MIB);
    let refused = house.run(&there);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.sentence().contains("make that storage answer"), "{refused:?}");
    daemon.write(0, 2 * MIB, MIB);
    storage.thaw();
    daemon.limit_reads(0);
    let next = house.summary(&there);
    assert_holds(&house, &next, &daemon.bytes);
    assert_nothing_left(&daemon);
    assert!(daemon.is_alive());
}

/// Symptom: QEMU 7.2.22 aborted together with the guest when a disk in a separate thread was backed up. After
/// a first fix, any iothread made each export unusable.
/// Cause: its filter does not support other threads. QMP does not report the thread of an export.
/// Fix: such a disk is refused before anything is changed. The command line of QEMU shows the thread of an
/// export that was created there.
#[test]
fn a_disk_that_may_run_in_a_thread_of_its_own_is_refused_and_others_are_not() {
    if !have_daemon() {
        return;
    }
    let refused = |house: &House, daemon: &mut Daemon, sentence: &str| {
        let run = house.run(words(daemon));
        assert!(daemon.is_alive(), "{run:?}");
        assert_eq!(run.code, Some(3), "{run:?}");
        let said = run.sentence();
        assert!(said.contains(sentence) && said.contains("10.0"), "{run:?}");
        assert_nothing_left(daemon);
        assert!(daemon.bitmaps("vm0").is_empty());
    };
    let house = House::plain();
    let mut daemon = Daemon::start_beside_thread(&house, [true, false]);
    refused(&house, &mut daemon, "its export guest0 runs in the iothread io0");
    daemon.write(1, MIB, MIB);
    let mut second = words(&daemon);
    second.retain(|word| word != "sda=vm0");
    let lone = second.iter().position(|word| word == "--node").unwrap();
    second.remove(lone);
    let made = house.summary(&second);
    assert!(daemon.is_alive(), "{made}");
    house.good(["restore", &id(&made), "--disk", "sdb", "--target", &house.word("out")]);
    assert!(std::fs::read(house.path("out")).unwrap() == daemon.bytes[1]);
    drop(daemon);
    let house = House::plain();
    let mut daemon = Daemon::start_beside_thread(&house, [false, false]);
    daemon.write(0, MIB, MIB);
    let made = house.summary(words(&daemon));
    assert!(daemon.is_alive(), "{made}");
    assert_holds(&house, &made, &daemon.bytes);
    // An export that was created later may run in any thread.
    house.good(["bitmap", "rm", "--qmp", &daemon.path("qmp.sock"), "--node", "vm0", "--all"]);
    let export = serde_json::json!({ "type": "nbd", "id": "later", "node-name": "top0", "name": "later" });
    daemon.execute("block-export-add", export);
    refused(
        &house,
        &mut daemon,
        "its export later is not on the command line of QEMU, and QMP does not report its thread; it may run in the iothread io0",
    );
}

/// Symptom: a copy was given up after 2.05 seconds instead of 45.
/// Cause: before QEMU 9.1 the nanoseconds of `cbw-timeout` are kept in 32 bits.
/// Fix: the limit follows the version.
#[test]
fn the_limit_of_a_copy_follows_the_version() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let daemon = Daemon::start(&house);
    for (major, minor, seconds) in [(7, 2, 4), (9, 0, 4), (9, 1, 45)] {
        let (socket, passed) = impostors::qemu_of(&daemon, major, minor);
        let qmp = daemon.path("qmp.sock");
        let words = words(&daemon).into_iter().map(|word| if word == qmp { socket.clone() } else { word });
        house.summary(words);
        let passed = passed.join().unwrap();
        let filters: Vec<&Value> = passed
            .iter()
            .map(|line| &line["arguments"])
            .filter(|node| node["driver"] == "copy-before-write" && node.get("cbw-timeout").is_some())
            .collect();
        assert_eq!(filters.len(), 2, "{passed:?}");
        for filter in filters {
            assert_eq!((&filter["cbw-timeout"], &filter["discard"]), (&seconds.into(), &"ignore".into()));
            assert_eq!(filter["on-cbw-error"], "break-snapshot");
        }
        std::fs::remove_file(&socket).unwrap();
    }
}

/// Symptom: after a killed backup whose QEMU then ended, the fleecing images stayed for ever.
/// Cause: only the nodes of that QEMU named them.
/// Fix: the next backup searches the directory, and removes directories in which no process has a lock.
#[test]
fn images_of_a_killed_backup_go_with_the_next_one_also_when_qemu_ended() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, 4 * MIB);
    daemon.write(1, MIB, 4 * MIB);
    daemon.limit_reads(MIB);
    let backup = Running::start(&house, words(&daemon));
    daemon.wait_for_moment();
    backup.signal(Signal::KILL);
    backup.end();
    let left = |daemon: &Daemon| {
        let entries = std::fs::read_dir(daemon.path("")).unwrap().flatten();
        entries.filter(|entry| entry.path().join("lock").exists()).count()
    };
    assert_eq!(left(&daemon), 1);
    // Another VM's backup does not remove images that a QEMU still has open.
    let other = House::plain();
    let idle = Daemon::idle(&other);
    let mut elsewhere: Vec<String> = words(&idle).into_iter().take(9).collect();
    elsewhere.extend(["--fleece-dir".into(), daemon.path("")]);
    other.good(&elsewhere);
    assert_eq!(left(&daemon), 1);
    daemon.kill();
    other.good(&elsewhere);
    assert_eq!(left(&daemon), 0);
    daemon.start_again();
    let next = house.summary(words(&daemon));
    assert_holds(&house, &next, &daemon.bytes);
    assert_nothing_left(&daemon);
}

/// Symptom: a backup that was killed while the guest's file systems were frozen left them frozen.
/// Cause: they were thawed only by the next backup.
/// Fix: a guardian process, which also has the connection to the agent, thaws them.
#[test]
fn a_guest_is_thawed_when_its_backup_is_killed() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let daemon = Daemon::start(&house);
    let socket = daemon.path("qga.sock");
    let agent = impostors::guest_agent(&socket, "guest-fsfreeze-freeze");
    let freeze = ["--freeze", "agent", "--agent-socket", &socket].map(str::to_owned);
    let backup = Running::start(&house, [words(&daemon), freeze.to_vec()].concat());
    wait_until("a guest that is asked to freeze", || {
        std::path::Path::new(&format!("{socket}.deaf")).exists()
    });
    backup.signal(Signal::KILL);
    backup.end();
    let heard = agent.join().unwrap();
    assert_eq!(heard.last().map(String::as_str), Some("guest-fsfreeze-thaw"), "{heard:?}");
}

/// Symptom: a running VM with a truncated base image, or with one whose format only QEMU reads, made a good
/// snapshot: QEMU reads zeros beyond the end of a file. Cause: the backing files of a running image were not
/// checked. Fix: the snapshot is doubtful until a user has accepted it once.
#[test]
fn a_short_or_foreign_file_behind_a_running_disk_makes_a_doubtful_snapshot() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::idle(&house);
    let (image, base) = (daemon.path("vm0.qcow2"), daemon.path("base"));
    for (format, size, said) in [
        ("raw", "4M", "has a disk of 4194304 bytes where the image has one of 16777216"),
        ("vmdk", "16M", "an image of the format vmdk"),
    ] {
        daemon.kill();
        tool("qemu-img", &["create", "-q", "-f", format, &base, size]);
        let over = ["create", "-q", "-f", "qcow2", "-F", format, "-b", &base, &image, "16M"];
        tool("qemu-img", &over);
        daemon.start_again();
        let made = house.summary(words(&daemon));
        let doubts = made["doubts"].as_array().unwrap();
        assert_eq!(doubts.len(), 1, "{made}");
        assert!(
            doubts[0]["kind"] == "chain" && doubts[0]["message"].as_str().unwrap().contains(said),
            "{made}"
        );
        let again = house.summary(words(&daemon));
        assert_eq!(again["doubts"].as_array().unwrap().len(), 1, "{again}");
        house.good(["accept", &id(&again)]);
        let accepted = house.summary(words(&daemon));
        assert_eq!(accepted["doubts"].as_array().unwrap().len(), 0, "{accepted}");
        assert_nothing_left(&daemon);
    }
    daemon.stop();
}

#[test]
fn a_bitmap_that_does_not_count_costs_its_disk_alone() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, MIB);
    daemon.write(1, MIB, MIB);
    house.summary(words(&daemon));
    let expect = |daemon: &mut Daemon, more: &[&str], reason: &str| {
        daemon.write(0, 9 * MIB, 4096);
        daemon.write(1, 9 * MIB, 4096);
        let more: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
        let words = [words(daemon), more].concat();
        let strict = house.run([&words[..], &["--strict-incremental".into()]].concat());
        assert_eq!(strict.code, Some(22), "{strict:?}");
        let made = house.summary(&words);
        let [(first, why), second] = &modes(&made)[..] else { panic!() };
        assert!(*first == "rescan" && why.contains(reason), "{made}");
        assert_eq!(*second, ("incremental", ""));
        assert_holds(&house, &made, &daemon.bytes);
        assert_nothing_left(daemon);
    };
    // Removed without our knowledge, by our own command and by QMP.
    let qmp = daemon.path("qmp.sock");
    let gone = house.summary(["bitmap", "rm", "--qmp", &qmp, "--node", "vm0", "--all"]);
    assert_eq!(gone["removed"].as_array().unwrap().len(), 1);
    expect(&mut daemon, &[], "has no dirty bitmap copal-");
    let name = daemon.bitmaps("vm0").pop().unwrap();
    daemon.execute("block-dirty-bitmap-remove", serde_json::json!({ "node": "vm0", "name": name }));
    expect(&mut daemon, &[], "has no dirty bitmap copal-");
    // Disabled, cleared.
    let name = daemon.bitmaps("vm0").pop().unwrap();
    daemon.execute("block-dirty-bitmap-disable", serde_json::json!({ "node": "vm0", "name": name }));
    expect(&mut daemon, &[], "is disabled");
    // Another disk by the same name.
    expect(&mut daemon, &["--serial", "sda=other"], "the serial");
    // Another size.
    daemon.resize(0, 17 * MIB);
    expect(&mut daemon, &["--serial", "sda=other"], "it has 17825792 now");
    // An unknown name is not removed.
    let none = house.run(["bitmap", "rm", "--qmp", &qmp, "--node", "vm0", "none"]);
    assert_eq!(none.code, Some(3), "{none:?}");
    house.check();
}

#[test]
fn a_kill_between_the_moment_and_the_snapshot_forgets_no_write() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, 4 * MIB);
    daemon.write(1, MIB, 4 * MIB);
    house.summary(words(&daemon));
    for (signal, code) in [(Signal::KILL, None), (Signal::INT, Some(130))] {
        daemon.write(0, 6 * MIB, 4096);
        daemon.limit_reads(MIB);
        let backup = Running::start(&house, [words(&daemon), vec!["--full".into()]].concat());
        daemon.wait_for_moment();
        daemon.write(0, 7 * MIB, 4096);
        backup.signal(signal);
        let run = backup.end();
        assert_eq!(run.code, code, "{run:?}");
        daemon.limit_reads(0);
        // Remains of a kill stay; after a signal they are removed.
        assert_eq!(daemon.nodes().len() > 4, code.is_none());
        daemon.write(0, 8 * MIB, 4096);
        daemon.write(1, 8 * MIB, 4096);
        let next = house.summary([words(&daemon), vec!["--strict-incremental".into()]].concat());
        assert_eq!(modes(&next), [("incremental", ""); 2], "{next}");
        assert_holds(&house, &next, &daemon.bytes);
        assert_nothing_left(&daemon);
        assert_eq!(daemon.bitmaps("vm0").len(), 1);
    }
    house.check();
}

#[test]
fn a_full_fleecing_image_ends_the_backup_and_no_write_of_the_guest() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, 0, 14 * MIB);
    daemon.write(1, 0, 4 * MIB);
    house.summary(words(&daemon));
    daemon.limit_reads(MIB);
    let small = [words(&daemon), vec!["--fleece-limit".into(), "1%".into(), "--full".into()]].concat();
    let backup = Running::start(&house, small);
    daemon.wait_for_moment();
    daemon.write(1, 0, 4 * MIB);
    daemon.write(0, 0, 14 * MIB);
    daemon.limit_reads(0);
    let run = backup.end();
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.stderr.contains("larger --fleece-limit"), "{run:?}");
    assert_nothing_left(&daemon);
    let next = house.summary([words(&daemon), vec!["--strict-incremental".into()]].concat());
    assert_holds(&house, &next, &daemon.bytes);
}

#[test]
fn a_daemon_that_is_killed_meanwhile_costs_a_rescan() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, 8 * MIB);
    daemon.write(1, MIB, 4 * MIB);
    house.summary(words(&daemon));
    // After a regular stop, the qcow2 image keeps the bitmap.
    daemon.stop();
    daemon.start_again();
    daemon.write(0, 3 * MIB, 4096);
    let kept = house.summary(words(&daemon));
    assert_eq!(modes(&kept)[0], ("incremental", ""), "{kept}");
    assert!(modes(&kept)[1].1.contains("has no dirty bitmap"), "{kept}");
    assert_holds(&house, &kept, &daemon.bytes);
    daemon.stop();
    daemon.start_again();
    daemon.limit_reads(MIB);
    let backup = Running::start(&house, [words(&daemon), vec!["--full".into()]].concat());
    daemon.wait_for_moment();
    daemon.kill();
    let run = backup.end();
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(
        std::fs::read_dir(daemon.path(""))
            .unwrap()
            .flatten()
            .all(|entry| !entry.path().join("lock").exists())
    );
    daemon.start_again();
    daemon.write(0, 2 * MIB, 4096);
    let next = house.summary(words(&daemon));
    let reasons = modes(&next);
    assert!(reasons[0].0 == "rescan" && reasons[0].1.contains("inconsistent"), "{next}");
    assert!(reasons[1].0 == "rescan" && reasons[1].1.contains("has no dirty bitmap"), "{next}");
    assert_holds(&house, &next, &daemon.bytes);
    let again = house.summary([words(&daemon), vec!["--strict-incremental".into()]].concat());
    assert_holds(&house, &again, &daemon.bytes);
    house.check();
}

#[test]
fn a_qemu_without_a_limit_of_time_for_copies_is_read_in_full() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, 4 * MIB);
    house.summary(words(&daemon));
    daemon.write(1, MIB, MIB);
    let old = impostors::older_qemu(&daemon);
    let words: Vec<String> = words(&daemon)
        .into_iter()
        .map(|word| if word.ends_with("qmp.sock") { old.clone() } else { word })
        .collect();
    let made = house.summary(&words);
    assert!(
        modes(&made).iter().all(|(mode, why)| *mode == "rescan" && why.contains("cbw-timeout")),
        "{made}"
    );
    assert_holds(&house, &made, &daemon.bytes);
    assert_nothing_left(&daemon);
    // A bitmap that began there may be trusted if more is known.
    daemon.write(1, 2 * MIB, MIB);
    let next = house.summary([crate::live::words(&daemon), vec!["--strict-incremental".into()]].concat());
    assert_holds(&house, &next, &daemon.bytes);
}

#[test]
fn a_guest_is_frozen_for_the_moment_alone() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, MIB);
    let socket = daemon.path("qga.sock");
    let agent = impostors::guest_agent(&socket, "");
    let freeze = ["--freeze", "agent", "--agent-socket", &socket].map(str::to_owned);
    let made = house.summary([words(&daemon), freeze.to_vec()].concat());
    assert_eq!(made["consistency"], "file system", "{made}");
    assert_holds(&house, &made, &daemon.bytes);
    let heard = agent.join().unwrap();
    assert_eq!(heard[heard.len() - 2..], ["guest-fsfreeze-freeze", "guest-fsfreeze-thaw"]);
    // The daemon has ended: no backup, and no remains.
    let run = house.run([words(&daemon), freeze.to_vec()].concat());
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.sentence().contains("the guest was not frozen"), "{run:?}");
    assert_nothing_left(&daemon);
    assert_eq!(daemon.bitmaps("vm0").len(), 1);
}

#[test]
fn an_agent_backs_up_a_running_vm() {
    if !have_daemon() {
        return;
    }
    let house = House::fleet();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, MIB);
    let plan = serde_json::json!({ "v": 1, "vms": [{
        "vm": "db1", "qmp": daemon.path("qmp.sock"), "nodes": { "sda": "vm0", "sdb": "vm1" }, "nbd": daemon.path("nbd.sock"),
    }]});
    std::fs::write(house.path("plan.json"), plan.to_string()).unwrap();
    let (state, plan) = (house.word("agents"), house.word("plan.json"));
    for mode in ["full", "incremental"] {
        daemon.write(1, MIB, MIB);
        house.good(["agent", "--name", "h1", "--state", &state, "--plan", &plan, "--once"]);
        let listed = house.summary(["snapshots"]);
        let newest = listed["snapshots"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(newest["disks"][0]["mode"], mode, "{newest}");
        assert_holds(&house, &serde_json::json!({ "snapshot": newest["id"] }), &daemon.bytes);
        assert_nothing_left(&daemon);
    }
}

#[test]
fn an_agent_freezes_a_guest_as_its_plan_says() {
    if !have_daemon() {
        return;
    }
    let house = House::fleet();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, MIB);
    let socket = daemon.path("qga.sock");
    let plan = serde_json::json!({ "v": 1, "vms": [{
        "vm": "db1", "qmp": daemon.path("qmp.sock"), "nodes": { "sda": "vm0", "sdb": "vm1" }, "nbd": daemon.path("nbd.sock"),
        "freeze": "agent", "agent_socket": socket,
    }]});
    std::fs::write(house.path("plan.json"), plan.to_string()).unwrap();
    let (state, plan) = (house.word("agents"), house.word("plan.json"));
    let words = ["agent", "--name", "h1", "--state", &state, "--plan", &plan, "--once"];
    let agent = impostors::guest_agent(&socket, "");
    house.good(words);
    let heard = agent.join().unwrap();
    assert_eq!(heard[heard.len() - 2..], ["guest-fsfreeze-freeze", "guest-fsfreeze-thaw"]);
    let taken = house.snapshots();
    assert_eq!(taken.len(), 1);
    assert_holds(&house, &serde_json::json!({ "snapshot": taken[0] }), &daemon.bytes);
    // The daemon has ended: that VM has no snapshot, and there are no remains.
    let run = house.run(words);
    assert_ne!(run.code, Some(0), "{run:?}");
    assert!(
        format!("{}{}", String::from_utf8_lossy(&run.stdout), run.stderr)
            .contains("the guest was not frozen"),
        "{run:?}"
    );
    assert_eq!(house.snapshots(), taken);
    assert_nothing_left(&daemon);
}

#[test]
fn impossible_live_backups_are_refused_in_a_sentence() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let daemon = Daemon::start(&house);
    let qmp = daemon.path("qmp.sock");
    let refused = |more: &[&str], code: i32, words: &str| {
        let run: Run =
            house.run([&["backup", "--vm", "db1", "--fleece-dir", &daemon.path("")], more].concat());
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.sentence().contains(words), "{run:?}");
        assert_nothing_left(&daemon);
    };
    refused(&["--qmp", "/none", "--node", "sda=vm0"], 3, "check that QEMU runs");
    refused(&["--qmp", &daemon.path("nbd.sock"), "--node", "sda=vm0"], 11, "or it is no QMP socket");
    refused(&["--qmp", &qmp, "--node", "sda=vm7"], 3, "it has top0, top1, vm0, vm1");
    refused(&["--qmp", &qmp, "--node", "sda=vm0"], 3, "--nbd-socket");
    refused(&["--qmp", &qmp, "--node", "sda=top0"], 3, "put a raw node above it");
    refused(&["--qmp", &qmp, "--node", "sda=vm0", "--node", "sdb=vm0"], 3, "name each node once");
    refused(&["--qmp", &qmp, "--node", "sda"], 2, "NAME=NODE");
    refused(&["--qmp", &qmp, "--node", "sda=vm0", "--freeze", "agent"], 3, "a storage daemon has no guest");
    let held = std::os::unix::net::UnixStream::connect(&qmp).unwrap();
    refused_while_held(&house, &qmp);
    drop(held);
}

fn refused_while_held(house: &House, qmp: &str) {
    let run = house.run(["bitmap", "ls", "--qmp", qmp]);
    assert_eq!(run.code, Some(11), "{run:?}");
    assert!(run.sentence().contains("another program is connected"), "{run:?}");
}
