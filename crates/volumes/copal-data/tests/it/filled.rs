//! A disk that an older build filled and could not open again (`tests/golden/README.md`).

use crate::{
    members::GROUP,
    stack::{body, engine},
};
use bytes::Bytes;
use copal_data::{BodySource, GroupOperation, MemberStore, NewHead};
use copal_device::{Image, MemoryDevice};
use copal_volume::{
    FileId, ManualClock, OpId, VolumeId,
    group::{Epoch, GroupId, Role},
};
use std::{path::Path, process::Command, sync::Arc};

/// Creation time of the last file, ms.
const FILLED_MS: u64 = 1_795_824_291_094;
const VOLUME: VolumeId = VolumeId(17_592_186_044_417);
const LEN: usize = 20_000;

fn unpacked() -> Image {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/full.copal.gz");
    let unpacked = Command::new("gzip").arg("-dc").arg(archive).output().expect("gzip");
    assert!(unpacked.status.success());
    let mut image = Image::zeroed(unpacked.stdout.len() as u64);
    image.write(0, &unpacked.stdout);
    image
}

/// Symptom: after a cluster was full and restarted, no server started, and no file was readable. Cause: the
/// first rows of a server were refused like a put, and that refusal counted as a failed disk. Fix: see
/// `member_space`; this test uses a disk of the old build.
#[test]
fn a_disk_that_an_older_build_filled_opens_and_frees_space() {
    let image = unpacked();
    let bytes = image.size();
    let device = MemoryDevice::from_image(image, bytes);
    let clock = Arc::new(ManualClock::new(FILLED_MS));
    let open = || MemberStore::open(engine(&device), clock.clone()).expect("groups");
    let store = open();
    store.boot(7).expect("boot");
    let group = VOLUME.birth_group();
    assert_ne!(group, GROUP);
    let before = store.membership(group).expect("a membership").expect("a member");
    let epoch = Epoch(before.epoch.0 + 1);
    store.enter_view(group, epoch, Role::Normal).expect("a view");
    let files = store.list(VOLUME, b"", None, 10_000).expect("a list");
    assert!(files.len() > 2300, "{}", files.len());
    for (name, info) in &files {
        let (read, _) = store.get(VOLUME, name, 0..u64::MAX, Some(info.fid)).expect("a file");
        assert!(read.len() == LEN && read.iter().all(|byte| *byte == 0));
    }
    let apply = |operation| store.apply(group, epoch, operation).expect("it is served");
    let op = |counter| OpId(FileId::new(FILLED_MS, counter, 9).0);
    for (at, (name, info)) in files.iter().enumerate().filter(|(at, _)| at % 2 == 0) {
        let gone =
            GroupOperation::Delete { vid: VOLUME, name: name.clone(), fid: info.fid, op: op(at as u16) };
        assert_eq!(apply(gone), Ok(Role::Normal));
    }
    let new: Vec<_> = (0..20).map(|number| created(number, group)).collect();
    for (operation, _, _) in &new {
        assert_eq!(apply(operation.clone()), Ok(Role::Normal));
    }
    assert_eq!(store.failure(), None);
    store.close().expect("close");
    drop(store);

    let store = open();
    store.boot(8).expect("boot");
    store.enter_view(group, Epoch(epoch.0 + 1), Role::Normal).expect("a view");
    let left = store.list(VOLUME, b"", None, 10_000).expect("a list");
    assert_eq!(left.len(), files.len() / 2 + new.len());
    for (_, name, bytes) in &new {
        let (read, _) = store.get(VOLUME, name, 0..u64::MAX, None).expect("a file");
        assert!(read == *bytes);
    }
}

/// A create, and the name and the bytes of its file.
fn created(number: u16, group: GroupId) -> (GroupOperation, Bytes, Bytes) {
    let bytes = body(u64::from(number), LEN);
    let name = Bytes::from(format!("new {number} of {group}"));
    let head = NewHead {
        fid: FileId::new(FILLED_MS, number, 11),
        op: OpId(FileId::new(FILLED_MS, number, 12).0),
        size: LEN as u64,
        crc32c: copal_codec::crc32c(0, &bytes),
        metadata: Bytes::new(),
    };
    let operation = GroupOperation::Create {
        vid: VOLUME,
        name: name.clone(),
        head,
        body: BodySource::Attached(bytes.clone()),
    };
    (operation, name, bytes)
}
