//! One flipped bit anywhere in the store file: repaired, reported, or in space that holds nothing.
//! Never a wrong restore, never a panic.
//!
//! `COPAL_FLIP_SAMPLES` sets how many bytes are tried (default 40), `all` tries every byte of every
//! block that is not zero.

use crate::{
    disks::{Disk, MIB, Random, assert_restored},
    harness::{House, Run, id},
};
use std::{fs::OpenOptions, os::unix::fs::FileExt};

const BLOCK: usize = 4096;

/// Offsets to try: all, or random ones in blocks that hold something.
fn places(store: &[u8], random: &mut Random) -> Vec<u64> {
    let used: Vec<u64> = (0u64..)
        .zip(store.chunks(BLOCK))
        .filter(|(_, block)| block.iter().any(|byte| *byte != 0))
        .map(|(at, _)| at * BLOCK as u64)
        .collect();
    let asked = std::env::var("COPAL_FLIP_SAMPLES").unwrap_or_default();
    if asked == "all" {
        return used
            .iter()
            .flat_map(|block| *block..block + BLOCK as u64)
            .collect();
    }
    let count = asked.parse().unwrap_or(40);
    (0..count)
        .map(|_| used[random.below(used.len() as u64) as usize] + random.below(BLOCK as u64))
        .collect()
}

#[test]
fn one_flipped_bit_is_never_served() {
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 3 * MIB, 80);
    let mut truth = Vec::new();
    for _ in 0..2 {
        truth.push((
            id(&house.backup("web", &house.path("disk.raw"))),
            disk.bytes.clone(),
        ));
        disk.mutate(6);
    }
    let pristine = std::fs::read(house.store()).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(house.store())
        .unwrap();
    let mut random = Random(81);
    let (mut reported, mut harmless) = (0, 0);
    for at in places(&pristine, &mut random) {
        let original = pristine[at as usize];
        file.write_all_at(&[original ^ (1 << random.below(8))], at)
            .unwrap();
        let check = Run::of(
            house
                .command(["--json", "check", "--read-data"])
                .output()
                .unwrap(),
        );
        let last = check.lines().pop().unwrap();
        match check.code {
            Some(0) => harmless += 1,
            Some(_) => {
                reported += 1;
                assert_eq!(last["message_type"], "exit_error", "byte {at}: {check:?}");
            }
            None => panic!("byte {at}: killed: {check:?}"),
        }
        for (snapshot, bytes) in &truth {
            let target = house.path("out");
            let restore = house.run(["restore", snapshot, "--target", target.to_str().unwrap()]);
            match restore.code {
                Some(0) => assert_restored(&target, bytes),
                Some(code) => {
                    assert_ne!(
                        check.code,
                        Some(0),
                        "byte {at}: check is clean, restore fails: {restore:?}"
                    );
                    assert!(
                        restore.sentence().len() > 10 && code != 101,
                        "byte {at}: {restore:?}"
                    );
                    assert!(!target.exists(), "byte {at}: a failed restore left a file");
                }
                None => panic!("byte {at}: killed: {restore:?}"),
            }
            let _ = std::fs::remove_file(target);
        }
        file.write_all_at(&[original], at).unwrap();
    }
    assert!(
        reported > harmless / 4,
        "{reported} reported, {harmless} harmless: the test tests nothing"
    );
    assert!(
        std::fs::read(house.store()).unwrap() == pristine,
        "a reader changed the store"
    );
    house.check();
}
