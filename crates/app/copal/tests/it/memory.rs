//! The memory limit: peak memory by the kernel's count, at a size where nothing fits into memory.

use crate::{
    disks::Random,
    harness::{House, id},
};
use std::{
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
};

const CEILING: u64 = 100_000_000;

fn peak(summary: &serde_json::Value) -> u64 {
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
    let all = [&backup, &again, &restore, &forget, &prune, &check].map(peak);
    assert!(all.iter().all(|peak| *peak <= CEILING), "backup, again, restore, forget, prune, check: {all:?}");
}
