use super::{
    format::{TableMeta, TreeLevel},
    *,
};
use crate::{KeyspaceOptions, MemoryBudget, format::entry::KeyspaceId, memory::budget::MemoryAccounts};
use copal_codec::{ENVELOPE_LEN, Envelope, Format, Put};
use copal_device::{
    AlignedBuf, Device, Image, MemoryDevice,
    crash::{self, StateLimits},
    fault::{CompletionOrder, FaultDevice, FaultOptions},
};
use copal_object::{MkfsOptions, OpenOptions, RangeCoverage, SummedData};
use std::sync::Arc;

fn accounts() -> MemoryAccounts {
    MemoryBudget::new(4 << 20).accounts().clone()
}

#[test]
fn the_first_edit_of_an_older_manifest_rewrites_it() {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let mut new = Manifest::create(&objects, 7, &accounts()).unwrap();
    let keyspace = |id: u32| ManifestRecord::Keyspace {
        id: KeyspaceId(id),
        name: format!("space {id}"),
        options: KeyspaceOptions::default(),
    };
    let poison = PoisonFlag::default();
    new.commit(&objects, &poison, Vec::new(), &[keyspace(1)], Ack::Durable).unwrap();
    // The same bytes with a header of version 1, as that version wrote them.
    let len = objects.stat(MANIFEST).unwrap().len;
    let bytes = objects.read(MANIFEST, 0..len, IoClass::Foreground).wait().unwrap();
    let mut old = vec![0; ENVELOPE_LEN];
    old.put_u64(7);
    let version_1 = Format { version: 1, ..format::FORMAT };
    Envelope::seal(&version_1, 0, 0, &mut old);
    old.extend_from_slice(&bytes[old.len()..]);
    let txn = Txn::new().truncate(MANIFEST, 0).append(MANIFEST, 0, Bytes::from(old));
    objects.commit(txn, Ack::Durable).wait().unwrap();
    let budget = accounts();
    let (mut manifest, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
    assert_eq!((manifest.seed, manifest.state.keyspaces.len()), (7, 1));
    for id in 2..4 {
        manifest.commit(&objects, &poison, Vec::new(), &[keyspace(id)], Ack::Durable).unwrap();
        let head = objects.read(MANIFEST, 0..format::HEADER_LEN as u64, IoClass::Foreground);
        assert_eq!(format::parse_header(&head.wait().unwrap()).unwrap(), (format::FORMAT.version, 7));
        let (again, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
        assert_eq!(again.state, manifest.state);
    }
}

/// Symptom: opening a store panicked if its manifest held two tables of one run with keys in common. Cause:
/// the ranges of a manifest were first compared where a version asserts that they are disjoint. Fix: such a
/// manifest is corrupt, like any other contents that no engine writes.
#[test]
fn overlapping_tables_of_a_run_are_corrupt() {
    let key = |text: &[u8]| KeyspaceId(1).key(text);
    let table = |object, (start, end): (&[u8], &[u8])| {
        let table = TableMeta {
            object: ObjectId(object),
            bytes: 10,
            entries: 2,
            droppable: 0,
            max_seq: 7,
            start: key(start),
            end: key(end),
            values: Vec::new(),
            ingested_at: None,
        };
        let parts = vec![key(start)..key(end)];
        let slices = ManifestRecord::Slices { object: ObjectId(object), level: TreeLevel(1), run: 5, parts };
        [ManifestRecord::Table(table), slices]
    };
    let is_corrupt = |tables: [(&[u8], &[u8]); 2]| {
        let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
        let mut manifest = Manifest::create(&objects, 7, &accounts()).unwrap();
        let records = [vec![keyspace(1)], table(11, tables[0]).to_vec(), table(12, tables[1]).to_vec()];
        let poison = PoisonFlag::default();
        manifest.commit(&objects, &poison, Vec::new(), &records.concat(), Ack::Durable).unwrap();
        match Manifest::open(&objects, &accounts()) {
            Ok(_) => false,
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                true
            }
        }
    };
    assert!(!is_corrupt([(b"a", b"m"), (b"m", b"z")]));
    assert!(is_corrupt([(b"a", b"n"), (b"m", b"z")]));
    assert!(is_corrupt([(b"a", b"b"), (b"z", b"m")]));
}

fn keyspace(id: u32) -> ManifestRecord {
    ManifestRecord::Keyspace {
        id: KeyspaceId(id),
        name: format!("space {id}"),
        options: KeyspaceOptions::default(),
    }
}

/// Offsets of the first page of the manifest and of its copy.
fn pages(objects: &Store) -> [Option<u64>; 2] {
    let mut pages = [None; 2];
    let all = copal_object::CheckOptions { data: true, repair: false };
    let mut note = |range: std::ops::Range<u64>, covered| {
        if let RangeCoverage::Summed(SummedData::Object(id)) = covered
            && let Some(slot) = [MANIFEST, copy::COPY].iter().position(|of| *of == id)
        {
            pages[slot].get_or_insert(range.start);
        }
    };
    assert!(objects.check_coverage(&all, &mut note).unwrap().is_clean());
    pages
}

/// Symptom: one flipped bit in the manifest made the whole store unreadable.
/// Cause: there was one copy of it.
/// Fix: there are two, and an opening takes the intact one; the next edit writes both.
#[test]
fn a_damaged_manifest_is_read_from_its_copy_and_written_anew() {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device.clone(), &OpenOptions::default()).unwrap();
    let budget = accounts();
    let mut manifest = Manifest::create(&objects, 7, &budget).unwrap();
    let poison = PoisonFlag::default();
    for (round, damaged) in (1..).zip([0, 1, 0, 1]) {
        manifest.commit(&objects, &poison, Vec::new(), &[keyspace(round)], Ack::Durable).unwrap();
        let places = pages(&objects).map(Option::unwrap);
        assert!(places[0].abs_diff(places[1]) > 1 << 20, "{places:?}");
        let mut buf = AlignedBuf::zeroed(4096);
        buf.fill(0xee);
        device.write_through(places[damaged], buf).unwrap();
        let (again, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
        assert_eq!(again.state.keyspaces, manifest.state.keyspaces);
        manifest = again;
    }
}

/// Symptom: none yet. A copy that a full store cannot drop would take the space that deletes need, and a copy
/// that is never made again protects nothing.
#[test]
fn a_full_store_goes_on_without_the_copy_until_there_is_room() {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let budget = accounts();
    let mut manifest = Manifest::create(&objects, 7, &budget).unwrap();
    let poison = PoisonFlag::default();
    let mut round = 0;
    let mut commit = |manifest: &mut Manifest| {
        round += 1;
        manifest.commit(&objects, &poison, Vec::new(), &[keyspace(round)], Ack::Durable).unwrap();
        let (again, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
        assert_eq!(again.state.keyspaces, manifest.state.keyspaces);
    };
    commit(&mut manifest);
    assert!(pages(&objects).iter().all(Option::is_some));
    let free = objects.space().free_bytes;
    let full = objects.reserve(free - (256 << 10)).unwrap();
    for _ in 0..3 {
        commit(&mut manifest);
        assert_eq!(pages(&objects)[1], None);
    }
    drop(full);
    for _ in 0..3 {
        commit(&mut manifest);
        assert!(pages(&objects).iter().all(Option::is_some));
    }
}

/// Symptom: a store did not open within the budget of the previous session once an edit of its manifest was
/// about a megabyte long.
/// Cause: the temporary memory of an edit was counted twice as memory that cannot be evicted.
/// Fix: a piece is refused only if it is longer than the available memory; caches are evicted for its copies.
#[test]
fn an_edit_that_a_session_had_room_for_is_read_again() {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let mut manifest = Manifest::create(&objects, 7, &accounts()).unwrap();
    let records: Vec<ManifestRecord> = (1..5500)
        .map(|id| ManifestRecord::Keyspace {
            id: KeyspaceId(id),
            name: format!("{id:0>240}"),
            options: KeyspaceOptions::default(),
        })
        .collect();
    let poison = PoisonFlag::default();
    manifest.commit(&objects, &poison, Vec::new(), &records, Ack::Durable).unwrap();
    assert!(manifest.len > 5 << 18);
    let budget = accounts();
    let (again, charge) = Manifest::open(&objects, &budget).unwrap().unwrap();
    assert!(again.state.keyspaces == manifest.state.keyspaces);
    assert_eq!(charge.bytes(), again.state.heap_bytes());
}

#[test]
fn the_memory_of_a_piece_is_reported_once() {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let mut manifest = Manifest::create(&objects, 7, &accounts()).unwrap();
    let record = ManifestRecord::Settled { below: 9 };
    let poison = PoisonFlag::default();
    manifest.commit(&objects, &poison, Vec::new(), &[record], Ack::Durable).unwrap();
    let mut edits = EditReader::open(&objects, MANIFEST, IoClass::Foreground).unwrap();
    let mut told = Vec::new();
    let mut room = |bytes| {
        told.push(bytes);
        Ok(())
    };
    while edits.next(&mut room).unwrap().is_some() {}
    assert_eq!(told, [manifest.len - format::HEADER_LEN as u64]);
}

/// A manifest of about half a megabyte, durable.
fn long_manifest(objects: &Store, budget: &MemoryAccounts, poison: &PoisonFlag) -> Manifest {
    let mut manifest = Manifest::create(objects, 7, budget).unwrap();
    let records: Vec<ManifestRecord> = (1..2000)
        .map(|id| ManifestRecord::Keyspace {
            id: KeyspaceId(id),
            name: format!("{id:0>240}"),
            options: KeyspaceOptions::default(),
        })
        .collect();
    manifest.commit(objects, poison, Vec::new(), &records, Ack::Durable).unwrap();
    manifest
}

/// Symptom: none yet. A rewrite that is written piece by piece could be found half done.
#[test]
fn a_crash_inside_a_rewrite_leaves_the_old_manifest_or_the_new_one() {
    let device = FaultDevice::with_options(
        Image::zeroed(64 << 20),
        FaultOptions { order: CompletionOrder::Fifo, ..FaultOptions::default() },
    );
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(dynamic, &OpenOptions::default()).unwrap();
    let (budget, poison) = (accounts(), PoisonFlag::default());
    let mut manifest = long_manifest(&objects, &budget, &poison);
    let before = device.step();
    manifest.rewrite_above = 1;
    manifest.commit(&objects, &poison, Vec::new(), &[keyspace(9000)], Ack::Durable).unwrap();
    let history = device.history();
    let limits = StateLimits { exhaustive: 4, samples: 8, seed: 5 };
    let mut outcomes = [0, 0];
    let mut half_way = 0;
    for step in (before..=history.len()).rev().step_by(5) {
        for state in crash::states(&history, step, &limits).take(4) {
            let (objects, _) = Store::open(state.device(), &OpenOptions::default()).unwrap();
            let (found, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
            let is_new = found.state.keyspaces.contains_key(&KeyspaceId(9000));
            assert_eq!(found.state.keyspaces.len(), 1999 + usize::from(is_new));
            assert!(is_new || step < history.len(), "{}", state.describe());
            outcomes[usize::from(is_new)] += 1;
            let is_there = |objects: &Store| rewrite::BESIDE.iter().any(|id| objects.stat(*id).is_some());
            half_way += usize::from(is_there(&objects));
            assert!(!(is_new && is_there(&objects)), "{}", state.describe());
            let store = crate::Store::open(objects.clone(), crate::Options::default()).unwrap();
            assert!(!is_there(&objects), "an opening deletes what took no place");
            let report = store.verify(true).unwrap();
            assert!(report.is_sound(), "{:?}", report.problems);
        }
    }
    assert!(outcomes[0] > 10 && outcomes[1] > 0 && half_way > 5, "{outcomes:?}, {half_way}");
}

/// Symptom, cause and fix: `deletes_go_on_where_the_manifest_leaves_no_memory_and_the_store_is_small`.
#[test]
fn a_rewrite_takes_no_more_memory_than_a_piece() {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let poison = PoisonFlag::default();
    let budget = accounts();
    let mut manifest = long_manifest(&objects, &budget, &poison);
    let long = manifest.len;
    // No byte is free for memory that cannot be evicted.
    let _all = budget.charge(Memory::Manifest, 5 << 20);
    assert!(budget.check().is_err());
    budget.take_peak();
    let before = budget.take_peak();
    manifest.rewrite_above = 1;
    manifest.commit(&objects, &poison, Vec::new(), &[keyspace(9000)], Ack::Durable).unwrap();
    assert!(manifest.rewrite_above > 1, "it was written anew");
    let more = budget.take_peak() - before;
    assert!(more > 0 && more < long / 2, "{more} bytes for {long}");
}

/// Symptom: none yet. A store too full for a rewrite would refuse every change, or try the rewrite at each.
#[test]
fn a_store_too_full_for_a_rewrite_appends_until_there_is_room() {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let poison = PoisonFlag::default();
    let budget = accounts();
    let mut manifest = long_manifest(&objects, &budget, &poison);
    let full = objects.reserve(objects.space().free_bytes - (300 << 10)).unwrap();
    manifest.rewrite_above = 1;
    let commit = |manifest: &mut Manifest, round| {
        let len = manifest.len;
        manifest.commit(&objects, &poison, Vec::new(), &[keyspace(round)], Ack::Durable).unwrap();
        let left = rewrite::BESIDE.iter().any(|id| objects.stat(*id).is_some());
        assert!(!left, "nothing is left of what took no place");
        let (again, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
        assert!(again.state.keyspaces == manifest.state.keyspaces);
        manifest.len < len + 64
    };
    assert!(commit(&mut manifest, 9000), "the copy went");
    assert_eq!(manifest.rewrite_above, 1);
    assert!(manifest.retry_from > manifest.len, "it is not tried each time");
    drop(full);
    manifest.retry_from = 0;
    commit(&mut manifest, 9001);
    assert!(manifest.rewrite_above > 1, "it was written anew");
}

/// Symptom: a store that was killed during a rewrite of its manifest did not open: an object "does not
/// exist". It was found by a store of volumes at the edge of its space. Cause: the leftovers of the kill were
/// deleted in the transaction of the first edit. That edit was a rewrite itself, so its new objects were
/// deleted as well.
/// Fix: leftovers of a rewrite are deleted before any edit.
#[test]
fn leftovers_of_a_rewrite_are_deleted_before_the_next_one_begins() {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let (budget, poison) = (accounts(), PoisonFlag::default());
    let mut manifest = long_manifest(&objects, &budget, &poison);
    // Without a copy the first edit rewrites everything.
    let mut ops = vec![Op::Delete { id: copy::COPY }];
    ops.extend(rewrite::BESIDE.map(|id| copy::create_as(id, MANIFEST)));
    let txn = Txn::new().ops(ops);
    objects.commit(txn, Ack::Durable).wait().unwrap();
    manifest.copy = ManifestCopy::NoRoom;
    drop(manifest);
    let store = crate::Store::open(objects.clone(), crate::Options::default()).unwrap();
    let left = rewrite::BESIDE.iter().filter(|id| objects.stat(**id).is_some());
    assert_eq!(left.count(), 0);
    assert!(objects.stat(copy::COPY).is_some(), "it was written anew");
    assert!(store.verify(true).unwrap().is_sound());
}
