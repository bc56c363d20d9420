//! Dump: structures, objects and streams as items; damage is an item, and no bytes make it panic.

use crate::{
    basics::{bytes, commit, open, plain},
    conformance::{Backend, in_a_directory, in_memory, in_segments},
    scrub::{MAKES, fill, flip, image},
};
use copal_device::{Device, Image, MemoryDevice};
use copal_object::*;
use std::sync::Arc;

fn number(item: &DumpItem, name: &str) -> u64 {
    match item.fields.iter().find(|(field, _)| *field == name) {
        Some((_, DumpField::Number(number))) => *number,
        other => panic!("{name} of {item:?}: {other:?}"),
    }
}

fn items(show: impl FnOnce(&mut DumpSink<'_>)) -> Vec<DumpItem> {
    let mut items = Vec::new();
    show(&mut |item| {
        // Each has a line.
        assert!(!item.line(false).is_empty() && !item.line(true).contains('\n'));
        items.push(item);
        true
    });
    items
}

fn outline(dump: &StoreDump) -> Vec<DumpItem> {
    items(|sink| dump.outline(sink).unwrap())
}

fn of_object(store: &Store, id: u64) -> Vec<DumpItem> {
    items(|sink| store.dump_object(ObjectId(id), sink).unwrap())
}

fn of_kind<'a>(items: &'a [DumpItem], kind: &str) -> Vec<&'a DumpItem> {
    items.iter().filter(|item| item.kind == kind).collect()
}

fn dump_of(backend: &Backend) -> StoreDump {
    match backend {
        Backend::Memory(device) | Backend::Inline(device) => StoreDump::on(Arc::clone(device)),
        Backend::Directory(dir) => StoreDump::in_dir(dir.path()).unwrap(),
    }
}

#[test]
fn the_outline_shows_what_an_opening_reads() {
    for make in MAKES {
        let (backend, store) = make();
        fill(&store);
        store.checkpoint().unwrap();
        let id = ObjectId(90);
        commit(&store, vec![Op::Create { id, opts: plain(ReadCheck::Pages) }]);
        commit(&store, vec![Op::Append { id, at: 0, data: bytes(9000, 1) }, Op::Seal { id }]);
        commit(&store, vec![Op::Delete { id }]);
        store.append_frame(ObjectId(7), bytes(100, 1), None, Ack::Durable).wait().unwrap();
        drop(store);
        let shown = outline(&dump_of(&backend));
        assert_eq!(of_kind(&shown, "damage"), Vec::<&DumpItem>::new());
        let copies = of_kind(&shown, "superblock");
        assert_eq!(copies.len(), 4);
        assert!(!copies.iter().any(|copy| copy.is_damage()));
        let checkpoint = of_kind(&shown, "checkpoint")[0];
        assert_eq!(number(checkpoint, "objects"), 6);
        assert_eq!(number(checkpoint, "streams"), 2);
        for kind in ["create", "map", "length", "seal", "delete"] {
            assert!(!of_kind(&shown, kind).is_empty(), "{kind}: {shown:?}");
        }
        let records = of_kind(&shown, "record");
        let numbers: Vec<u64> = records.iter().map(|record| number(record, "record")).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
        assert_eq!(number(of_kind(&shown, "journal")[0], "records"), numbers.len() as u64);
        let report = match &backend {
            Backend::Memory(device) | Backend::Inline(device) => {
                Store::open(Arc::clone(device), &OpenOptions::default()).unwrap().1
            }
            Backend::Directory(dir) => Store::open_dir(dir.path(), &OpenOptions::default()).unwrap().1,
        };
        assert_eq!(report.records_replayed, numbers.len() as u64);
    }
}

#[test]
fn an_object_shows_its_extents_and_the_sum_of_each_unit() {
    for make in [in_memory, in_segments] {
        let (backend, store) = make();
        fill(&store);
        store.close().unwrap();
        let Backend::Memory(device) = &backend else { panic!() };
        for id in 1..7 {
            let shown = of_object(&store, id);
            let head = &shown[0];
            let (unit, pages) = (number(head, "pages_per_sum"), number(head, "pages"));
            let extents = of_kind(&shown, "extent");
            assert_eq!(extents.iter().map(|extent| number(extent, "pages")).sum::<u64>(), pages);
            let stat = store.stat(ObjectId(id)).unwrap();
            assert_eq!((number(head, "bytes"), pages * 4096), (stat.len, stat.allocated_bytes));
            let place = |page: u64| {
                let within = |extent: &&&DumpItem| {
                    let at = number(extent, "at_page");
                    (at..at + number(extent, "pages")).contains(&page)
                };
                let extent = extents.iter().find(within).unwrap();
                number(extent, "page") + (page - number(extent, "at_page"))
            };
            let sums = of_kind(&shown, "sum");
            assert!(sums.len() as u64 + 25 >= stat.len.div_ceil(4096 * unit), "{} sums", sums.len());
            for sum in sums {
                let (at, pages) = (number(sum, "at_page"), number(sum, "pages"));
                assert!(pages <= unit);
                let read = |page| {
                    let buf = copal_device::AlignedBuf::zeroed(4096);
                    device.read_now(place(page) * 4096, buf).unwrap()
                };
                let hash = |page| xxhash_rust::xxh3::xxh3_64(&read(page)).to_le_bytes();
                let all = (at..at + pages).fold(0, |before, page| copal_codec::crc32c(before, &hash(page)));
                let text = DumpField::Text(format!("{all:08x}"));
                assert!(sum.fields.contains(&("sum", text)), "object {id}: {sum:?}");
            }
        }
    }
}

#[test]
fn a_stream_shows_the_place_number_and_length_of_each_frame() {
    for make in [in_memory, in_segments, in_a_directory] {
        let (_backend, store) = make();
        fill(&store);
        for (id, trimmed) in [(7, 0), (8, 20)] {
            let shown = of_object(&store, id);
            assert_eq!(of_kind(&shown, "damage"), Vec::<&DumpItem>::new());
            assert_eq!(number(&shown[0], "next_frame"), 60);
            assert_eq!(number(&shown[0], "first_kept"), trimmed);
            let frames = of_kind(&shown, "frame");
            let kept: Vec<_> = frames.iter().filter(|frame| number(frame, "frame") >= trimmed).collect();
            let lengths: Vec<u64> = kept.iter().map(|frame| number(frame, "bytes")).collect();
            assert_eq!(lengths, (trimmed..60).map(|frame| frame * 977 % 40_000).collect::<Vec<_>>());
            assert!(kept.iter().all(|frame| number(frame, "page") > 0));
        }
    }
}

#[test]
fn a_sink_ends_the_dump() {
    let (backend, store) = in_memory();
    fill(&store);
    let dump = dump_of(&backend);
    for most in 1..40 {
        for show in [true, false] {
            let mut left = most;
            let mut sink = |_: DumpItem| {
                left -= 1;
                left > 0
            };
            match show {
                true => dump.outline(&mut sink).unwrap(),
                false => store.dump_object(ObjectId(7), &mut sink).unwrap(),
            }
            assert_eq!(left, 0, "{most} items");
        }
    }
    assert!(matches!(store.dump_object(ObjectId(99), &mut |_| true), Err(StoreError::NotFound(_))));
}

/// A damaged byte is shown where it lies: in a copy of the superblock, a record, a frame, the sums of an object.
#[test]
fn damage_is_shown_in_its_place() {
    for backend in [BackendKind::Cow, BackendKind::Log] {
        let good = image(backend);
        let damaged = |at: u64| {
            let mut image = good.clone();
            flip(&mut image, at);
            MemoryDevice::from_image(image, u64::MAX)
        };
        let shown = outline(&StoreDump::on(damaged((1 << 20) + 99)));
        let copies = of_kind(&shown, "superblock");
        let bad: Vec<bool> = copies.iter().map(|copy| copy.is_damage()).collect();
        assert_eq!(bad, [false, true, false, false]);
        // A copy of the checkpoint, and both.
        let whole = outline(&StoreDump::on(MemoryDevice::from_image(good.clone(), u64::MAX)));
        let newest =
            of_kind(&whole, "superblock").into_iter().max_by_key(|copy| number(copy, "generation")).unwrap();
        let at = number(newest, "checkpoint_page") * 4096 + 100;
        assert_eq!(of_kind(&outline(&StoreDump::on(damaged(at))), "damage").len(), 1);
        let mut both = good.clone();
        flip(&mut both, at);
        flip(&mut both, number(newest, "checkpoint_copy_page") * 4096 + 100);
        let shown = outline(&StoreDump::on(MemoryDevice::from_image(both, u64::MAX)));
        assert_eq!(of_kind(&shown, "damage").len(), 1, "{shown:?}");
        assert!(of_kind(&shown, "checkpoint").is_empty());
        // A frame in the middle of a stream: the others are shown.
        let options = OpenOptions { read_only: true, salvage: true, ..OpenOptions::default() };
        let open = |device| Store::open(device, &options).unwrap().0;
        let store = open(MemoryDevice::from_image(good.clone(), u64::MAX));
        let frames = of_object(&store, 7);
        let frames = of_kind(&frames, "frame");
        let frame = frames.iter().find(|frame| number(frame, "frame") == 30).unwrap();
        let shown = of_object(&open(damaged(number(frame, "page") * 4096 + 80)), 7);
        assert_eq!(of_kind(&shown, "frame").len(), 59);
        let damage = of_kind(&shown, "damage");
        assert_eq!(damage.iter().map(|damage| number(damage, "frame")).collect::<Vec<_>>(), [30]);
        // The sums of a published object.
        let shown = of_object(&store, 4);
        let last = of_kind(&shown, "extent").pop().unwrap();
        let at = (number(last, "page") + number(last, "pages") - 1) * 4096;
        assert_eq!(of_kind(&of_object(&open(damaged(at)), 4), "damage").len(), 1);
    }
}

/// Images that are cut, empty, of another program, or of random bytes: an error or items, never a panic.
#[test]
fn no_image_makes_a_dump_panic() {
    let mut random = copal_testkit::Random::new(5);
    for backend in [BackendKind::Cow, BackendKind::Log] {
        let good = image(backend);
        let look = |image: Image| {
            let device: Arc<dyn Device> = MemoryDevice::from_image(image, u64::MAX);
            let mut count = 0;
            let _ = StoreDump::on(Arc::clone(&device)).outline(&mut |_| {
                count += 1;
                count < 10_000
            });
            let options = OpenOptions { read_only: true, salvage: true, ..OpenOptions::default() };
            if let Ok((store, _)) = Store::open(device, &options) {
                for id in 0..9 {
                    let _ = store.dump_object(ObjectId(id), &mut |_| true);
                }
            }
        };
        for bytes in (0..64 << 20).step_by(1 << 20) {
            let mut cut = good.clone();
            cut.resize(bytes);
            look(cut);
        }
        for _ in 0..40 {
            let mut image = good.clone();
            for _ in 0..20 {
                let at = random.below(12 << 20) / 512 * 512;
                let garbage = random.bytes(512);
                image.write(at, &garbage);
            }
            look(image);
        }
    }
}

#[test]
fn a_newer_version_is_refused_by_name() {
    let (backend, store) = in_memory();
    store.close().unwrap();
    drop(store);
    let Backend::Memory(device) = &backend else { panic!() };
    let mut image = Image::zeroed(64 << 20);
    for at in [0, 1 << 20, 32 << 20, 48 << 20] {
        let mut copy = device.read_now(at, copal_device::AlignedBuf::zeroed(4096)).unwrap();
        // The version; then the checksum over envelope and body, which stands after it.
        copy[8] = 200;
        copy[24..28].fill(0);
        let sum = copal_codec::crc32c(0, &copy[..32 + 152]).to_le_bytes();
        copy[24..28].copy_from_slice(&sum);
        image.write(at, &copy);
    }
    let dump = StoreDump::on(MemoryDevice::from_image(image, u64::MAX));
    let mut copies = 0;
    let refused = dump.outline(&mut |item| {
        copies += u64::from(item.is_damage());
        true
    });
    assert!(matches!(refused, Err(StoreOpenError::Version { .. })), "{refused:?}");
    assert_eq!(copies, 4);
    let dump = StoreDump::on(MemoryDevice::new(64 << 20));
    assert!(matches!(dump.outline(&mut |_| true), Err(StoreOpenError::NotAStore)));
    drop(open(device));
}
