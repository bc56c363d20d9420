//! Each rule with a test and its negative control.
//!
//! Symptom: seven lines could be removed from this crate and no test failed. Among them were the comparison
//! of a chunk with its id, and the check that keeps a pack whose frames cannot be copied. Cause: the tests
//! covered only the good cases. Fix: a test of each rule, with the rule broken beside it.

use super::{Flaw, with};
use crate::catalog::fold::{LogEntry, LogState};
use crate::catalog::record::Record;
use crate::catalog::vm::VmState;
use crate::delete::mark::{FrameMarks, PackSlice};
use crate::index::reindex::{PackScope, for_each_pack};
use crate::keys::DomainKeys;
use crate::keys::key_slot::{self, HashCost};
use crate::packs::home::{PackHome, PackKind};
use crate::packs::pack::PackNumber;
use crate::packs::pack::format::PackHeader;
use crate::packs::pack::writer::{FrameInput, PackWriter};
use crate::request::*;
use crate::snapshot::fetch::{ChunkFetcher, ChunkTaker, WantedChunk};
use crate::snapshot::manifest::Manifest;
use crate::snapshot::recipe::{FrameRef, SegmentRecipe};
use crate::snapshot::tree::TreeReader;
use crate::world::*;
use crate::{CancelFlag, Error, Repository, Result, Silent};
use copal_codec::{ENVELOPE_LEN, Envelope, Put};
use copal_volume::{MemoryStore, PutOptions, VolumeOptions, VolumeStore};
use parking_lot::Mutex;

/// Asserts that the rule holds, and that it does not hold with the flaw.
fn control(flaw: &'static [Flaw], holds: impl Fn() -> bool) {
    assert!(holds(), "{flaw:?}: the rule does not hold");
    assert!(!with(flaw, &holds), "{flaw:?}: the flaw is not noticed");
}

fn text_disk(seed: u64, size: usize) -> Disk {
    let mut disk = Disk::new(size);
    Random::new(seed).text(&mut disk.bytes);
    disk
}

fn manifests(repository: &Repository, summary: &BackupSummary) -> Vec<Manifest> {
    let state = repository.parts().vm_state(summary.vm.uuid).unwrap();
    let published = state.published.iter();
    published.map(|published| repository.parts().manifest(summary.vm.uuid, published).unwrap()).collect()
}

fn full(repository: &Repository, disk: &Disk) -> BackupSummary {
    let mut request = request("web", disk, false);
    request.full = true;
    repository.backup(request, &Silent, &CancelFlag::new()).unwrap()
}

/// The page and the first segment of a disk, and the segment's recipe.
fn first_segment(repository: &Repository, manifest: &Manifest) -> (FrameRef, FrameRef, SegmentRecipe) {
    let mut tree = TreeReader::new(repository.parts().pack_store(), manifest.vm).unwrap();
    let disk = &manifest.disks[0];
    let root = tree.root(&disk.root, disk.size_bytes).unwrap();
    let page = root.pages[0].unwrap();
    let segment = tree.page(Some(&page), disk.size_bytes, 0).unwrap().segments[0].unwrap();
    let recipe = tree.segment(&segment, disk.size_bytes, 0).unwrap();
    (page, segment, recipe)
}

#[test]
fn the_mark_treats_recipes_of_one_name_at_two_locations_as_two() {
    let repository = init(&MemoryStore::new());
    let disk = text_disk(1, 6 << 20);
    let first = back_up(&repository, "web", &disk, false);
    full(&repository, &disk);
    let manifests = manifests(&repository, &first);
    let places: Vec<_> = manifests.iter().map(|manifest| first_segment(&repository, manifest)).collect();
    let ((page, segment, _), (page_again, segment_again, _)) = (&places[0], &places[1]);
    assert_eq!((page.id, segment.id), (page_again.id, segment_again.id));
    assert!(page.location != page_again.location && segment.location != segment_again.location);
    let pack_store = repository.parts().pack_store();
    let mut present = Vec::new();
    for_each_pack(pack_store, PackScope::All, |pack| {
        present.push(pack.number);
        Ok(())
    })
    .unwrap();
    present.sort_unstable();
    control(&[Flaw::MarkByName], || {
        let mut marks = FrameMarks::new(pack_store, &present, PackSlice { index: 0, of: 1 }, None).unwrap();
        marks.vm(&manifests, &Silent, &CancelFlag::new()).unwrap();
        [page, segment, page_again, segment_again]
            .iter()
            .all(|named| marks.is_live(named.location.pack, named.location.slot))
    });
}

#[test]
fn a_slot_whose_password_hash_is_too_expensive_is_refused_unopened() {
    let cost = |memory_kib, passes, lanes| HashCost { memory_kib, passes, lanes };
    for expensive in [cost(u32::MAX, 1, 1), cost((1 << 20) + 1, 1, 1), cost(64, 65, 1), cost(64, 1, 17)] {
        let mut bytes = vec![0; ENVELOPE_LEN];
        bytes.put_u8(1);
        bytes.put_zeros(3);
        bytes.put_u32(expensive.memory_kib);
        bytes.put_u32(expensive.passes);
        bytes.put_u32(expensive.lanes);
        bytes.put_zeros(16 + 16 + 32 + 16);
        Envelope::seal(&key_slot::FORMAT, 0, 0, &mut bytes);
        control(&[Flaw::UnboundedCost], || key_slot::decode(&bytes).is_err());
    }
}

#[test]
fn a_publish_record_of_a_fenced_session_is_ignored() {
    let session = [7; 16];
    let records = [
        Record::Open { session, base: None },
        Record::Fence { session },
        Record::Publish {
            session,
            snapshot: SnapshotId([1; 16]),
            sequence: 0,
            manifest: [0; 32],
            clock_ms: None,
            is_dated: false,
        },
    ];
    let entries: Vec<LogEntry> = records
        .into_iter()
        .zip(0..)
        .map(|(record, number)| LogEntry { number, created_ms: number, record })
        .collect();
    control(&[Flaw::FencedPublishes], || {
        let mut state = VmState::default();
        entries.iter().for_each(|entry| state.apply(entry));
        state.published.is_empty() && state.next_sequence == 0
    });
}

#[test]
fn a_frame_changed_by_bad_memory_is_not_written() {
    let append = || {
        let store = MemoryStore::new();
        let vid = store.create_volume("", "v", &VolumeOptions::default()).unwrap();
        let header =
            PackHeader { domain: [1; 16], pack_id: [2; 16], session: [3; 16], kind: PackKind::Shared };
        let name = PackNumber::of(&header.pack_id).file_name();
        let file = store.writer(vid, name.as_bytes(), &PutOptions::default()).unwrap();
        let key = DomainKeys::derive(&[4; 32]).pack_key(&header.pack_id);
        let mut pack =
            PackWriter::start(file, &key, header, (PackHome::Shared, 0), &std::sync::Arc::default()).unwrap();
        pack.append(&FrameInput { id: [5; 16], raw_bytes: 5, flags: 0, payload: b"chunk" })
    };
    assert!(append().is_ok());
    assert!(matches!(with(&[Flaw::BadMemory], append), Err(Error::SelfCheck)));
    // The control: without the check the frame is written.
    assert!(with(&[Flaw::BadMemory, Flaw::NoSelfCheck], append).is_ok());
}

#[test]
fn a_pack_whose_live_frames_cannot_be_copied_stays() {
    control(&[Flaw::UnlinksUncopied], || {
        let store = MemoryStore::new();
        let disk = text_disk(2, 6 << 20);
        let mut changed = disk.clone();
        Random::new(3).text(&mut changed.bytes[..3 << 20]);
        let (first, second) = {
            let repository = init(&store);
            (back_up(&repository, "web", &disk, false), back_up(&repository, "web", &changed, false))
        };
        // A flipped bit in the last frame of the first pack, which both snapshots refer to.
        let mut packs = Vec::new();
        let bad = MemoryStore::new();
        copy_into(&store, &bad, |volume, name, body| {
            if volume.starts_with("pds-") {
                packs.push((body.len(), name.to_vec()));
            }
            true
        });
        let (_, largest) = packs.into_iter().max().unwrap();
        let bad = MemoryStore::new();
        copy_into(&store, &bad, |_, name, body| {
            if name == largest {
                let at = body.len() * 3 / 4;
                body[at] ^= 1;
            }
            true
        });
        let repository = open(&bad);
        repository.forget(&[first.snapshot]).unwrap();
        prune(&repository);
        // One chunk is lost, as before; its neighbours are not.
        let report = repository.verify(second.snapshot, &Silent, &CancelFlag::new()).unwrap();
        assert!(!report.is_clean());
        report.damages.len() == 1 && report.more_damages == 0
    });
}

#[test]
fn a_location_resolves_only_to_a_frame_of_its_id() {
    let repository = init(&MemoryStore::new());
    let summary = back_up(&repository, "web", &text_disk(4, 3 << 20), false);
    let manifest = manifests(&repository, &summary).remove(0);
    let (_, _, recipe) = first_segment(&repository, &manifest);
    let chunks: Vec<FrameRef> = recipe.entries.iter().filter_map(|entry| entry.chunk).collect();
    let (one, other) = (chunks[0], chunks[1]);
    assert_ne!(one.location, other.location);
    let pack_store = repository.parts().pack_store();
    assert!(pack_store.at(one.location, &one.id.short()).unwrap().is_some());
    control(&[Flaw::AnyRowFits], || pack_store.at(other.location, &one.id.short()).unwrap().is_none());
}

/// Copies chunks to their places in a segment.
struct SegmentTaker<'s>(&'s Mutex<&'s mut [u8]>);

impl ChunkTaker for SegmentTaker<'_> {
    fn take(&mut self, wanted: &WantedChunk, raw: &[u8]) -> Result<()> {
        self.0.lock()[wanted.place as usize..][..raw.len()].copy_from_slice(raw);
        Ok(())
    }
}

#[test]
fn a_chunk_that_does_not_match_its_id_is_damage() {
    let repository = init(&MemoryStore::new());
    let disk = text_disk(5, 2 << 20);
    let summary = back_up(&repository, "web", &disk, false);
    let manifest = manifests(&repository, &summary).remove(0);
    let (_, _, recipe) = first_segment(&repository, &manifest);
    let fetch = |recipe: &SegmentRecipe| {
        let mut segment = vec![0; 2 << 20];
        let wanted: Vec<WantedChunk> = WantedChunk::of_segment(recipe, 0).collect();
        let bytes = Mutex::new(&mut segment[..]);
        let takers = || Box::new(SegmentTaker(&bytes)) as Box<dyn ChunkTaker + '_>;
        let mut fetcher = ChunkFetcher::on_this_thread(repository.parts().pack_store());
        let fetched = fetcher.fetch(&wanted, &takers, &mut |_, error| Err(error));
        fetched.map(|()| segment)
    };
    assert!(fetch(&recipe).unwrap() == disk.bytes);
    // Another chunk whose id has the same first half, the part that packs and the index store.
    let mut forged = recipe.clone();
    let chunk = forged.entries[3].chunk.as_mut().unwrap();
    chunk.id.0[31] ^= 1;
    control(&[Flaw::NoIdCheck], || fetch(&forged).is_err_and(|error| error.is_corruption()));
}
