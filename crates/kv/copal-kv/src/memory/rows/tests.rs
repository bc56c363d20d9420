//! Tests of the row cache: against a model, and in every order that a scheduler finds.

use super::*;
use crate::MemoryBudget;
use std::collections::BTreeMap;

const SPACE: KeyspaceId = KeyspaceId(1);

/// Model of a store around the row cache: versions become visible one after another.
#[derive(Default)]
struct Versions {
    by_key: BTreeMap<Vec<u8>, Vec<(u64, Option<u64>)>>,
}

impl Versions {
    fn put(&mut self, key: &[u8], seq: u64, value: Option<u64>) {
        self.by_key.entry(key.to_vec()).or_default().push((seq, value));
    }

    /// The newest version that a reader at `seq` sees: its sequence and value.
    fn at(&self, key: &[u8], seq: u64) -> Option<(u64, Option<u64>)> {
        let versions = self.by_key.get(key)?;
        versions.iter().rev().find(|(at, _)| *at <= seq).copied()
    }
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

#[test]
fn a_reader_at_any_sequence_is_answered_like_a_map() {
    let budget = MemoryBudget::new(4 << 20);
    let rows = RowCache::new(&budget);
    let space = rows.space(SPACE);
    let mut versions = Versions::default();
    let (mut random, mut visible, mut hits) = (copal_testkit::Random::new(1), 0u64, 0);
    let mut below = |bound| random.below(bound);
    for round in 0..100_000u64 {
        let key = SPACE.key(&[below(40) as u8]);
        match below(20) {
            0 => {
                visible += 1;
                rows.wrote(&key, visible);
                versions.put(&key, visible, (below(4) > 0).then_some(round));
            }
            1 if round % 100 == 1 => {
                visible += 1;
                let to = SPACE.key(&[key[4] + 5]);
                rows.wrote_range(&key, &to, visible);
                for hidden in key[4]..key[4] + 5 {
                    versions.put(&SPACE.key(&[hidden]), visible, None);
                }
            }
            _ => {
                // A look-up at the newest sequence, or at that of an old snapshot.
                let seq = visible - below(4).min(visible);
                let truth = versions.at(&key, seq);
                if let Some(row) = rows.get(&space, &key, seq) {
                    hits += 1;
                    assert_eq!(Some(number(&row)), truth.and_then(|(_, value)| value), "at {seq}");
                } else if let Some((found, Some(value))) = truth {
                    rows.insert(&space, &key, &value.to_le_bytes(), found, seq);
                }
            }
        }
    }
    assert!(hits > 30_000, "{hits} of about 90000 look-ups were answered by rows");
}

#[test]
fn a_row_neither_keeps_the_block_it_came_from_nor_is_large() {
    let budget = MemoryBudget::new(4 << 20);
    let rows = RowCache::new(&budget);
    let space = rows.space(SPACE);
    let (small, large) = (SPACE.key(b"small"), SPACE.key(b"large"));
    let block = Bytes::from(vec![1; 4096]);
    rows.insert(&space, &small, &block.slice(10..20), 1, 1);
    rows.insert(&space, &large, &vec![1; MAX_ROW_BYTES + 1], 1, 1);
    assert!(block.is_unique(), "the row is a copy");
    assert_eq!(rows.get(&space, &small, 1).unwrap().len(), 10);
    assert!(rows.get(&space, &large, 1).is_none());
}

/// The same code under a scheduler that tries thread orders: rows and shards use its locks.
mod orders {
    use super::*;
    use shuttle::{
        sync::{Mutex as Lock, atomic::AtomicU64},
        thread,
    };

    impl RowGuard for Lock<RowShard> {
        fn with<R>(&self, run: impl FnOnce(&mut RowShard) -> R) -> R {
            run(&mut self.lock().unwrap())
        }
    }

    #[derive(Default)]
    struct Map(Lock<BTreeMap<Vec<u8>, CachedRow>>);

    impl RowShelf for Map {
        fn get(&self, key: &[u8]) -> Option<CachedRow> {
            self.0.lock().unwrap().get(key).cloned()
        }
        fn put(&self, key: &[u8], value: &[u8], seq: u64, read_at: u64) {
            let value = Bytes::copy_from_slice(value);
            let row = CachedRow { value, seq, read_at };
            self.0.lock().unwrap().insert(key.to_vec(), row);
        }
        fn remove(&self, key: &[u8]) {
            self.0.lock().unwrap().remove(key);
        }
    }

    type Checked = RowCache<Map, Lock<RowShard>>;

    /// Newest versions and the visible sequence, as commits publish them.
    struct World {
        rows: Checked,
        space: Arc<RowEpoch>,
        versions: Lock<Versions>,
        visible: AtomicU64,
    }

    impl World {
        fn new() -> Arc<World> {
            let rows = Checked::on(Map::default());
            let space = rows.space(SPACE);
            let mut versions = Versions::default();
            versions.put(&SPACE.key(b"k"), 1, Some(1));
            Arc::new(World { rows, space, versions: Lock::new(versions), visible: AtomicU64::new(1) })
        }

        /// A write, or a range deletion, in the order of a commit.
        fn write(&self, seq: u64, value: Option<u64>) {
            let key = SPACE.key(b"k");
            match value {
                Some(_) => self.rows.wrote(&key, seq),
                None => self.rows.wrote_range(&key, &SPACE.key(b"l"), seq),
            }
            self.versions.lock().unwrap().put(&key, seq, value);
            self.visible.store(seq, SeqCst);
        }

        fn read(&self, behind: u64) {
            let key = SPACE.key(b"k");
            let seq = self.visible.load(SeqCst).saturating_sub(behind).max(1);
            let row = self.rows.get(&self.space, &key, seq);
            let truth = self.versions.lock().unwrap().at(&key, seq);
            if let Some(row) = row {
                let value = truth.and_then(|(_, value)| value);
                assert_eq!(Some(number(&row)), value, "a reader at {seq}");
            } else if let Some((found, Some(value))) = truth {
                self.rows.insert(&self.space, &key, &value.to_le_bytes(), found, seq);
            }
        }
    }

    #[test]
    fn no_order_of_reads_and_writes_shows_an_old_row() {
        let run = || {
            let world = World::new();
            let reader = |behind: u64| {
                let world = world.clone();
                thread::spawn(move || (0..3).for_each(|_| world.read(behind)))
            };
            let readers = [reader(0), reader(0), reader(1)];
            let writer = {
                let world = world.clone();
                thread::spawn(move || {
                    world.write(2, Some(2));
                    world.write(3, None);
                    world.write(4, Some(4));
                })
            };
            writer.join().unwrap();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            // Once more without other threads: the last inserted row must be correct.
            world.read(0);
            world.read(0);
        };
        shuttle::check_random(run, 3000);
        shuttle::check_pct(run, 3000, 3);
    }
}
