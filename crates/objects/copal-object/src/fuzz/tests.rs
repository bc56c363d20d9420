//! Short seeded runs of the fuzz targets, among the tests.

use super::*;
use crate::{
    ObjectLifetime,
    format::moved_part::MovedPart,
    format::ops::{DurableFrames, StreamCut, StreamFrames, TailCut},
    tables::TableEntry,
};

/// Operations that often fit the small store.
struct Operations(copal_testkit::Random);

impl Operations {
    fn of(seed: u64) -> Operations {
        Operations(copal_testkit::Random::new(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    /// Mostly a number that fits the small store, sometimes one from an edge.
    fn number(&mut self, fitting: u64) -> u64 {
        const EDGES: [u64; 10] = [
            0,
            1,
            u32::MAX as u64,
            1 << 32,
            (1 << 48) - 1,
            1 << 48,
            1 << 52,
            1 << 60,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.below(17) {
            0 => EDGES[self.below(EDGES.len() as u64) as usize],
            _ => self.below(fitting),
        }
    }

    fn id(&mut self) -> u64 {
        self.number(7)
    }

    fn run(&mut self) -> PageRun {
        let pages = match self.below(32) {
            0 => u32::MAX,
            _ => 1 + self.below(70) as u32,
        };
        PageRun::new(self.number(11_000).saturating_add(5100), pages)
    }

    fn rule(&mut self) -> SumRule {
        [SumRule::Crc32c, SumRule::Hashes][self.below(2) as usize]
    }

    fn what(&mut self) -> ObjectTraits {
        ObjectTraits {
            kind: [ObjectKind::Plain, ObjectKind::Sealed, ObjectKind::Stream][self.below(3) as usize],
            lifetime: ObjectLifetime::Short,
            check: [ReadCheck::Pages, ReadCheck::Caller][self.below(2) as usize],
            sums: self.rule(),
            expected_log2: 0,
            label: [0; 16],
        }
    }

    fn op(&mut self) -> RecordOp {
        let id = self.id();
        match self.below(20) {
            0 => RecordOp::Create { id, what: self.what() },
            1 => {
                let run = self.run();
                let unit = [1, 16][self.below(2) as usize];
                let sums = run.pages.min(200).div_ceil(unit);
                RecordOp::Map {
                    id,
                    at: self.number(80),
                    run,
                    epoch: 0,
                    rule: self.rule(),
                    sums: (0..sums).collect(),
                }
            }
            2 => {
                let runs: Vec<PageRun> = (0..self.below(3)).map(|_| self.run()).collect();
                let data = pages_of(&runs).saturating_sub(1);
                RecordOp::Publish {
                    id,
                    what: self.what(),
                    len: data * PAGE_BYTES as u64,
                    runs,
                    trailer: 1,
                    epoch: 1,
                }
            }
            3 => RecordOp::Unmap { id, at: self.number(80), pages: self.number(80) },
            4 => RecordOp::Resum { id, at: self.number(50), pages: self.number(17) as u32, sum: 4 },
            5 => RecordOp::Length { id, len: self.number(200_000) },
            6 => RecordOp::Clone { from: id, to: self.id() },
            7 => RecordOp::Seal { id },
            8 => RecordOp::Delete { id },
            9 => RecordOp::StreamExtent { id, run: self.run(), first: self.number(60), incarnation: 3 },
            10 => RecordOp::StreamTrim { id, upto: self.number(60) },
            11 => RecordOp::Dep { id, frame: self.number(60) },
            12 => RecordOp::Durable { streams: vec![(id, self.number(60))] },
            13 => RecordOp::Mount {
                mount: 5,
                cuts: vec![StreamCut {
                    id,
                    piece: self.number(4) as u32,
                    kept: self.number(300) as u32,
                    next: self.number(60),
                    incarnation: 6,
                }],
            },
            14 => {
                let last = (self.below(2) == 0).then(|| self.number(300) as u32);
                let durable = DurableFrames { next: self.number(60), last };
                let pages_max = self.number(300) as u32;
                RecordOp::Frames { streams: vec![StreamFrames { id, durable, pages_max }] }
            }
            15 => {
                let (at, from) = (self.number(50), self.run());
                let part = MovedPart { id, at, from, offset: self.number(3) as u32 };
                let (to, second) = (self.run(), MovedPart { id: self.id(), ..part });
                RecordOp::Move { to, sum: 7, epoch: 1, parts: vec![part, second] }
            }
            17 => {
                let run = PageRun::new(self.number(11_000), 1 + self.below(2) as u32);
                let len = if self.below(8) == 0 { 100 } else { run.pages as usize * PAGE_BYTES };
                RecordOp::Inline { run, bytes: Bytes::from(vec![9; len]) }
            }
            18 => RecordOp::InlinePlaced { upto: self.number(9) },
            16 => RecordOp::StreamTruncate {
                id,
                cut: TailCut {
                    from: self.number(60),
                    kept: self.number(300) as u32,
                    used: self.number(300) as u32,
                    incarnation: 7,
                },
            },
            _ => RecordOp::Grow { pages: self.number(40_000) },
        }
    }

    /// Seeded bytes, mostly small numbers, so that counts and lengths are often plausible.
    fn bytes(&mut self) -> Vec<u8> {
        let len = self.below(600);
        let byte = |word: u64| {
            if word & 0x300 == 0 { word as u8 } else { (word % 5) as u8 }
        };
        (0..len).map(|_| byte(self.next())).collect()
    }
}

#[test]
fn no_decoder_panics_on_any_bytes() {
    for (_, decode) in DECODERS {
        (0..4000).for_each(|seed| decode(&Operations::of(seed).bytes()));
    }
}

/// Pages that entries own, shared ones once.
fn owned_pages(tables: &ObjectTables) -> u64 {
    let mut pages = std::collections::HashSet::new();
    for (_, entry) in tables.entries.iter() {
        let runs: Vec<PageRun> = match entry {
            TableEntry::Object(object) => object.map.iter().map(|extent| extent.run).collect(),
            TableEntry::Stream(stream) => stream.pieces.iter().map(|piece| piece.run).collect(),
        };
        runs.iter().for_each(|run| pages.extend(run.at..run.end()));
    }
    pages.len() as u64
}

/// Histories of decodable operations, with numbers from the edges and single flipped bytes. Each is refused,
/// or leaves a store whose every page is free or owned.
#[test]
fn operations_that_decode_fit_or_are_refused() {
    let mut accepted = 0;
    for seed in 0..20_000 {
        let mut random = Operations::of(seed);
        let mut bytes = Vec::new();
        (0..1 + random.below(6)).for_each(|_| random.op().encode(&mut bytes));
        if random.below(4) == 0 {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        if let Some(derived) = replay(&bytes) {
            accepted += 1;
            let owned = STORE_PAGES + owned_pages(&derived.tables);
            assert_eq!(derived.free_pages + owned, derived.tables.pages, "seed {seed}");
        }
    }
    assert!(accepted > 1000, "only {accepted} histories fit");
}

/// The same in the first record of a store in segments, whose pages may also be those of heads and headers.
#[test]
fn operations_of_a_group_fit_or_are_refused() {
    let mut accepted = 0;
    for seed in 0..1500 {
        let mut random = Operations::of(seed);
        let mut bytes = vec![random.next() as u8];
        RecordOp::Create { id: 1, what: random.what() }.encode(&mut bytes);
        (0..random.below(4)).for_each(|_| random.op().encode(&mut bytes));
        accepted += u32::from(segments::open_with_operations(&bytes));
    }
    assert!(accepted > 100, "only {accepted} records count");
}

/// The stores that the last decoders damage: without damage all of them is there.
#[test]
fn the_whole_store_is_whole() {
    let (image, used) = whole_store();
    assert!((20..250).contains(&used.len()), "{} pages", used.len());
    let device = MemoryDevice::from_image(image.clone(), u64::MAX);
    let (store, _) = Store::open(device, &OpenOptions::default()).unwrap();
    assert_eq!(store.list(ObjectId(0), 9).len(), 3);
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().is_clean());
    let mut changed = 0;
    for page in 0..=255 {
        let (other, mut was, mut is) = (overwritten(whole_store(), &[page, 9, 0, 77]), [0], [0]);
        for at in used {
            image.read(at + 9, &mut was);
            other.read(at + 9, &mut is);
            changed += usize::from(was != is);
        }
    }
    assert!(changed > 200, "{changed}");
}
