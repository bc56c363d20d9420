//! Dirty bitmaps that were exchanged or cleared, exchanged disks, and incomplete images.

use super::{Daemon, assert_holds, have_daemon, modes, words};
use crate::{disks::MIB, harness::House};
use serde_json::{Value, json};

fn backup(house: &House, daemon: &Daemon, more: &[&str]) -> Value {
    let more = more.iter().map(|word| (*word).to_owned()).collect();
    house.summary([words(daemon), more].concat())
}

/// Symptom: a bitmap that had been cleared, or removed and recreated under its name, was trusted, and the
/// guest's earlier writes were missing from the next snapshot.
/// Cause: QEMU does not report it, and a count of 0 bytes leaves no trace.
/// Fix: a bitmap begins with marks that a sentinel beside it knows; where no sentinel exists, spot checks
/// compare more data.
#[test]
fn a_cleared_or_recreated_bitmap_is_not_trusted() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, MIB);
    daemon.write(1, MIB, MIB);
    let mut newest = backup(&house, &daemon, &[]);
    let on = |daemon: &Daemon, command: &str, name: &str| {
        daemon.execute(command, json!({ "node": "vm0", "name": name }));
    };
    type Trick<'a> = &'a dyn Fn(&mut Daemon, &str, &str);
    let tricks: [(Trick<'_>, &str); 6] = [
        (&|daemon, name, _| on(daemon, "block-dirty-bitmap-clear", name), "lacks marks"),
        (
            &|daemon, name, _| {
                on(daemon, "block-dirty-bitmap-remove", name);
                let new = json!({ "node": "vm0", "name": name, "granularity": 65536, "persistent": true });
                daemon.execute("block-dirty-bitmap-add", new);
            },
            "lacks marks",
        ),
        (&|daemon, _, sentinel| on(daemon, "block-dirty-bitmap-remove", sentinel), "lost its sentinel"),
        (&|daemon, _, sentinel| on(daemon, "block-dirty-bitmap-clear", sentinel), "lost its sentinel"),
        (&|daemon, _, sentinel| on(daemon, "block-dirty-bitmap-enable", sentinel), "lost its sentinel"),
        (
            &|daemon, name, _| {
                on(daemon, "block-dirty-bitmap-disable", name);
                // More than one piece of a spot check: a mark of the bitmap may lie in one of them, which is
                // then not compared.
                daemon.write(0, 5 * MIB, 512 << 10);
                on(daemon, "block-dirty-bitmap-enable", name);
            },
            "a spot check found other bytes",
        ),
    ];
    for (trick, reason) in tricks {
        daemon.write(0, 3 * MIB, 8192);
        let name = newest["disks"][0]["bitmap"].as_str().unwrap().to_owned();
        trick(&mut daemon, &name, &format!("{name}-sentinel"));
        daemon.write(0, 9 * MIB, 4096);
        let more: &[&str] = match reason.starts_with("a spot") {
            true => &[],
            false => &["--spot-check", "0%"],
        };
        let made = backup(&house, &daemon, more);
        let [(mode, why), second] = &modes(&made)[..] else { panic!("{made}") };
        assert!(*mode == "rescan" && why.contains(reason), "{made}");
        assert_eq!(*second, ("incremental", ""), "{made}");
        assert_holds(&house, &made, &daemon.bytes);
        newest = made;
    }
    let made = backup(&house, &daemon, &["--strict-incremental"]);
    assert_holds(&house, &made, &daemon.bytes);
    house.good(["bitmap", "rm", "--qmp", &daemon.path("qmp.sock"), "--node", "vm0", "--all"]);
    assert_eq!(daemon.bitmaps("vm0").len(), 0);
}

/// Symptom: with a QEMU that was started with relative file names, the bitmap of another image was trusted,
/// and a truncated image was read as zeros.
/// Cause: only absolute names were checked.
/// Fix: relative names are resolved in the directory of the listening process.
#[test]
fn files_with_relative_names_are_looked_at() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut daemon = Daemon::start(&house);
    daemon.write(0, MIB, 8 * MIB);
    backup(&house, &daemon, &[]);
    let image = daemon.path("vm0.qcow2");
    daemon.stop();
    daemon.start_again();
    let kept = backup(&house, &daemon, &[]);
    assert_eq!(modes(&kept)[0], ("incremental", ""), "{kept}");
    // Another image in its place, with a bitmap and a sentinel of the same names.
    daemon.stop();
    std::fs::copy(&image, daemon.path("other")).unwrap();
    std::fs::rename(daemon.path("other"), &image).unwrap();
    daemon.start_again();
    let other = backup(&house, &daemon, &[]);
    let [(mode, why), _] = &modes(&other)[..] else { panic!("{other}") };
    assert!(*mode == "rescan" && why.contains("lies on another disk"), "{other}");
    assert_holds(&house, &other, &daemon.bytes);
    // Truncated below the running daemon.
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.set_len(4 * MIB).unwrap();
    let run = house.run(words(&daemon));
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.sentence().contains("vm0.qcow2"), "{run:?}");
    assert_eq!(daemon.nodes(), ["top0", "top1", "vm0", "vm1"]);
}
