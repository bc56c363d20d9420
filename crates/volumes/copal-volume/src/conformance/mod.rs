//! Conformance suite of every [`VolumeStore`], which each implementation runs on itself.
//!
//! Covers the promises that the backup layer builds on:
//! - exclusive creates with one winner (VOL-2), whole or absent files, deletes conditional on the file id;
//! - ranged reads, and lists in name order under concurrent operations (VOL-8);
//! - strict reads and lists that see every acknowledged create and delete;
//! - creation times stamped by the store;
//! - volumes that are moved and removed as a whole;
//! - a seeded random history, compared step by step with [`MemoryStore`](crate::MemoryStore).
//!
//! A case panics with a sentence when the store breaks a promise. Each case gets a fresh store.
//! Not here: durability and damage, which need the store's own device (see each store's tests).

mod batch;
#[cfg(test)]
mod broken;
mod concurrent;
mod files;
mod listing;
mod random;
mod random_model;
mod ranges;
mod streams;
mod volumes;

use crate::ids::VolumeId;
use crate::store::{VolumeOptions, VolumeStore};
use bytes::Bytes;
use random::Random;
pub use random_model::{Subject, random_history};

/// Makes a fresh, empty store for one case.
pub type Make<'a> = &'a dyn Fn() -> Box<dyn VolumeStore>;

/// Description of a promise, and the function that checks it on a store.
pub type Case = (&'static str, fn(&dyn VolumeStore));

/// All cases, for implementations that run or report them one by one.
pub const CASES: &[Case] = &[
    ("a file comes back as it was put", files::round_trip),
    ("a create is exclusive", files::exclusive),
    ("a delete names a file id", files::conditional_delete),
    ("ranged reads stop at the end", files::ranges),
    ("many ranges are answered as one by one", ranges::as_one_by_one),
    ("a sink ends a read of many ranges", ranges::sink_ends),
    ("many ranges of no file have no answer", ranges::no_file),
    ("the last bytes of many files are those of each", ranges::tails),
    ("if_file reads only that file", files::if_file),
    ("creation times never go back", files::creation_times),
    ("bad names and sizes are refused", files::refusals),
    ("settle returns the final outcome", files::settle),
    ("files of several pieces", files::large),
    ("list is bytewise with prefix, after and limit", listing::pages),
    ("stats count live files", listing::stats),
    ("a writer is visible only at commit", streams::visible_at_commit),
    ("a dropped writer leaves nothing", streams::dropped),
    ("two writers of a name have one winner", streams::two_writers),
    ("a written file is complete at every size", streams::sizes),
    ("batches answer item by item", batch::item_by_item),
    ("batches are bounded", batch::bounded),
    ("quotas refuse before anything is written", batch::quotas),
    ("volumes form a tree", volumes::tree),
    ("a renamed volume keeps its id and files", volumes::rename),
    ("a volume is removed completely or not at all", volumes::remove),
    ("volume ids are never used twice", volumes::ids),
    ("one winner among racing creators", concurrent::one_winner),
    ("acknowledged creates are seen by all", concurrent::strict_reads),
    ("a strict list shows what is acknowledged and nothing that is gone", concurrent::strict_lists),
    ("list is exact under concurrent changes", concurrent::list_under_changes),
    ("creators racing with a removal", concurrent::remove_race),
    ("a random history equals the twin's", random_model::equals_twin),
];

/// Runs every case on a fresh store of its own; panics at the first broken promise.
pub fn run(make: Make<'_>) {
    for (name, case) in CASES {
        let store = make();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(&*store)));
        assert!(outcome.is_ok(), "conformance case failed: {name}");
    }
}

/// A volume of the given name below the root.
fn volume(store: &dyn VolumeStore, name: &str) -> VolumeId {
    store.create_volume("", name, &VolumeOptions::default()).expect("create a volume")
}

/// `len` bytes that differ from those of any other seed.
fn body(seed: u64, len: usize) -> Bytes {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    Bytes::from(bytes)
}
