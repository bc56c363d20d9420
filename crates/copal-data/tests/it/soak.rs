//! Random histories with restarts: closed, killed, or with the power cut at that moment. The store
//! always equals the in-memory twin, since every operation was acknowledged.

use crate::stack::{MIB, everything, format, open};
use copal_data::LocalStore;
use copal_device::fault::FaultDevice;
use copal_device::{Device, crash};
use copal_volume::VolumeStore;
use copal_volume::conformance::{Random, Subject, random_history};
use std::sync::Arc;

struct Restarting {
    device: Arc<FaultDevice>,
    store: Option<LocalStore>,
    random: Random,
}

impl Restarting {
    fn new(seed: u64) -> Restarting {
        let device = FaultDevice::new(256 * MIB, seed);
        let dyn_device: Arc<dyn Device> = device.clone();
        format(&dyn_device);
        Restarting {
            store: Some(open(&dyn_device)),
            device,
            random: Random::new(seed),
        }
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
        // What a crash at this moment may leave; closing goes on behind it.
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
            let states = crash::states(&history, step, &crash::Limits::default());
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
        let mut subject = Restarting::new(seed);
        random_history(&mut subject, seed, steps);
        let report = subject.store().check(&everything(), &mut |_| {});
        assert_eq!(report.expect("check").damage, [], "seed {seed}");
    }
}
