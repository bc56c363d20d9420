//! Probes of disks of known kind, on demand: `COPAL_PROBE_DISKS=1`, as root, with
//! `--test-threads 1`. Each takes up to 30 seconds.
//!
//! The disks are loop devices over a file that is written beforehand, so that the figures are those of written
//! space, and a disk in compressed memory. Limits come from the controller of block devices. A disk that is not
//! to be had here is skipped, and the reason is printed.

#![expect(clippy::print_stderr, reason = "figures and reasons of skipped disks are the result")]

use crate::{
    disks::MIB,
    harness::{House, Running},
};
use serde_json::Value;
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

fn is_wanted() -> bool {
    let wanted = std::env::var_os("COPAL_PROBE_DISKS").is_some();
    if !wanted {
        eprintln!("skipped: give COPAL_PROBE_DISKS=1 and run as root");
    }
    wanted
}

/// A loop device with direct I/O over a written file.
struct WrittenLoop(PathBuf);

impl WrittenLoop {
    fn attach(house: &House) -> Option<WrittenLoop> {
        let path = house.path("disk");
        let mut file = File::create(&path).unwrap();
        let part = vec![0x5a; MIB as usize];
        (0..512).for_each(|_| file.write_all(&part).unwrap());
        file.sync_all().unwrap();
        let made = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&path).output();
        match made {
            Ok(made) if made.status.success() => {
                Some(WrittenLoop(PathBuf::from(String::from_utf8(made.stdout).unwrap().trim())))
            }
            refused => {
                eprintln!("skipped: no loop device with direct I/O: {refused:?}");
                None
            }
        }
    }

    fn word(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Major and minor number, as the controller names the device.
    fn numbers(&self) -> String {
        let name = self.0.file_name().unwrap().to_str().unwrap();
        std::fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap().trim().to_owned()
    }
}

impl Drop for WrittenLoop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A group of processes with a limit for one device.
struct LimitedGroup {
    path: PathBuf,
    is_second: bool,
}

impl LimitedGroup {
    fn make(name: &str) -> Option<LimitedGroup> {
        let is_second = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let parent = if is_second { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/blkio" };
        let path = Path::new(parent).join(format!("copal-probe-{name}-{}", std::process::id()));
        if let Err(error) = std::fs::create_dir(&path) {
            eprintln!("skipped: no group of processes: {error}");
            return None;
        }
        Some(LimitedGroup { path, is_second })
    }

    /// Limits reads and writes each: `iops` commands or `bps` bytes a second.
    fn limit(&self, numbers: &str, kind: &str, value: u64) {
        if self.is_second {
            let line = format!("{numbers} r{kind}={value} w{kind}={value}");
            return std::fs::write(self.path.join("io.max"), line).unwrap();
        }
        for side in ["read", "write"] {
            let file = self.path.join(format!("blkio.throttle.{side}_{kind}_device"));
            std::fs::write(file, format!("{numbers} {value}")).unwrap();
        }
    }

    /// The same command, run by a shell that enters the group first.
    fn enter(&self, command: &Command) -> Command {
        let mut within = Command::new("sh");
        within.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(self.path.join("cgroup.procs"));
        within.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => within.env(name, value),
                None => within.env_remove(name),
            };
        }
        within
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Probes a device, in a group if there is one; prints and returns the figures.
fn probe(house: &House, name: &str, device: &str, group: Option<&LimitedGroup>) -> Value {
    let mut command = house.command(["--json", "device", "probe", device, "--force"]);
    if let Some(group) = group {
        command = group.enter(&command);
    }
    let run = crate::harness::Run::of(command.output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    let found = run.summary();
    eprintln!("{name}: {found}");
    found
}

#[test]
fn a_plain_loop_device_gets_free_pages() {
    if !is_wanted() {
        return;
    }
    let house = House::empty();
    let Some(disk) = WrittenLoop::attach(&house) else { return };
    let found = probe(&house, "loop", disk.word(), None);
    assert_eq!((&found["backend"], &found["rmw_ratio"]), (&"cow".into(), &1.0.into()), "no cliff");
}

#[test]
fn a_disk_in_memory_gets_free_pages() {
    if !is_wanted() {
        return;
    }
    let Ok(number) = std::fs::read_to_string("/sys/class/zram-control/hot_add") else {
        return eprintln!("skipped: no zram here");
    };
    let number = number.trim();
    let outcome = std::panic::catch_unwind(|| {
        if let Err(error) = std::fs::write(format!("/sys/block/zram{number}/disksize"), "256M") {
            return eprintln!("skipped: no disk in memory: {error}");
        }
        let house = House::empty();
        let found = probe(&house, "zram", &format!("/dev/zram{number}"), None);
        assert_eq!((&found["backend"], &found["rmw_ratio"]), (&"cow".into(), &1.0.into()), "no cliff");
    });
    let _ = std::fs::write(format!("/sys/block/zram{number}/reset"), "1");
    let _ = std::fs::write("/sys/class/zram-control/hot_remove", number);
    outcome.unwrap();
}

#[test]
fn limits_of_commands_and_bytes_are_told_apart() {
    if !is_wanted() {
        return;
    }
    let house = House::empty();
    let Some(disk) = WrittenLoop::attach(&house) else { return };
    for (kind, value, backend) in [("iops", 120, "log"), ("bps", 10 << 20, "cow")] {
        let Some(group) = LimitedGroup::make(kind) else { return };
        group.limit(&disk.numbers(), kind, value);
        let found = probe(&house, kind, disk.word(), Some(&group));
        assert_eq!(found["backend"], backend, "{found}");
        if kind == "iops" {
            assert_eq!((&found["read_knee"], &found["write_knee"]), (&1.into(), &1.into()), "{found}");
            for rate in ["read_iops", "write_iops"] {
                assert!((100..=140).contains(&found[rate].as_u64().unwrap()), "{rate}: {found}");
            }
            assert!(found["gap_bytes"].as_u64().unwrap() >= MIB / 8, "{found}");
        }
    }
}

#[test]
fn a_limit_that_begins_half_way_lowers_the_confidence() {
    if !is_wanted() {
        return;
    }
    let house = House::empty();
    let Some(disk) = WrittenLoop::attach(&house) else { return };
    let Some(group) = LimitedGroup::make("half") else { return };
    let command = house.command(["--json", "device", "probe", disk.word(), "--force"]);
    let mut running = Running::of(group.enter(&command));
    while running.wait_for("status")["number"] != 4 {}
    std::thread::park_timeout(Duration::from_millis(100));
    group.limit(&disk.numbers(), "iops", 120);
    let found = running.wait_for("summary");
    eprintln!("half way: {found}");
    assert_eq!(found["confidence"], "low");
    assert_eq!(running.end().code, Some(0));
}
