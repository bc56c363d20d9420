//! A detector against its twin in memory, under random batches, restarts and damage.

use super::*;
use crate::detect::slice::slice_bytes;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const BITS: u8 = 1;
const UNIVERSE: u64 = 40;

type Requests = Vec<(BatchHeader, Vec<ShortId>)>;

/// The rules of a detector, without files.
struct Twin {
    popular_millionths: u64,
    slice_bytes: usize,
    spools: HashMap<u32, Requests>,
    candidates: HashMap<u32, BTreeMap<ShortId, Vec<u32>>>,
    grants: HashMap<ShortId, (u32, Instant)>,
    /// Popular and known ids of each compared partition.
    tallies: HashMap<u32, (u64, u64)>,
}

impl Twin {
    fn compare(&mut self, partition: u32, now: Instant, log: &Log) -> Replies {
        let requests = self.spools.remove(&partition).unwrap_or_default();
        if requests.is_empty() {
            return Vec::new();
        }
        let stored = self.stored(partition, log);
        self.grants.retain(|_, (_, at)| now - *at < Duration::from_secs(600));
        let mut replies = Vec::new();
        let mut rest = requests.as_slice();
        while !rest.is_empty() {
            let bytes =
                |batches: usize| slice_bytes(batches, rest[..batches].iter().map(|(_, ids)| ids.len()).sum());
            let batches = (2..=rest.len()).take_while(|&batches| bytes(batches) <= self.slice_bytes).last();
            let (slice, behind) = rest.split_at(batches.unwrap_or(1));
            replies.extend(self.compare_slice(partition, now, &stored, slice));
            rest = behind;
        }
        replies
    }

    fn stored(&mut self, partition: u32, log: &Log) -> BTreeMap<ShortId, Answer> {
        let mut stored = BTreeMap::new();
        for pack in &log.0 {
            for (slot, id) in pack.ids.iter().enumerate() {
                self.grants.remove(id);
                if id[0] >> 7 == partition as u8 {
                    let answer = stored.entry(*id).or_insert(A::CARRY);
                    if pack.is_checked && *answer == A::CARRY {
                        *answer = A::hit(pack.first_ordinal + slot as u32).unwrap();
                    }
                }
            }
        }
        stored
    }

    fn compare_slice(
        &mut self,
        partition: u32,
        now: Instant,
        stored: &BTreeMap<ShortId, Answer>,
        slice: &[(BatchHeader, Vec<ShortId>)],
    ) -> Replies {
        let candidates = self.candidates.entry(partition).or_default();
        candidates.retain(|id, _| !stored.contains_key(id));
        let mut asking: BTreeMap<ShortId, (u32, BTreeSet<u32>)> = BTreeMap::new();
        for (header, ids) in slice {
            for id in ids.iter().filter(|id| !stored.contains_key(*id)) {
                let (_, vms) = asking.entry(*id).or_insert((header.vm, BTreeSet::new()));
                vms.insert(header.vm);
            }
        }
        let mut wanted = Vec::new();
        for (id, (first, vms)) in &asking {
            let asked = candidates.entry(*id).or_default();
            let fresh: Vec<u32> = vms.iter().copied().filter(|vm| !asked.contains(vm)).collect();
            wanted.push((Reverse(asked.len() + fresh.len()), *id, *first));
            asked.extend(fresh);
            asked.truncate(3);
        }
        wanted.retain(|(_, id, _)| !self.grants.contains_key(id));
        wanted.sort();
        let known = (stored.len() + candidates.len()) as u64;
        let granted = self.grants.keys().filter(|id| id[0] >> 7 == partition as u8).count();
        let mut popular = (stored.len() + granted) as u64;
        let others = self.tallies.iter().filter(|(other, _)| **other != partition);
        let (others_popular, others_known) = others.fold((0, 0), |(a, b), (_, (c, d))| (a + c, b + d));
        let allowed = (known + others_known) * self.popular_millionths;
        let mean = (known * self.popular_millionths) as f64 / 1e6;
        let mut refused = BTreeSet::new();
        for (Reverse(vms), id, first) in wanted {
            let all = popular + others_popular;
            let is_of_all = self.popular_millionths >= 1_000_000;
            let threshold = if is_of_all || all * 2_000_000 < allowed { 2 } else { 3 };
            let is_fair = popular as f64 <= mean + 3.0 * mean.sqrt();
            if vms >= threshold && (all + 1) * 1_000_000 <= allowed && is_fair {
                self.grants.insert(id, (first, now));
                popular += 1;
            } else if vms > 1 {
                refused.insert(id);
            }
        }
        self.tallies.insert(partition, (popular, known));
        let answer = |vm: u32, id: &ShortId| match (stored.get(id), self.grants.get(id)) {
            (Some(answer), _) => *answer,
            (None, Some((holder, _))) if *holder == vm => A::STORE_POPULAR,
            (None, Some(_)) => A::CARRY,
            (None, None) if refused.contains(id) => A::FRACTION_USED,
            (None, None) => A::NEW,
        };
        let answers = slice.iter().map(|(header, ids)| {
            let answers = ids.iter().map(|id| answer(header.vm, id)).collect();
            (*header, answers)
        });
        answers.collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        vm: u32,
        numbers: Vec<u64>,
    },
    Compare(u32),
    /// A VM stores these; or a second agent has checked them.
    Pack {
        first_ordinal: u32,
        numbers: Vec<u64>,
        is_checked: bool,
    },
    Advance(u64),
    Restart,
    Damage {
        candidates: bool,
        partition: u32,
        at: u32,
        cut: bool,
    },
    Delete {
        candidates: bool,
        partition: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let numbers = || proptest::collection::vec(0..UNIVERSE, 1..20);
    let partition = || 0_u32..2;
    prop_oneof![
        8 => (0_u32..6, numbers()).prop_map(|(vm, numbers)| Step::Take { vm, numbers }),
        6 => partition().prop_map(Step::Compare),
        2 => (0_u32..1000, proptest::collection::vec(0..UNIVERSE, 1..5), any::<bool>()).prop_map(
            |(first_ordinal, numbers, is_checked)| Step::Pack { first_ordinal, numbers, is_checked }
        ),
        1 => (0_u64..700).prop_map(Step::Advance),
        1 => Just(Step::Restart),
        1 => (any::<bool>(), partition(), any::<u32>(), any::<bool>()).prop_map(
            |(candidates, partition, at, cut)| Step::Damage { candidates, partition, at, cut }
        ),
        1 => (any::<bool>(), partition()).prop_map(|(candidates, partition)| Step::Delete { candidates, partition }),
    ]
}

/// A detector, its twin, and the log that both read.
struct Pair {
    home: TempDir,
    detector: Detector,
    twin: Twin,
    log: Log,
    now: Instant,
    batches: u64,
    limits: DetectLimits,
    popular_millionths: u32,
}

impl Pair {
    fn new(popular_millionths: u32, limits: DetectLimits) -> Pair {
        let home = tempfile::tempdir().unwrap();
        let detector = Detector::open_limited(home.path(), BITS, popular_millionths, limits).unwrap();
        let twin = Twin {
            popular_millionths: popular_millionths.into(),
            slice_bytes: limits.slice_bytes() as usize,
            spools: HashMap::new(),
            candidates: HashMap::new(),
            grants: HashMap::new(),
            tallies: HashMap::new(),
        };
        Pair {
            home,
            detector,
            twin,
            log: Log::default(),
            now: Instant::now(),
            batches: 0,
            limits,
            popular_millionths,
        }
    }

    fn take(&mut self, vm: u32, asked: &[ShortId]) {
        for partition in 0..2 {
            let ids: Vec<ShortId> =
                asked.iter().copied().filter(|id| u32::from(id[0] >> 7) == partition).collect();
            for ids in ids.chunks(MAX_BATCH_IDS) {
                self.batches += 1;
                let header = batch(vm, self.batches, partition);
                self.detector.take(&header, ids).unwrap();
                self.twin.spools.entry(partition).or_default().push((header, ids.to_vec()));
            }
        }
    }

    /// Compares a partition in both; returns in how many slices.
    fn compare(&mut self, partition: u32) -> u64 {
        let (replies, compared) = compare(&self.detector, partition, self.now, &self.log);
        let expected = self.twin.compare(partition, self.now, &self.log);
        assert_eq!(replies.len(), expected.len());
        for (reply, expected) in replies.iter().zip(&expected) {
            assert_eq!(reply, expected);
        }
        compared.slices
    }

    fn path(&self, candidates: bool, partition: u32) -> PathBuf {
        let prefix = if candidates { "candidates" } else { "popular" };
        self.home.path().join(format!("{prefix}.{BITS}.{partition:04x}"))
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Take { vm, numbers } => self.take(vm, &numbers.into_iter().map(id).collect::<Vec<_>>()),
            Step::Compare(partition) => assert!(self.compare(partition) < 2),
            Step::Pack { first_ordinal, numbers, is_checked } => {
                let ids = numbers.into_iter().map(id).collect();
                self.log.append(first_ordinal, ids, is_checked);
            }
            Step::Advance(seconds) => self.now += Duration::from_secs(seconds),
            Step::Restart => {
                let (bits, part) = (BITS, self.popular_millionths);
                self.detector = Detector::open_limited(self.home.path(), bits, part, self.limits).unwrap();
                self.twin.grants.clear();
                self.twin.tallies.clear();
            }
            Step::Damage { candidates, partition, at, cut } => {
                let path = self.path(candidates, partition);
                let Ok(mut bytes) = fs::read(&path) else { return };
                // It may have been truncated to nothing before.
                let Some(at) = (at as usize).checked_rem(bytes.len()) else {
                    return;
                };
                if cut {
                    bytes.truncate(at);
                } else {
                    bytes[at] ^= 0x10;
                }
                fs::write(path, bytes).unwrap();
                if candidates {
                    self.twin.candidates.remove(&partition);
                }
            }
            Step::Delete { candidates, partition } => {
                let _ = fs::remove_file(self.path(candidates, partition));
                if candidates {
                    self.twin.candidates.remove(&partition);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn a_detector_answers_as_its_twin(
        popular_millionths in prop_oneof![Just(300_000_u32), Just(1_000_000), Just(100_000)],
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut pair = Pair::new(popular_millionths, DetectLimits::default());
        steps.into_iter().for_each(|step| pair.run(step));
        (0..2).for_each(|partition| assert!(pair.compare(partition) < 2));
    }
}

/// Requests of several slices, index rows of several merges.
#[test]
fn slices_and_merges_in_pieces_answer_as_the_twin() {
    let limits = DetectLimits { memory_bytes: 2 << 20, ..DetectLimits::default() };
    let mut pair = Pair::new(40_000, limits);
    for job in 0..3 {
        for vm in 0..6 {
            let own = 1_000_000 * (u64::from(vm) + 1) + job * 10_000;
            pair.take(vm, &[ids(0..4_000), ids(own..own + 10_000)].concat());
        }
        let slices: u64 = (0..2).map(|partition| pair.compare(partition)).sum();
        assert!(slices > 3, "{slices}");
        let from = job * 6_000;
        pair.log.append(from as u32, ids(from..from + 6_000), job != 1);
        pair.now += Duration::from_secs(400);
    }
}
