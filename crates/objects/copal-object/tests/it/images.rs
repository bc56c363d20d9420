//! Images of stores with random, cut or swapped parts, on every backend. Each is refused by an error that names the
//! reason, or everything that was acknowledged reads as it was, or is reported.
//!
//! Not here: single flipped bytes (`flips`), parts of another version or shape (`shapes`).

use crate::basics::{bytes, commit, plain, stream};
use bytes::Bytes;
use copal_device::{AlignedBuf, Device, Image, IoClass, MemoryDevice};
use copal_object::*;
use copal_testkit::Random;
use std::{collections::BTreeMap, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const STORE_BYTES: u64 = 64 << 20;
/// Also the size of a segment, so that the records of a few commits lie in many of them.
pub(crate) const PIECE_BYTES: u64 = 64 << 10;
pub(crate) const BACKENDS: [BackendKind; 3] = [BackendKind::Cow, BackendKind::Log, BackendKind::Hostfs];
/// Most reads of one opening with all its content; none may walk through numbers that an image claims.
const READS_MAX: u64 = 20_000;

/// State in which the process left the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Left {
    Closed,
    /// Killed after it had been idle: all that was acknowledged is known to be durable.
    Marked,
    Killed,
}

/// Storage of a store at rest.
#[derive(Clone)]
pub(crate) enum RestingStore {
    Device(Image),
    Files(BTreeMap<PathBuf, Arc<Vec<u8>>>),
}

/// Acknowledged content.
#[derive(Default)]
pub(crate) struct Acknowledged {
    objects: BTreeMap<u64, Bytes>,
    frames: Vec<Bytes>,
    /// Pieces of 64 KiB with the mark of an idle store. Without it, the records before it may be those of a crash.
    pub(crate) mark_pieces: Vec<u64>,
}

const STREAM: ObjectId = ObjectId(500);

fn put(store: &Store, acknowledged: &mut Acknowledged, id: u64, len: usize) {
    let data = bytes(len, id);
    let ops = vec![
        Op::Create { id: ObjectId(id), opts: plain(ReadCheck::Pages) },
        Op::Append { id: ObjectId(id), at: 0, data: data.clone() },
    ];
    commit(store, ops);
    acknowledged.objects.insert(id, data);
    let frame = bytes(100 + 7 * id as usize, id + 1000);
    store.append_frame(STREAM, frame.clone(), None, Ack::Durable).wait().unwrap();
    acknowledged.frames.push(frame);
}

/// A checkpoint with half of the content, and records with the rest.
fn write_content(open: &dyn Fn() -> Store, ahead_bytes: usize) -> (Store, Acknowledged) {
    let mut acknowledged = Acknowledged::default();
    let store = open();
    commit(&store, vec![Op::Create { id: STREAM, opts: stream() }]);
    if ahead_bytes > 0 {
        let mut writer = store.writer(ObjectId(401), plain(ReadCheck::Caller)).unwrap();
        writer.append(&vec![7; ahead_bytes]).unwrap();
        commit(&store, vec![Op::Publish(writer.finish().unwrap())]);
    }
    let mut writer = store.writer(ObjectId(400), plain(ReadCheck::Pages)).unwrap();
    writer.append(&bytes(400_000, 400)).unwrap();
    commit(&store, vec![Op::Publish(writer.finish().unwrap())]);
    acknowledged.objects.insert(400, bytes(400_000, 400));
    for id in 1..12 {
        put(&store, &mut acknowledged, id, [900, 30_000, 150_000][id as usize % 3]);
    }
    store.close().unwrap();
    drop(store);
    let store = open();
    for id in 12..60 {
        put(&store, &mut acknowledged, id, [900, 9000, 20_000][id as usize % 3]);
    }
    (store, acknowledged)
}

fn leave(store: &Store, left: Left) {
    match left {
        Left::Closed => store.close().unwrap(),
        Left::Marked => assert!(store.write_clean_mark().unwrap()),
        Left::Killed => {}
    }
}

fn image_of(device: &dyn Device) -> Image {
    let size = device.geometry().size;
    let mut image = Image::zeroed(size);
    for at in (0..size).step_by(1 << 20) {
        image.write(at, &device.read_now(at, AlignedBuf::zeroed(1 << 20)).unwrap());
    }
    image
}

fn piece_of(image: &Image, number: u64) -> Vec<u8> {
    let mut piece = vec![0; PIECE_BYTES as usize];
    image.read(number * PIECE_BYTES, &mut piece);
    piece
}

fn files_below(directory: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    entries.flat_map(below).collect()
}

/// Writes a file with holes where its content is zero.
fn write_sparse(path: &std::path::Path, content: &[u8]) {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(content.len() as u64).unwrap();
    for (index, piece) in content.chunks(PIECE_BYTES as usize).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, index as u64 * PIECE_BYTES).unwrap();
        }
    }
}

impl RestingStore {
    pub(crate) fn make(backend: BackendKind, left: Left) -> (RestingStore, Acknowledged) {
        RestingStore::make_behind(backend, left, 0)
    }

    /// On a device, an object of `ahead_bytes` lies before all others.
    fn make_behind(backend: BackendKind, left: Left, ahead_bytes: usize) -> (RestingStore, Acknowledged) {
        if backend == BackendKind::Hostfs {
            let dir = tempfile::tempdir().unwrap();
            let options = MkfsOptions { journal_bytes: Some(64 * PAGE), ..MkfsOptions::default() };
            Store::mkfs_dir(dir.path(), &options).unwrap();
            let open = || Store::open_dir(dir.path(), &OpenOptions::default()).unwrap().0;
            let (store, acknowledged) = write_content(&open, 0);
            leave(&store, left);
            drop(store);
            let content = |path: PathBuf| {
                let name = path.strip_prefix(dir.path()).unwrap().to_owned();
                (name, Arc::new(std::fs::read(&path).unwrap()))
            };
            let mut files = files_below(dir.path());
            files.retain(|path| !path.ends_with("reserve"));
            return (RestingStore::Files(files.into_iter().map(content).collect()), acknowledged);
        }
        let device: Arc<dyn Device> = MemoryDevice::new(STORE_BYTES);
        let is_log = backend == BackendKind::Log;
        let options = MkfsOptions {
            backend,
            segment_bytes: is_log.then_some(PIECE_BYTES as u32),
            journal_bytes: (!is_log).then_some(256 * PAGE),
            ..MkfsOptions::default()
        };
        Store::mkfs(&device, &options).unwrap();
        let open = || Store::open(Arc::clone(&device), &OpenOptions::default()).unwrap().0;
        let (store, acknowledged) = write_content(&open, ahead_bytes);
        let before = image_of(device.as_ref());
        leave(&store, left);
        drop(store);
        let image = image_of(device.as_ref());
        let is_marked =
            |piece: &u64| left == Left::Marked && piece_of(&image, *piece) != piece_of(&before, *piece);
        let mark_pieces = (0..STORE_BYTES / PIECE_BYTES).filter(is_marked).collect();
        (RestingStore::Device(image), Acknowledged { mark_pieces, ..acknowledged })
    }

    /// Bytes of the file or device that holds the superblocks.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        match self {
            RestingStore::Device(image) => image.read(at, out),
            RestingStore::Files(files) => {
                let store = &files[std::path::Path::new("store")];
                let there = store.len().saturating_sub(at as usize).min(out.len());
                out.fill(0);
                out[..there].copy_from_slice(&store[at as usize..at as usize + there]);
            }
        }
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        match self {
            RestingStore::Device(image) => image.write(at, bytes),
            RestingStore::Files(files) => {
                let store = Arc::make_mut(files.get_mut(std::path::Path::new("store")).unwrap());
                store.resize(store.len().max(at as usize + bytes.len()), 0);
                store[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    /// Numbers of the pieces of 64 KiB that hold something.
    pub(crate) fn used_pieces(&self) -> Vec<u64> {
        let RestingStore::Device(image) = self else { return Vec::new() };
        let is_used = |number: &u64| piece_of(image, *number).iter().any(|byte| *byte != 0);
        (0..image.size() / PIECE_BYTES).filter(is_used).collect()
    }

    /// Opens a copy of the store, for reading only and on a device then for writing, and compares its content with the
    /// acknowledged one.
    pub(crate) fn judge(&self, acknowledged: &Acknowledged, case: &str) -> StoreVerdict {
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        match self {
            RestingStore::Device(image) => {
                let device = MemoryDevice::from_image(image.clone(), u64::MAX);
                compare(Store::open(Arc::clone(&device), &read_only), acknowledged, case);
                let opened = Store::open(Arc::clone(&device), &OpenOptions::default());
                let verdict = compare(opened, acknowledged, case);
                assert!(device.counters().reads < READS_MAX, "{case}: {:?}", device.counters());
                verdict
            }
            RestingStore::Files(files) => {
                let dir = tempfile::tempdir().unwrap();
                for (name, content) in files {
                    let path = dir.path().join(name);
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    write_sparse(&path, content);
                }
                // An opening for writing would write the reserve of a file system each time.
                compare(Store::open_dir(dir.path(), &read_only), acknowledged, case)
            }
        }
    }
}

/// Outcome of an opening.
#[derive(Debug, Default)]
pub(crate) struct StoreVerdict {
    pub(crate) refused: Option<StoreOpenError>,
    /// Objects and streams that are reported as damaged.
    pub(crate) reported: usize,
}

impl StoreVerdict {
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }
}

/// An error with a sentence, or a store whose acknowledged content reads equal or is reported as damaged.
pub(crate) fn compare(
    opened: Result<(Store, RecoveryReport), StoreOpenError>,
    acknowledged: &Acknowledged,
    case: &str,
) -> StoreVerdict {
    let mut verdict = StoreVerdict::default();
    let (store, report) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            assert!(error.to_string().len() > 20, "{case}: {error}");
            return StoreVerdict { refused: Some(error), ..verdict };
        }
    };
    assert!(report.tail_lost.is_none(), "{case}: {report:?}");
    for (&id, data) in &acknowledged.objects {
        match store.read(ObjectId(id), 0..u64::MAX, IoClass::Foreground).wait() {
            Ok(found) => assert!(found == data, "{case}: object {id} reads wrong bytes; {report:?}"),
            Err(error) => {
                assert!(error.is_corruption() || is_cut(&error), "{case}: object {id}: {error}; {report:?}");
                verdict.reported += 1;
            }
        }
    }
    let mut frames = store.frames(STREAM, FramePos(0)).unwrap_or_else(|error| panic!("{case}: {error}"));
    for frame in &acknowledged.frames {
        match frames.next_frame() {
            Ok(found) => {
                assert!(found.map(|found| found.1).as_ref() == Some(frame), "{case}: a frame; {report:?}");
            }
            Err(error) => {
                assert!(error.is_corruption() || is_cut(&error), "{case}: {error}");
                verdict.reported += 1;
                break;
            }
        }
    }
    verdict
}

/// A read behind the end of the device.
fn is_cut(error: &StoreError) -> bool {
    matches!(error, StoreError::Device(error) if !error.is_passing())
}

#[test]
fn a_sound_store_reads_as_it_was() {
    for backend in BACKENDS {
        for left in [Left::Closed, Left::Marked, Left::Killed] {
            let (resting, acknowledged) = RestingStore::make(backend, left);
            let verdict = resting.judge(&acknowledged, &format!("{backend:?} {left:?}"));
            assert!(!verdict.is_refused() && verdict.reported == 0, "{backend:?} {left:?}: {verdict:?}");
        }
    }
}

#[test]
fn random_bytes_are_no_store() {
    let nothing = Acknowledged::default();
    for seed in 0..4 {
        let mut image = Image::zeroed(STORE_BYTES);
        let random = Random::new(seed).bytes(1 << 20);
        (0..64).for_each(|part| image.write(part << 20, &random));
        let refused = RestingStore::Device(image).judge(&nothing, "random bytes");
        assert!(matches!(refused.refused, Some(StoreOpenError::NotAStore)), "{refused:?}");
    }
    let (resting, acknowledged) = RestingStore::make(BackendKind::Hostfs, Left::Closed);
    let RestingStore::Files(files) = resting else { unreachable!() };
    for name in files.keys() {
        let mut files = files.clone();
        let len = files[name].len();
        files.insert(name.clone(), Arc::new(Random::new(len as u64).bytes(len)));
        RestingStore::Files(files).judge(&acknowledged, &format!("{} random", name.display()));
    }
}

/// One piece of 64 KiB in turn has other bytes: random ones, zeros, or those of another piece.
///
/// Symptom: a store of the `log` backend that was idle opened without its last commits when the header of a segment
/// was lost, or when the segment lay elsewhere.
/// Cause: without a valid header the chain of records ended before the segment.
/// Fix: a record in it, or a later header, shows that it was durable.
#[test]
fn random_lost_and_swapped_pieces_are_reported() {
    for backend in [BackendKind::Cow, BackendKind::Log] {
        for left in [Left::Closed, Left::Marked] {
            let (resting, acknowledged) = RestingStore::make(backend, left);
            let RestingStore::Device(image) = &resting else { unreachable!() };
            let mut used = resting.used_pieces();
            used.retain(|piece| !acknowledged.mark_pieces.contains(piece));
            assert!(used.len() > 30, "{} pieces", used.len());
            let mut verdicts = Vec::new();
            let mut judge = |pieces: &[(u64, &[u8])], case: &str| {
                let mut other = resting.clone();
                pieces.iter().for_each(|(number, content)| other.write(number * PIECE_BYTES, content));
                verdicts.push(other.judge(&acknowledged, &format!("{backend:?} {left:?}, {case}")));
            };
            for &number in &used {
                judge(
                    &[(number, &Random::new(number).bytes(PIECE_BYTES as usize))],
                    &format!("{number} random"),
                );
                judge(&[(number, &[0; PIECE_BYTES as usize])], &format!("{number} lost"));
            }
            let mut random = Random::new(9);
            for _ in 0..SWAPS {
                let (one, two) = (used[random.index(used.len())], used[random.index(used.len())]);
                let swapped = [(one, &*piece_of(image, two)), (two, &*piece_of(image, one))];
                judge(&swapped, &format!("{one} and {two} swapped"));
            }
            let unequal = verdicts.iter().filter(|verdict| verdict.is_refused() || verdict.reported > 0);
            assert!(unequal.count() > 60, "{backend:?} {left:?}: {verdicts:?}");
        }
    }
}

/// Pairs of pieces that are swapped.
const SWAPS: u32 = 150;

/// More than a quarter of the store: of a shorter rest, nothing is opened.
const AHEAD_BYTES: usize = 17 << 20;

/// Distance of the cuts in pieces of 64 KiB in `make test`; `COPAL_CUT_STEP=1` cuts at each of them.
const CUT_STEP: u64 = 7;

/// Symptom: a cut store of the `log` backend that was idle opened without its last commits.
/// Cause: the chain of records ended where the next segment was cut off.
/// Fix: the segments that headers name must be present.
#[test]
fn a_cut_store_is_refused_or_reads_as_it_was() {
    let step = std::env::var("COPAL_CUT_STEP").ok().and_then(|text| text.parse().ok()).unwrap_or(CUT_STEP);
    for backend in [BackendKind::Cow, BackendKind::Log] {
        for left in [Left::Closed, Left::Marked, Left::Killed] {
            let (resting, acknowledged) = RestingStore::make_behind(backend, left, AHEAD_BYTES);
            let RestingStore::Device(image) = resting else { unreachable!() };
            let mut outcomes = [0; 2];
            for part in (0..STORE_BYTES / PIECE_BYTES).step_by(step as usize) {
                let mut cut = image.clone();
                cut.resize(part * PIECE_BYTES);
                let case = format!("{backend:?} {left:?}, cut at piece {part}");
                let verdict = RestingStore::Device(cut).judge(&acknowledged, &case);
                if part * PIECE_BYTES > 1 << 20 {
                    let is_named = |error: &StoreOpenError| matches!(error, StoreOpenError::Truncated { .. });
                    assert!(verdict.refused.as_ref().is_none_or(is_named), "{case}: {verdict:?}");
                }
                outcomes[usize::from(verdict.is_refused())] += 1;
            }
            assert!(outcomes[1] > 0, "{backend:?} {left:?}: {outcomes:?}");
        }
    }
    let (resting, acknowledged) = RestingStore::make(BackendKind::Hostfs, Left::Closed);
    let RestingStore::Files(files) = resting else { unreachable!() };
    for (name, content) in &files {
        for len in (0..content.len()).step_by(1 << 16).take(24) {
            let mut files = files.clone();
            Arc::make_mut(files.get_mut(name).unwrap()).truncate(len);
            let case = format!("{} of {} bytes cut at {len}", name.display(), content.len());
            RestingStore::Files(files).judge(&acknowledged, &case);
        }
    }
}

#[test]
fn swapped_files_are_reported() {
    let (resting, acknowledged) = RestingStore::make(BackendKind::Hostfs, Left::Closed);
    let RestingStore::Files(files) = resting else { unreachable!() };
    let names: Vec<&PathBuf> = files.keys().collect();
    for pair in names.windows(2) {
        let mut swapped = files.clone();
        swapped.insert(pair[0].clone(), files[pair[1]].clone());
        swapped.insert(pair[1].clone(), files[pair[0]].clone());
        let case = format!("{} and {} swapped", pair[0].display(), pair[1].display());
        RestingStore::Files(swapped).judge(&acknowledged, &case);
    }
}
