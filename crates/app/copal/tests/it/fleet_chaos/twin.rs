//! A simple model of a fleet: days of images by snapshot.

use copal_testkit::Random;
use std::collections::{BTreeMap, BTreeSet};

const MIB: usize = 1 << 20;
/// Size of the content of all VMs, of each VM alone, and of the changes.
const COMMON: usize = 3 * MIB;
const OWN: usize = MIB;
const CHANGING: usize = 60_000;
const SIZE: usize = 6 * MIB;
/// A chunk has at most 64 KiB, and crosses each border.
const OF_A_BORDER: usize = 2 * 64 * 1024;

/// The image of a VM on a day; its first bytes hold the day.
pub(super) fn image(vm: u64, day: u64) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    Random::new(1).fill(&mut bytes[..COMMON]);
    Random::new(100 + vm).fill(&mut bytes[COMMON..COMMON + OWN]);
    Random::new(1000 * day + vm).fill(&mut bytes[OF_A_BORDER..OF_A_BORDER + CHANGING]);
    bytes[OF_A_BORDER..OF_A_BORDER + 8].copy_from_slice(&day.to_le_bytes());
    bytes
}

pub(super) fn day_of(image: &[u8]) -> u64 {
    let day = image[OF_A_BORDER..OF_A_BORDER + 8].try_into();
    u64::from_le_bytes(day.unwrap())
}

/// Most bytes of the images of these days, if a VM shares nothing with others.
pub(super) fn unique_bytes(days: &BTreeSet<u64>) -> u64 {
    (COMMON + OWN + OF_A_BORDER + days.len() * (CHANGING + OF_A_BORDER)) as u64
}

#[derive(Default)]
pub(super) struct Twin {
    /// Snapshots by VM that must exist, and their day once it is known.
    published: BTreeMap<(String, String), Option<u64>>,
    /// Snapshots in the order in which they became known.
    heard: Vec<String>,
    may_go: BTreeSet<String>,
    gone: BTreeSet<String>,
}

impl Twin {
    pub(super) fn published(&mut self, vm: &str, snapshot: &str) {
        if !self.gone.contains(snapshot) {
            let known = self.published.entry((vm.to_owned(), snapshot.to_owned()));
            known.or_insert(None);
        }
        if !self.heard.iter().any(|heard| heard == snapshot) {
            self.heard.push(snapshot.to_owned());
        }
    }

    pub(super) fn may_go(&mut self, snapshot: &str) {
        self.may_go.insert(snapshot.to_owned());
    }

    pub(super) fn gone(&mut self, snapshot: &str) {
        self.gone.insert(snapshot.to_owned());
        self.published.retain(|(_, published), _| published != snapshot);
    }

    /// Checks a list: it holds all required snapshots, no deleted one, and possibly others that were
    /// published meanwhile.
    pub(super) fn compare(&mut self, vm: u64, listed: &[String]) {
        let vm = format!("vm{vm}");
        for (of, snapshot) in self.published.keys() {
            let is_there = of != &vm || listed.contains(snapshot) || self.may_go.contains(snapshot);
            assert!(is_there, "{snapshot} of {vm} is lost: {listed:?}");
        }
        for snapshot in listed {
            assert!(!self.gone.contains(snapshot), "{snapshot} of {vm} was forgotten, and is back");
            self.published(&vm, snapshot);
        }
    }

    pub(super) fn is_new(&self, snapshot: &str) -> bool {
        let mut known = self.published.iter();
        known.any(|((_, published), day)| published == snapshot && day.is_none())
    }

    pub(super) fn seen(&mut self, vm: u64, snapshot: &str, day: u64) {
        let key = (format!("vm{vm}"), snapshot.to_owned());
        let known = self.published.entry(key).or_default();
        assert!(known.is_none_or(|known| known == day), "vm{vm} {snapshot} was of {known:?}, is of {day}");
        *known = Some(day);
    }

    /// Days of which a VM has snapshots.
    pub(super) fn days(&self, vm: u64) -> BTreeSet<u64> {
        let name = format!("vm{vm}");
        let of_vm = self.published.iter().filter(|((of, _), _)| *of == name);
        of_vm.filter_map(|(_, day)| *day).collect()
    }

    /// A snapshot of a VM that is not its newest.
    pub(super) fn any_but_newest(&self, vm: u64, random: &mut Random) -> Option<String> {
        let name = format!("vm{vm}");
        let has = |snapshot: &&String| self.published.contains_key(&(name.clone(), (*snapshot).clone()));
        let of_vm: Vec<&String> = self.heard.iter().filter(has).collect();
        let (_, others) = of_vm.split_last()?;
        match others.len() {
            0 => None,
            count => Some(others[random.index(count)].clone()),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.heard.len()
    }
}
