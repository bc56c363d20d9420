//! Model check of the unit swap, under a scheduler that tries many thread orders.
//!
//! The slot is the engine's own source, compiled a second time with the scheduler's locks in place of
//! `arc_swap`. This replacement keeps the two properties that the slot relies on: a reader takes a reference
//! to the cell's contents at one moment, and a swap returns the previous contents.
//!
//! The check covers the assumption of [`super::adjust`]: units that a swap took out are freed when it
//! returns. So other threads can charge the returned bytes without more units in memory than the limit.

/// [`super::sync`] over the scheduler's locks.
mod sync {
    use shuttle::sync::{
        RwLock,
        atomic::{AtomicU32, Ordering},
    };
    pub(crate) use shuttle::{sync::Arc, thread::yield_now};

    pub(crate) struct Cell<T>(RwLock<Option<Arc<T>>>);

    impl<T> Default for Cell<T> {
        fn default() -> Cell<T> {
            Cell(RwLock::new(None))
        }
    }

    impl<T> Cell<T> {
        pub(crate) fn with<R>(&self, look: impl FnOnce(Option<&T>) -> R) -> R {
            let taken = self.0.read().unwrap().clone();
            // Other threads may run between the load and the use of the reference.
            yield_now();
            look(taken.as_deref())
        }

        pub(crate) fn swap(&self, new: Option<Arc<T>>) -> Option<Arc<T>> {
            std::mem::replace(&mut *self.0.write().unwrap(), new)
        }
    }

    pub(crate) struct Number(AtomicU32);

    impl Number {
        pub(crate) fn new(number: u32) -> Number {
            Number(AtomicU32::new(number))
        }

        pub(crate) fn get(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }

        pub(crate) fn set(&self, number: u32) {
            self.0.store(number, Ordering::SeqCst);
        }
    }
}

#[path = "slot.rs"]
#[expect(clippy::duplicate_mod, reason = "the same source over another `sync`")]
mod slot;

use shuttle::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use slot::{PartitionNumber, UnitSlot};

/// Limit of units of all partitions together.
const LIMIT: usize = 3;

/// Some units of a partition; counts itself as long as it is in memory.
struct Units {
    partition: usize,
    count: usize,
    memory: Arc<AtomicUsize>,
}

impl Units {
    fn new(partition: usize, count: usize, memory: &Arc<AtomicUsize>) -> Units {
        let before = memory.fetch_add(count, Ordering::SeqCst);
        assert!(before + count <= LIMIT, "{} units in memory", before + count);
        let memory = memory.clone();
        Units { partition, count, memory }
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        self.memory.fetch_sub(self.count, Ordering::SeqCst);
    }
}

struct World {
    slots: [UnitSlot<Units>; 2],
    memory: Arc<AtomicUsize>,
    /// By partition; `None`: retired.
    state: Mutex<[Option<Part>; 2]>,
}

#[derive(Clone, Copy, Default)]
struct Part {
    /// Number of charged units.
    units: usize,
    /// A thread is reading units: no other thread changes them, but the partition may be retired.
    moving: bool,
}

fn charged(state: &[Option<Part>; 2]) -> usize {
    state.iter().flatten().map(|part| part.units).sum()
}

impl World {
    fn new() -> Arc<World> {
        let world = World {
            slots: Default::default(),
            memory: Arc::default(),
            state: Mutex::new([Some(Part::default()); 2]),
        };
        for (i, slot) in world.slots.iter().enumerate() {
            slot.set_number(Some(PartitionNumber(i as u32)));
        }
        Arc::new(world)
    }

    /// Like the adjuster: releases first, to pay for later loads.
    fn release(&self, partition: usize) {
        let mut state = self.state.lock().unwrap();
        if let Some(part) = &mut state[partition]
            && !part.moving
        {
            self.slots[partition].swap(None);
            part.units = 0;
        }
    }

    /// Like the adjuster, or a probe that found no units: charges, reads without the lock, installs.
    fn load(&self, partition: usize, count: usize) {
        {
            let mut state = self.state.lock().unwrap();
            let room = LIMIT - charged(&state);
            match &mut state[partition] {
                Some(part) if part.units == 0 && count <= room => {
                    *part = Part { units: count, moving: true };
                }
                _ => return,
            }
        }
        thread::yield_now();
        let mut state = self.state.lock().unwrap();
        if let Some(part) = &mut state[partition] {
            part.moving = false;
            let units = Units::new(partition, count, &self.memory);
            self.slots[partition].swap(Some(units));
        }
    }

    /// Like a merge that replaced the partition.
    fn retire(&self, partition: usize) {
        let mut state = self.state.lock().unwrap();
        self.slots[partition].set_number(None);
        self.slots[partition].swap(None);
        state[partition] = None;
    }

    /// Like a Get.
    fn probe(&self, partition: usize) {
        let seen = self.slots[partition].ask(|units| (units.partition, units.count));
        assert!(seen.is_none_or(|(of, count)| of == partition && count > 0));
        if let Some(number) = self.slots[partition].number() {
            assert_eq!(number, PartitionNumber(partition as u32));
        }
    }
}

#[test]
fn units_that_were_swapped_out_are_free_before_their_bytes_are_given_to_others() {
    let run = || {
        let world = World::new();
        let spawn = |work: fn(&World)| {
            let world = world.clone();
            thread::spawn(move || work(&world))
        };
        let threads = [
            spawn(|world| {
                world.load(0, 3);
                world.release(0);
                world.load(1, 2);
                world.load(0, 1);
            }),
            spawn(|world| {
                world.probe(0);
                world.load(0, 2);
                world.probe(1);
            }),
            spawn(|world| {
                world.probe(1);
                world.probe(0);
            }),
            spawn(|world| {
                world.retire(0);
                world.load(1, 1);
            }),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        let charged = charged(&world.state.lock().unwrap());
        assert_eq!(world.memory.load(Ordering::SeqCst), charged);
    };
    shuttle::check_random(run, 10_000);
    shuttle::check_pct(run, 5000, 3);
}
