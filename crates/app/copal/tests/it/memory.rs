//! The memory limit: peak memory by the kernel's count, at a size where nothing fits into memory.

use crate::{
    disks::Random,
    elsewhere::{self, Bucket},
    harness::{House, Run, id},
};
use copal_testkit::{MemoryCap, NetworkFault};
use serde_json::Value;
use std::{
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    process::Command,
    time::Duration,
};

const CEILING: u64 = 100_000_000;

fn peak(summary: &Value) -> u64 {
    let peak = summary["peak_memory_bytes"].as_u64().unwrap();
    assert!(peak > 1_000_000, "not measured: {summary}");
    peak
}

#[test]
fn a_disk_of_100_gb_takes_less_than_100_mb_of_memory() {
    let house = House::encrypted();
    let image = house.path("disk.raw");
    let file = File::options().read(true).write(true).create_new(true).open(&image).unwrap();
    file.set_len(100_000_000_000).unwrap();
    let mut random = Random::new(70);
    let places: Vec<u64> = (0..160).map(|_| random.below(99_000_000_000) / 4096 * 4096).collect();
    for at in &places {
        file.write_all_at(&random.bytes(1 << 20), *at).unwrap();
    }
    let backup = house.backup("big", &image);
    let again = house.backup("big", &image);
    assert_eq!(again["counts"]["new_bytes"], 0);
    let other = house.word("other");
    house.good(["init", "--repo", &other]);
    let copy = house.summary(["copy", "--all", "--to", &other]);
    assert_eq!((&copy["copied"], &copy["failed"]), (&2.into(), &0.into()), "{copy}");
    let target = house.word("out");
    let restore = house.summary(["restore", &id(&backup), "--target", &target]);
    let restored = File::open(&target).unwrap();
    assert_eq!(restored.metadata().unwrap().len(), 100_000_000_000);
    assert!(restored.metadata().unwrap().blocks() <= file.metadata().unwrap().blocks() + 1024);
    let (mut want, mut have) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for at in &places {
        file.read_exact_at(&mut want, *at).unwrap();
        restored.read_exact_at(&mut have, *at).unwrap();
        assert!(want == have, "the restored disk differs at {at}");
    }
    let forget = house.summary(["forget", &id(&backup)]);
    let prune = house.summary(["prune"]);
    let check = house.summary(["check", "--read-data"]);
    let all = [&backup, &again, &copy, &restore, &forget, &prune, &check].map(peak);
    assert!(
        all.iter().all(|peak| *peak <= CEILING),
        "backup, again, copy, restore, forget, prune, check: {all:?}"
    );
}

/// More threads than this machine has processors, under a limit of the kernel. The kernel counts page cache, too, but not
/// the code of this binary that it can drop: without optimisation that is tens of megabytes more than in a release.
#[test]
fn sixteen_threads_take_less_than_100_mb_of_memory() {
    let house = House::encrypted();
    commands_of_a_disk(&house, 96, &["repair", "index"], |words| house.command(words));
}

/// The same over an object store, whose requests and answers are held in memory.
#[test]
fn sixteen_threads_over_an_object_store_take_less_than_100_mb_of_memory() {
    let bucket = Bucket::new();
    let host = bucket.host();
    elsewhere::good(&host, &["init"]);
    // Packs wait for a distant store.
    bucket.server.set_faults(|request| match request.method.as_str() {
        "PUT" | "GET" => NetworkFault::Delay(Duration::from_millis(50)),
        _ => NetworkFault::None,
    });
    commands_of_a_disk(&host, 64, &["snapshots"], |words| elsewhere::command(&host, words));
}

/// Runs the commands that read or write a whole disk, each below the ceiling.
#[expect(clippy::print_stderr, reason = "a skipped check has to say so")]
fn commands_of_a_disk(house: &House, mib: u64, last: &[&str], command: impl Fn(&[&str]) -> Command) {
    let image = house.path("disk.raw");
    let (mut random, file) = (Random::new(71), File::create(&image).unwrap());
    let text: Vec<u8> = (0..1 << 20).map(|at| (at / 7 % 251) as u8).collect();
    for part in 0..mib {
        let bytes = if part % 3 == 0 { text.clone() } else { random.bytes(1 << 20) };
        file.write_all_at(&bytes, part << 20).unwrap();
    }
    let cap = MemoryCap::new(CEILING);
    if cap.is_none() {
        assert!(std::env::var_os("COPAL_TEST_REQUIRE_MEMCG").is_none(), "no memory cgroup can be made here");
        eprintln!(
            "SKIPPED the kernel's limit: no memory cgroup can be made here; the peak is looked at instead"
        );
    }
    let run = |words: &[&str]| {
        let mut command = command(&[&["--json"], words].concat());
        command.env("COPAL_THREADS", "16");
        let output = match &cap {
            Some(cap) => cap.around(&command).output(),
            None => command.output(),
        };
        let run = Run::of(output.unwrap());
        assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
        let summary = run.summary();
        assert!(cap.is_some() || peak(&summary) <= CEILING, "{words:?}: {summary}");
        summary
    };
    let (disk, target) = (image.to_str().unwrap(), house.word("out"));
    let first = id(&run(&["backup", "--vm", "web", disk]));
    file.write_all_at(&random.bytes(8 << 20), 5 << 20).unwrap();
    let second = id(&run(&["backup", "--vm", "web", disk]));
    run(&["backup", "--vm", "web", "--full", disk]);
    run(&["verify", &second]);
    run(&["restore", &second, "--target", &target]);
    run(&["forget", &first]);
    run(&["prune"]);
    run(&["check", "--read-data"]);
    run(last);
}
