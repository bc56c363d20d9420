//! Images that change while they are read.

use crate::{
    disks::{Disk, MIB},
    harness::{House, Run, Running},
    loop_device::LoopDevice,
    qemu::{have_qemu, tool},
};
use std::{fs::File, io::Write, os::unix::fs::FileExt, path::Path, process::Command};

/// Backs up a pipe and then `image`; `change` runs when the image is open and still unread.
fn backup_while(house: &House, image: &Path, change: impl FnOnce()) -> Run {
    let image = format!("sdb={}", image.display());
    let words = ["backup", "--vm", "web", "--disk", "sda=-", "--disk", &image];
    let mut backup = Running::start(house, words);
    let pipe = backup.child.stdin.as_mut().unwrap();
    pipe.write_all(&[5; 1 << 20]).unwrap();
    backup.wait_for("status");
    change();
    backup.end()
}

/// Symptom: a sparse image that was truncated during the read was backed up with exit code 0 and zeros for
/// the rest, and `verify` agreed. An image that grew or was replaced made a snapshot, too.
/// Cause: the end of a file's data was taken for a hole up to the file's former size, without a further
/// check.
/// Fix: size and name are checked where a hole reaches the end, and again after the read.
#[test]
fn an_image_that_is_cut_grown_or_replaced_while_it_is_read_makes_no_snapshot() {
    let house = House::plain();
    let image = house.path("disk.raw");
    let make = || {
        let file = File::create(&image).unwrap();
        file.write_all_at(&[7; 100_000], 0).unwrap();
        file.set_len(64 * MIB).unwrap();
        file
    };
    for how in ["cut", "grown", "replaced", "removed"] {
        let file = make();
        let run = backup_while(&house, &image, || match how {
            "cut" => file.set_len(8 * MIB).unwrap(),
            "grown" => file.set_len(65 * MIB).unwrap(),
            "replaced" => {
                let other = house.path("other.raw");
                std::fs::copy(&image, &other).unwrap();
                std::fs::rename(&other, &image).unwrap();
            }
            _ => std::fs::remove_file(&image).unwrap(),
        });
        assert_eq!(run.code, Some(3), "{how}: {run:?}");
        assert!(run.sentence().contains("while it was read, so no snapshot was made"), "{run:?}");
        assert!(house.snapshots().is_empty(), "{how}");
    }
    let _file = make();
    let run = backup_while(&house, &image, || ());
    assert_eq!(run.summary()["warnings"], serde_json::json!([]), "{run:?}");
    house.check();
}

/// Symptom: a qcow2 image was backed up with exit code 0 and zeros for the rest when its raw backing file, or
/// a file of the chain, was truncated during the read. After an exchange of a file, the snapshot held content
/// that no longer existed.
/// Cause: QEMU reads zeros beyond the end of a file, and only the named image was checked, by the size in its
/// header.
/// Fix: size, name and times of every file of the chain are checked before and after.
#[test]
fn no_file_of_a_qcow2_chain_may_be_cut_grown_or_replaced_while_it_is_read() {
    if !have_qemu() {
        return;
    }
    let house = House::plain();
    let (base, mid, top) = (house.path("base.raw"), house.path("mid.qcow2"), house.path("top.qcow2"));
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let make = || {
        Disk::create(&base, 8 * MIB, 131);
        let behind = |format: &str, from: &Path, to: &Path| {
            let _ = std::fs::remove_file(to);
            tool("qemu-img", &["create", "-q", "-f", "qcow2", "-F", format, "-b", &name(from), &name(to)]);
            tool("qemu-io", &["-f", "qcow2", "-c", "write -q -P 3 1M 2M", &name(to)]);
        };
        behind("raw", &base, &mid);
        behind("qcow2", &mid, &top);
    };
    for (file, how) in [
        (&base, "cut"),
        (&base, "grown"),
        (&base, "replaced"),
        (&base, "removed"),
        (&mid, "cut"),
        (&mid, "replaced"),
        (&top, "cut"),
    ] {
        make();
        let resize = |bytes: u64| File::options().write(true).open(file).unwrap().set_len(bytes).unwrap();
        let run = backup_while(&house, &top, || match how {
            "cut" => resize(MIB),
            "grown" => resize(9 * MIB),
            "replaced" => {
                let other = house.path("other");
                std::fs::copy(file, &other).unwrap();
                std::fs::rename(&other, file).unwrap();
            }
            _ => std::fs::remove_file(file).unwrap(),
        });
        assert_eq!(run.code, Some(3), "{file:?} {how}: {run:?}");
        let words = run.sentence();
        assert!(
            words.contains("while it was read, so no snapshot was made") && words.contains(&name(file)),
            "{file:?} {how}: {words}"
        );
        assert!(house.snapshots().is_empty(), "{file:?} {how}");
    }
    make();
    let run = backup_while(&house, &top, || {
        let file = File::options().write(true).open(&base).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    });
    let warnings = run.summary()["warnings"].to_string();
    assert!(warnings.contains("base.raw was written while it was read"), "{warnings}");
    let run = backup_while(&house, &top, || ());
    assert_eq!(run.summary()["warnings"], serde_json::json!([]), "{run:?}");
    house.check();
}

/// Symptom: no message about an image that was written during the read.
/// Cause: there was no check. Fix: a change of the file's times is a warning, and so is a mounted device.
#[test]
fn an_image_that_is_written_while_it_is_read_is_said() {
    let house = House::plain();
    let image = house.path("disk.raw");
    Disk::create(&image, MIB, 130);
    let run = backup_while(&house, &image, || {
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(b"x", 5).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    });
    assert_eq!(run.code, Some(0), "{run:?}");
    let warnings = run.summary()["warnings"].to_string();
    assert!(warnings.contains("was written while it was read"), "{warnings}");
    let errors = run.lines().into_iter().filter(|line| line["message_type"] == "error");
    assert_eq!(errors.count(), 1, "{run:?}");
}

/// As above. A device that was mounted read-only changes nothing.
#[test]
fn a_device_that_is_mounted_is_said() {
    let house = House::plain();
    let Some(device) = LoopDevice::attach(&house.path("device"), 16 * MIB) else {
        return;
    };
    let run = |program: &str, words: &[&Path]| {
        let output = Command::new(program).args(words).output().unwrap();
        assert!(output.status.success(), "{program} {words:?}: {output:?}");
    };
    let point = house.path("mounted here");
    std::fs::create_dir(&point).unwrap();
    run("mkfs.ext4", &[Path::new("-q"), &device.path]);
    let warnings = || house.backup("web", &device.path)["warnings"].to_string();
    assert_eq!(warnings(), "[]");
    run("mount", &[&device.path, &point]);
    let said = warnings();
    run("mount", &[Path::new("-oremount,ro"), &point]);
    let silent = warnings();
    run("umount", &[&point]);
    assert!(said.contains("is mounted on") && said.contains("mounted here"), "{said}");
    assert_eq!(silent, "[]");
}
