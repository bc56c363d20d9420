//! Tests that this code writes and reads the worked examples of docs/formats/backup-*.md.

use crate::catalog::checkpoint;
use crate::catalog::domain::DomainState;
use crate::catalog::fields::{DeadList, MovedList};
use crate::catalog::record::{PackPlace, Record};
use crate::catalog::vm::{PublishedSnapshot, VmState};
use crate::index::moved_frames::{MovedFrame, MovedFrames};
use crate::keys::key_slot::{self, HashCost};
use crate::keys::role::RoleKey;
use crate::keys::role::{KeyId, Role};
use crate::keys::role_key;
use crate::keys::signature::SIGNATURE_BYTES;
use crate::keys::{DomainKeys, SignatureState};
use crate::packs::home::{PackHome, PackKind};
use crate::packs::pack::format::{HEADER_BYTES, PackHeader};
use crate::packs::pack::reader;
use crate::packs::pack::writer::{FrameInput, PackWriter};
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::request::open_session::HolderId;
use crate::request::peers::HostKey;
use crate::request::{BackupCounts, CopyOrigin, DiskMode, SnapshotId, Unlock, Vm};
use crate::snapshot::manifest::{Manifest, ManifestDisk};
use crate::snapshot::recipe::format::{PAGE_LEVEL, ROOT_LEVEL, SEGMENT_LEVEL};
use crate::snapshot::recipe::{DiskRoot, FrameRef, RecipeEntry, RecipePage, SegmentRecipe};
use copal_chunk::{ChunkId, ChunkProfile};
use copal_disk::doubt::{DiskDoubt, DoubtKind};
use copal_disk::source::BitmapState;
use copal_volume::{MemoryStore, PutOptions, VolumeOptions, VolumeStore};
use uuid::Uuid;
use zeroize::Zeroizing;

/// The bytes of block `number` (from 0) marked `hex` in a document.
fn example(document: &str, number: usize) -> Vec<u8> {
    let block = document.split("```hex\n").nth(number + 1).and_then(|rest| rest.split("```").next());
    block
        .expect("the document has this example")
        .lines()
        .flat_map(|line| line.split_whitespace().skip(1))
        .map(|byte| u8::from_str_radix(byte, 16).expect("hex"))
        .collect()
}

/// The bytes as the documents print them.
fn printed(bytes: &[u8]) -> String {
    let line = |(row, chunk): (usize, &[u8])| {
        let hex: Vec<_> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:04x} {}\n", row * 16, hex.join(" "))
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

fn assert_example(document: &str, number: usize, bytes: &[u8]) {
    assert!(
        example(document, number) == bytes,
        "the document differs; this code writes:\n{}",
        printed(bytes)
    );
}

fn keys() -> DomainKeys {
    DomainKeys::derive(&[0x11; 32])
}

/// The VM of the recipes in the documents.
const VM: Uuid = Uuid::from_bytes([0x77; 16]);

fn location(home: PackHome, slot: u32) -> FrameLocation {
    FrameLocation { home, volume: 2, pack: PackNumber(0x0102_0304_0506_0708), slot }
}

fn at(home: PackHome, byte: u8, slot: u32) -> FrameRef {
    FrameRef { id: ChunkId([byte; 32]), location: location(home, slot) }
}

/// A chunk of the domain.
fn chunk(byte: u8, slot: u32) -> Option<FrameRef> {
    Some(at(PackHome::Shared, byte, slot))
}

/// A recipe of the VM.
fn reference(byte: u8, slot: u32) -> FrameRef {
    at(PackHome::Recipes(VM), byte, slot)
}

#[test]
fn the_pack_of_the_document() {
    let document = include_str!("../../../../../docs/formats/backup-pack.md");
    let keys = keys();
    let header = PackHeader {
        domain: [0xd0; 16],
        pack_id: *b"pack id 16 bytes",
        session: [0x5e; 16],
        kind: PackKind::Shared,
    };
    let store = MemoryStore::new();
    let vid = store.create_volume("", "v", &VolumeOptions::default()).unwrap();
    let number = PackNumber::of(&header.pack_id);
    let name = number.file_name();
    let file = store.writer(vid, name.as_bytes(), &PutOptions::default()).unwrap();
    let mut pack = PackWriter::start(
        file,
        &keys.pack_key(&header.pack_id),
        header,
        (PackHome::Shared, 0),
        &std::sync::Arc::default(),
    )
    .unwrap();
    for payload in [&b"first chunk"[..], b"second"] {
        let id = keys.id.id(payload).short();
        pack.append(&FrameInput { id, raw_bytes: payload.len() as u32, flags: 0, payload }).unwrap();
    }
    pack.finish(&store, vid).unwrap();
    let bytes = store.get(vid, name.as_bytes(), 0..u64::MAX, &Default::default()).unwrap();
    assert_example(document, 0, &bytes);
    assert_eq!(PackHeader::decode(&bytes[..HEADER_BYTES]).unwrap(), header);
    let footer = reader::footer(&store, PackHome::Shared, vid, number, &keys).unwrap();
    let raw: Vec<_> = footer.rows.iter().map(|row| (row.offset, row.stored, row.raw, row.flags)).collect();
    assert_eq!(raw, [(96, 27, 11, 0), (123, 22, 6, 0)]);
    let mut encrypted = bytes[96..123].to_vec();
    assert_eq!(reader::open_frame(&footer, 0, &mut encrypted).unwrap(), b"first chunk");
}

#[test]
fn the_recipes_of_the_document() {
    let document = include_str!("../../../../../docs/formats/backup-recipe.md");
    let segment = SegmentRecipe {
        entries: vec![
            RecipeEntry::new(20_000, chunk(0xa1, 7)),
            RecipeEntry::new(12_768, chunk(0xa2, 8)),
            RecipeEntry::new(4096, None),
        ],
    };
    assert_example(document, 0, &segment.encode());
    assert_eq!(SegmentRecipe::decode(&example(document, 0), 36_864, VM).unwrap(), segment);
    let page = RecipePage { segments: vec![Some(reference(0xb1, 0)), None, Some(reference(0xb2, 5))] };
    assert_example(document, 1, &page.encode());
    assert_eq!(RecipePage::decode(&example(document, 1), 3, VM).unwrap(), page);
    let root = DiskRoot { size_bytes: 3 << 20, pages: vec![Some(reference(0xc1, 9))] };
    assert_example(document, 2, &root.encode());
    assert_eq!(DiskRoot::decode(&example(document, 2), VM).unwrap(), root);

    // Version 2: a chunk of the VM's own, without an answer.
    let mut own = segment.clone();
    own.entries[1] = RecipeEntry {
        is_unresolved: true,
        ..RecipeEntry::new(12_768, Some(at(PackHome::Private(VM), 0xa2, 8)))
    };
    assert_example(document, 3, &own.encode());
    assert_eq!(SegmentRecipe::decode(&example(document, 3), 36_864, VM).unwrap(), own);

    // The location is not part of a name; content and VM are.
    let key = keys().recipe_key(Uuid::from_bytes([7; 16]));
    let mut moved = segment.clone();
    moved.entries[0].chunk = chunk(0xa1, 900);
    assert_eq!(key.id(SEGMENT_LEVEL, &segment.logical()), key.id(SEGMENT_LEVEL, &moved.logical()));
    let other = keys().recipe_key(Uuid::from_bytes([8; 16]));
    assert_ne!(key.id(SEGMENT_LEVEL, &segment.logical()), other.id(SEGMENT_LEVEL, &segment.logical()));
    assert_ne!(key.id(PAGE_LEVEL, &page.logical()), key.id(ROOT_LEVEL, &page.logical()));
}

#[test]
fn truncated_and_changed_recipes_never_panic() {
    let document = include_str!("../../../../../docs/formats/backup-recipe.md");
    for number in 0..4 {
        let golden = example(document, number);
        let read = |bytes: &[u8]| {
            let _ = SegmentRecipe::decode(bytes, 36_864, VM);
            let _ = RecipePage::decode(bytes, 3, VM);
            let _ = DiskRoot::decode(bytes, VM);
        };
        for cut in 0..golden.len() {
            read(&golden[..cut]);
        }
        for at in 0..golden.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = golden.clone();
                bytes[at] = value;
                read(&bytes);
            }
        }
    }
}

#[test]
fn the_manifest_of_the_document() {
    let document = include_str!("../../../../../docs/formats/backup-manifest.md");
    let manifest = Manifest {
        vm: VM,
        snapshot: SnapshotId([0x51; 16]),
        session: [0x5e; 16],
        sequence: 4,
        base: Some(SnapshotId([0x50; 16])),
        disks: vec![ManifestDisk {
            name: "sda".into(),
            size_bytes: 3 << 20,
            data_bytes: 1 << 20,
            root: reference(0xc1, 9),
            mode: DiskMode::Incremental,
            reason: String::new(),
            serial: "WD-7".into(),
            bitmap: Some(BitmapState { name: "copal-4".into(), dirty_bytes: 65_536 }),
            sentinel: Some(BitmapState { name: "copal-5".into(), dirty_bytes: 65_536 }),
            identity: Some("file 7, made 9".into()),
            whole_ms: 1_790_000_000_000,
        }],
        counts: BackupCounts {
            logical_bytes: 3 << 20,
            read_bytes: 65_536,
            chunks: 4,
            ..BackupCounts::default()
        },
        tags: vec!["daily".into()],
        description: String::new(),
        tool: "copal 0.1.0".into(),
        vector: Some([0x5e; 32]),
        doubts: vec![DiskDoubt {
            disk: "sda".into(),
            kind: DoubtKind::Smaller,
            text: "has 3145728 bytes".into(),
        }],
        origin: None,
    };
    let bytes = manifest.encode(&keys());
    assert_example(document, 2, &bytes);
    let decoded = |bytes: &[u8]| Manifest::decode(bytes, manifest.snapshot, &keys()).unwrap();
    assert_eq!(decoded(&bytes), manifest);
    // A copy has version 5.
    let origin = CopyOrigin {
        repository: Uuid::from_bytes([0xd1; 16]),
        snapshot: SnapshotId([0x61; 16]),
        created_ms: 1_789_000_000_000,
    };
    let copied = Manifest { origin: Some(origin), ..manifest.clone() };
    assert_example(document, 3, &copied.encode(&keys()));
    assert_eq!(decoded(&copied.encode(&keys())), copied);
    // Version 3 has no sentinels, identities and doubts, version 2 no vector either.
    let mut of_3 = Manifest { doubts: Vec::new(), ..manifest.clone() };
    of_3.disks[0].sentinel = None;
    of_3.disks[0].identity = None;
    of_3.disks[0].whole_ms = 0;
    assert_eq!(decoded(&example(document, 1)), of_3);
    let of_2 = Manifest { vector: None, ..of_3 };
    assert_eq!(decoded(&example(document, 0)), of_2);
    assert!(Manifest::decode(&bytes, SnapshotId([0x52; 16]), &keys()).is_err(), "another snapshot's place");
    assert!(
        Manifest::decode(&bytes, manifest.snapshot, &DomainKeys::derive(&[0x12; 32])).is_err(),
        "another key"
    );
}

#[test]
fn the_records_of_the_document() {
    let document = include_str!("../../../../../docs/formats/backup-catalog.md");
    let init = Record::Init { domain: Uuid::from_bytes([0xd0; 16]), profile: ChunkProfile::Default };
    let publish = Record::Publish {
        session: [0x5e; 16],
        snapshot: SnapshotId([0x51; 16]),
        sequence: 4,
        manifest: [0x99; 32],
        clock_ms: Some(1_790_000_000_000),
        is_dated: false,
    };
    let domain_place = "d.0000000000000000";
    let vm_place = "v.77777777777777777777777777777777.0000000000000009";
    assert_example(document, 0, &init.encode(domain_place, &keys()));
    assert_example(document, 1, &publish.encode(vm_place, &keys()));
    let read = |bytes: &[u8], place: &str| Record::decode(bytes, place, &keys());
    assert_eq!(read(&example(document, 0), domain_place).unwrap(), init);
    assert_eq!(read(&example(document, 1), vm_place).unwrap(), publish);
    let Record::Publish { session, snapshot, sequence, manifest, .. } = publish.clone() else {
        unreachable!("it was made above")
    };
    let without_clock =
        Record::Publish { session, snapshot, sequence, manifest, clock_ms: None, is_dated: false };
    assert_eq!(read(&example(document, 2), vm_place).unwrap(), without_clock);
    let place = "v.77777777777777777777777777777777.000000000000000a";
    assert!(read(&example(document, 1), place).is_err());

    // Signed where a signature is needed. A backup key can verify it, and an unsigned record is ignored.
    let forget = Record::Forget { snapshots: vec![snapshot] };
    let signing = keys();
    signing.set_signatures(SignatureState::Needed);
    assert_example(document, 3, &forget.encode(place, &signing));
    let bundle = signing.bundle(Role::Backup).unwrap();
    let backup = DomainKeys::of_bundle(Role::Backup, bundle[..].try_into().unwrap());
    let read = |bytes: &[u8], place: &str| Record::decode(bytes, place, &backup);
    assert_eq!(read(&example(document, 3), place).unwrap(), forget);
    assert!(read(&example(document, 3), vm_place).is_err(), "another place");
    assert_eq!(read(&example(document, 1), vm_place).unwrap(), publish);
    let unsigned = forget.encode(place, &backup);
    assert_eq!(read(&unsigned, place).unwrap(), Record::Void { code: 6 });
    assert_eq!(Record::decode(&unsigned, place, &keys()).unwrap(), forget);
}

/// A record about a popular pack: signed with the key of the host; with a wrong signature it counts as
/// unsigned.
#[test]
fn a_record_of_the_document_that_a_host_has_signed() {
    let document = include_str!("../../../../../docs/formats/backup-catalog.md");
    let signing = keys();
    signing.set_signatures(SignatureState::Needed);
    let place = "k.0000000000000007";
    let record = Record::Checked { pack: PackNumber(0x0102_0304_0506_0708), host: signing.host_key() };
    let bytes = record.encode(place, &signing);
    let read = |bytes: &[u8], place: &str| Record::decode(bytes, place, &keys());
    assert_eq!(read(&bytes, place).unwrap(), record);
    assert!(read(&bytes, "k.0000000000000008").is_err(), "another place");
    // Without the key of that host a record cannot be signed in its name.
    let bundle = signing.bundle(Role::Backup).unwrap();
    let other = DomainKeys::of_bundle(Role::Backup, bundle[..].try_into().unwrap());
    let unsigned = Record::Checked { pack: PackNumber(0x0102_0304_0506_0708), host: None };
    assert_eq!(read(&record.encode(place, &other), place).unwrap(), unsigned);
    assert_example(document, 4, &bytes);
}

#[test]
fn records_without_an_example_round_trip() {
    let place = "v.77777777777777777777777777777777.0000000000000009";
    let others = [
        Record::VmAdded { vm: Uuid::from_bytes([7; 16]), name: "web".into() },
        Record::Open { session: [1; 16], base: None },
        Record::Open { session: [1; 16], base: Some(SnapshotId([2; 16])) },
        Record::OpenHeld { session: [1; 16], base: Some(SnapshotId([2; 16])), holder: HolderId([9; 16]) },
        Record::OpenHeld { session: [1; 16], base: None, holder: HolderId([9; 16]) },
        Record::Beat { name: "agent 1".into(), address: "10.0.0.1:7600".into(), progress: 1 << 40 },
        Record::AgentListed {
            name: "h1".into(),
            holder: HolderId([9; 16]),
            vms: vec!["web".into(), "db".into()],
            more_vms: 3,
        },
        Record::AgentRetired { name: "h1".into() },
        Record::Spoiled { pack: PackNumber(7), host: None },
        Record::HostEntered { host: HostKey([3; 32]), key: KeyId([4; 8]) },
        Record::HostRemoved { host: HostKey([3; 32]) },
        Record::Fence { session: [1; 16] },
        Record::Forget { snapshots: vec![SnapshotId([3; 16]), SnapshotId([4; 16])] },
        Record::Deleted { snapshots: vec![] },
        Record::Verified { snapshots: vec![SnapshotId([5; 16])] },
        Record::Accepted { snapshots: vec![SnapshotId([6; 16])] },
        Record::Hold { snapshots: vec![SnapshotId([6; 16])], until_ms: 1_800_000_000_000 },
        Record::Removing {
            packs: vec![
                PackPlace { home: PackHome::Shared, volume: 3, pack: PackNumber(7) },
                PackPlace {
                    home: PackHome::Recipes(Uuid::from_bytes([8; 16])),
                    volume: 0,
                    pack: PackNumber(u64::MAX),
                },
            ],
        },
        Record::Removed {
            packs: vec![PackPlace { home: PackHome::Private(VM), volume: 1, pack: PackNumber(9) }],
        },
        Record::Freed {
            snapshots: vec![SnapshotId([3; 16])],
            dead: Some(DeadList { number: 1, hash: [4; 32] }),
        },
        Record::Freed { snapshots: vec![], dead: None },
        Record::Moved {
            moved: vec![MovedList { number: 1, ids: 2, hash: [5; 32] }],
            dead: None,
            resolved_below: 7,
        },
        Record::Condemned { packs: vec![PackNumber(3), PackNumber(u64::MAX)] },
        Record::Spared { packs: vec![PackNumber(3)] },
        Record::Gone { packs: vec![] },
        Record::Counted,
        Record::Retired,
        Record::VmRemoved { vm: VM },
        Record::Roles,
        Record::InitFleet {
            domain: Uuid::from_bytes([9; 16]),
            profile: ChunkProfile::Paper,
            popular_millionths: 300_000,
        },
    ];
    for record in others {
        let bytes = record.encode(place, &keys());
        assert_eq!(Record::decode(&bytes, place, &keys()).unwrap(), record);
    }
}

#[test]
fn the_checkpoints_of_the_document() {
    let document = include_str!("../../../../../docs/formats/backup-checkpoint.md");
    let vm = |byte, name: &str| Vm { uuid: Uuid::from_bytes([byte; 16]), name: name.into() };
    let domain = DomainState { next_number: 3, vms: vec![vm(7, "web"), vm(8, "db")] };
    let place = "c.d.0000000000000003";
    let bytes = checkpoint::encode(&domain, place, &keys());
    assert_example(document, 0, &bytes);
    assert_eq!(checkpoint::decode(&bytes, place, 3, &keys()), Ok(domain));
    let elsewhere = checkpoint::decode::<DomainState>(&bytes, "c.d.0000000000000004", 3, &keys());
    assert!(elsewhere.is_err(), "another place");
    assert!(checkpoint::decode::<DomainState>(&bytes, place, 4, &keys()).is_err());
    assert!(checkpoint::decode::<VmState>(&bytes, place, 3, &keys()).is_err());

    let published = PublishedSnapshot {
        snapshot: SnapshotId([0x51; 16]),
        sequence: 4,
        created_ms: 1_800_000_000_000,
        stored_ms: 1_800_000_000_001,
        manifest: [0x99; 32],
        is_verified: true,
        is_accepted: false,
        held_until_ms: 0,
    };
    let state = VmState {
        next_number: 32,
        next_sequence: 5,
        published: vec![published],
        forgotten: vec![PublishedSnapshot { snapshot: SnapshotId([0x52; 16]), ..published }],
        open: vec![[0x5e; 16]],
        fenced: vec![[0x5f; 16]],
        newest_ms: 1_800_000_000_001,
        removing: vec![PackPlace { home: PackHome::Private(VM), volume: 1, pack: PackNumber(9) }],
        freed: vec![SnapshotId([0x53; 16])],
        dead: Some(DeadList { number: 3, hash: [0x98; 32] }),
        is_retired: false,
        held: vec![],
        moved: vec![],
        resolved_below: 0,
    };
    let place = "c.v.77777777777777777777777777777777.0000000000000020";
    let bytes = checkpoint::encode(&state, place, &keys());
    assert_example(document, 1, &bytes);
    assert_eq!(checkpoint::decode(&bytes, place, 32, &keys()), Ok(state.clone()));
    // Holders of sessions are at the end, where older checkpoints end.
    let held = VmState { held: vec![([0x5e; 16], HolderId([0x5d; 16]))], ..state.clone() };
    let with_holder = checkpoint::encode(&held, place, &keys());
    assert_eq!(with_holder.len(), bytes.len() + 33);
    assert_eq!(checkpoint::decode(&with_holder, place, 32, &keys()), Ok(held));
    // Moved chunks follow them.
    let cleaned = VmState {
        moved: vec![MovedList { number: 2, ids: 9, hash: [0x97; 32] }],
        resolved_below: 4,
        ..state.clone()
    };
    let with_moved = checkpoint::encode(&cleaned, place, &keys());
    assert_eq!(with_moved.len(), bytes.len() + 1 + 8 + 1 + 44);
    assert_eq!(checkpoint::decode(&with_moved, place, 32, &keys()), Ok(cleaned));
    let only_id = PublishedSnapshot {
        snapshot: SnapshotId([0x52; 16]),
        sequence: 0,
        created_ms: 0,
        stored_ms: 0,
        manifest: [0; 32],
        is_verified: false,
        is_accepted: false,
        held_until_ms: 0,
    };
    // A signed checkpoint has the same content, and where signatures are needed only a signed one counts.
    let signing = keys();
    signing.set_signatures(SignatureState::Needed);
    let signed = checkpoint::encode(&state, place, &signing);
    assert_eq!(signed.len(), bytes.len() + SIGNATURE_BYTES);
    assert_eq!(checkpoint::decode(&signed, place, 32, &signing), Ok(state.clone()));
    assert!(checkpoint::decode::<VmState>(&bytes, place, 32, &signing).is_err());
    let before =
        VmState { forgotten: vec![only_id], removing: Vec::new(), freed: Vec::new(), dead: None, ..state };
    let of_version_1 = example(document, 2);
    assert_eq!(checkpoint::decode(&of_version_1, place, 32, &keys()), Ok(before));
}

#[test]
fn the_list_of_moved_frames_of_the_document() {
    let document = include_str!("../../../../../docs/formats/backup-moved-frames.md");
    let frame = |id, volume, pack, slot| MovedFrame { id: [id; 16], volume, pack: PackNumber(pack), slot };
    let moved = MovedFrames::of(vec![frame(0xc1, 0, 9, 300), frame(0xa1, 2, 5, 7), frame(0xb1, 0, 9, 0)]);
    let place = "moved.0000000000000003";
    let bytes = moved.encode(VM, place, &keys());
    assert_example(document, 0, &bytes);
    assert_eq!(crate::index::moved_frames::decode(&bytes, VM, place, &keys()), Ok(moved));
}

#[test]
fn the_key_slot_of_the_document() {
    let document = include_str!("../../../../../docs/formats/backup-key-slot.md");
    let cost = HashCost { memory_kib: 64, passes: 3, lanes: 1 };
    let password = |text: &str| Unlock::Password(Zeroizing::new(text.into()));
    let slot =
        key_slot::encode(&password("correct horse"), [0xd0; 16], [0x5a; 16], cost, &[0x11; 32]).unwrap();
    assert_example(document, 0, &slot);
    let read = key_slot::decode(&slot).map_err(drop).unwrap();
    assert_eq!(*read.open(&password("correct horse")).unwrap().unwrap(), [0x11; 32]);
    assert!(read.open(&password("battery staple")).unwrap().is_none());
    let key = RoleKey::of_secret(Role::Backup, [0x5e; 32]);
    assert!(document.contains(&format!("```text\n{}```", *key.text())), "{}", *key.text());
    assert!(document.contains(&format!("`{}`", key.id().file_name())));
    let slot = role_key::encode(&key, [0xd0; 16], [0x5a; 16], &keys()).unwrap();
    assert_example(document, 1, &slot);
    let opened = role_key::decode(&slot).unwrap().open(&key).unwrap();
    assert_eq!(opened.mac("a", b"b"), keys().mac("a", b"b"));
    let clear = key_slot::encode(&Unlock::Insecure, [0xd0; 16], [0x5a; 16], cost, &[0x11; 32]).unwrap();
    let read = key_slot::decode(&clear).map_err(drop).unwrap();
    assert_eq!(*read.open(&Unlock::Insecure).unwrap().unwrap(), [0x11; 32]);
}
