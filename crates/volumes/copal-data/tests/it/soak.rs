//! Random histories with restarts: closed, killed, or with a power cut at that moment. The store always
//! equals the in-memory twin, since every operation was acknowledged.

use crate::stack::{MIB, body, everything, format, get, open, volume};
use copal_data::LocalStore;
use copal_device::fault::FaultDevice;
use copal_device::{Device, crash};
use copal_testkit::Random;
use copal_volume::conformance::{Subject, random_history};
use copal_volume::{FileId, PutOptions, ReadOptions, VolumeError, VolumeStore};
use std::collections::BTreeMap;
use std::sync::Arc;

struct Restarting {
    device: Arc<FaultDevice>,
    store: Option<LocalStore>,
    random: Random,
}

impl Restarting {
    fn new(seed: u64, device_bytes: u64) -> Restarting {
        let device = FaultDevice::new(device_bytes, seed);
        let dyn_device: Arc<dyn Device> = device.clone();
        format(&dyn_device);
        Restarting { store: Some(open(&dyn_device)), device, random: Random::new(seed) }
    }

    fn store(&self) -> &LocalStore {
        self.store.as_ref().expect("open between restarts")
    }
}

impl Subject for Restarting {
    fn store(&self) -> &dyn VolumeStore {
        Restarting::store(self)
    }

    fn restart(&mut self) {
        let how = self.random.below(4);
        // A possible state after a crash at this moment; closing continues behind it.
        let step = self.device.step();
        let history = self.device.history();
        if how == 0 {
            self.store().close().expect("close");
        }
        if how == 1 {
            self.store().kv().flush().expect("flush");
        }
        self.store = None;
        self.device = if how < 2 {
            FaultDevice::from_image(self.device.image(), self.random.next_u64())
        } else {
            let states = crash::states(&history, step, &crash::StateLimits::default());
            let index = self.random.below(states.count_all());
            let state = states.get(index).expect("a state");
            state.fault_device(self.random.next_u64())
        };
        let dyn_device: Arc<dyn Device> = self.device.clone();
        self.store = Some(open(&dyn_device));
    }
}

#[test]
fn random_histories_with_restarts_and_power_cuts_equal_the_twin() {
    let (seeds, steps) = (6, 1000);
    for seed in 0..seeds {
        let mut subject = Restarting::new(seed, 256 * MIB);
        random_history(&mut subject, seed, steps);
        let report = subject.store().check(&everything(), &mut |_| {});
        assert_eq!(report.expect("check").damage, [], "seed {seed}");
    }
}

/// A store that is nearly always full: creates fail cleanly, deletes never fail, restarts lose nothing, and
/// in the end all space is free.
#[test]
fn a_store_at_the_edge_of_its_space_keeps_acknowledged_operations() {
    for seed in 0..3 {
        let mut subject = Restarting::new(seed, 64 * MIB);
        let vid = volume(subject.store(), "v");
        let mut random = Random::new(seed);
        let mut files: BTreeMap<Vec<u8>, (FileId, u64, usize)> = BTreeMap::new();
        let mut refused = 0;
        for step in 0..150_u64 {
            let what = format!("seed {seed}, step {step}");
            let store = subject.store();
            match random.below(10) {
                0..=5 => {
                    let size = random.below(6 * MIB) as usize;
                    let name = step.to_be_bytes().to_vec();
                    let put = store.put(vid, &name, body(step, size), &PutOptions::default());
                    match put {
                        Ok(info) => drop(files.insert(name, (info.fid, step, size))),
                        Err(VolumeError::NoSpace) => refused += 1,
                        Err(error) => panic!("{what}: {error}"),
                    }
                }
                6..=7 if !files.is_empty() => {
                    let nth = random.below(files.len() as u64) as usize;
                    let name = files.keys().nth(nth).expect("one of them").clone();
                    let (fid, _, _) = files.remove(&name).expect("it is there");
                    let deleted = store.delete(vid, &name, fid);
                    deleted.unwrap_or_else(|error| panic!("{what}: delete: {error}"));
                }
                8 => store.reclaim(vid).unwrap_or_else(|error| panic!("{what}: reclaim: {error}")),
                _ => {
                    subject.restart();
                    let store = subject.store();
                    for (name, (_, seed, size)) in &files {
                        assert!(get(store, vid, name) == Ok(body(*seed, *size)), "{what}");
                    }
                    let listed = store.list(vid, b"", None, 1000, &ReadOptions::default()).expect("list");
                    assert_eq!(listed.len(), files.len(), "{what}: a refused file is there");
                }
            }
        }
        assert!(refused > 3, "seed {seed}: the store was never full");
        let store = subject.store();
        for (name, (fid, _, _)) in &files {
            store.delete(vid, name, *fid).expect("delete");
        }
        store.reclaim(vid).expect("reclaim");
        let report = store.check(&everything(), &mut |_| {});
        assert_eq!(report.expect("check").damage, [], "seed {seed}");
        let put = store.put(vid, b"last", body(1, 30 << 20), &PutOptions::default());
        put.unwrap_or_else(|error| panic!("seed {seed}: an emptied store has no room: {error}"));
    }
}
