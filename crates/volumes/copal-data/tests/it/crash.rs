//! Power cuts: after any crash the store has all acknowledged operations, and the operation under way
//! happened completely or not at all.
//!
//! A history of operations runs on the recording device. Sampled crash states are opened and compared with a
//! model of the operations acknowledged by then.

use crate::stack::{MIB, body, everything, format, get, open};
use copal_data::LocalStore;
use copal_device::fault::FaultDevice;
use copal_device::{Device, DeviceHistory, crash};
use copal_testkit::Random;
use copal_volume::{
    FileId, PutOptions, ReadOptions, RemoveMode, VolumeError, VolumeId, VolumeOptions, VolumeStore,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of a volume -> its files: name -> (file id, seed, size).
type Model = BTreeMap<String, BTreeMap<Vec<u8>, (FileId, u64, usize)>>;

/// The store after one more acknowledged operation.
struct Step {
    /// Events of the device before the operation began.
    began: usize,
    /// Events at its acknowledgement.
    acknowledged: usize,
    model: Model,
}

struct Run {
    device: Arc<FaultDevice>,
    store: LocalStore,
    vids: BTreeMap<String, VolumeId>,
    model: Model,
    steps: Vec<Step>,
    seed: u64,
}

impl Run {
    /// Runs one operation and records the contents that the store must have from its acknowledgement on.
    fn step(&mut self, operation: impl FnOnce(&mut Run)) {
        let began = self.device.step();
        operation(self);
        self.steps.push(Step { began, acknowledged: self.device.step(), model: self.model.clone() });
    }

    fn create(&mut self, volume: &str) {
        self.step(|run| {
            let vid =
                run.store.create_volume("", volume, &VolumeOptions::default()).expect("create a volume");
            run.vids.insert(volume.to_owned(), vid);
            run.model.insert(volume.to_owned(), BTreeMap::new());
        });
    }

    fn put(&mut self, volume: &str, name: &[u8], size: usize, stream: bool) {
        self.step(|run| {
            run.seed += 1;
            let (vid, seed) = (run.vids[volume], run.seed);
            let bytes = body(seed, size);
            let info = if stream {
                let mut writer = run.store.writer(vid, name, &PutOptions::default()).expect("writer");
                writer.append(bytes.slice(..size / 3)).expect("append");
                writer.append(bytes.slice(size / 3..)).expect("append");
                writer.commit()
            } else {
                run.store.put(vid, name, bytes, &PutOptions::default())
            };
            let fid = info.expect("create").fid;
            let files = run.model.get_mut(volume).expect("volume");
            files.insert(name.to_vec(), (fid, seed, size));
        });
    }

    fn delete(&mut self, volume: &str, name: &[u8]) {
        self.step(|run| {
            let files = run.model.get_mut(volume).expect("volume");
            let (fid, _, _) = files.remove(name).expect("the file is there");
            run.store.delete(run.vids[volume], name, fid).expect("delete");
        });
    }

    fn drop_stream(&mut self, volume: &str, size: usize) {
        self.step(|run| {
            let mut writer =
                run.store.writer(run.vids[volume], b"dropped", &PutOptions::default()).expect("writer");
            writer.append(body(1, size)).expect("append");
        });
    }

    fn remove(&mut self, volume: &str) {
        self.step(|run| {
            run.store.remove_volume(run.vids[volume], RemoveMode::WithFiles).expect("remove");
            run.model.remove(volume);
        });
    }

    fn rename(&mut self, from: &str, to: &str) {
        self.step(|run| {
            run.store.rename_volume(from, to).expect("rename");
            let files = run.model.remove(from).expect("volume");
            run.model.insert(to.to_owned(), files);
            let vid = run.vids.remove(from).expect("volume");
            run.vids.insert(to.to_owned(), vid);
        });
    }

    fn batch(&mut self, volume: &str, names: &[&'static [u8]]) {
        self.step(|run| {
            let files = names
                .iter()
                .map(|name| {
                    run.seed += 1;
                    let size = 1000 * (1 + run.seed as usize % 9);
                    let files = run.model.get_mut(volume).expect("volume");
                    files.insert(name.to_vec(), (FileId(0), run.seed, size));
                    let options = PutOptions::default();
                    ((*name).into(), body(run.seed, size), options)
                })
                .collect();
            let answers = run.store.put_batch(run.vids[volume], files);
            for (name, answer) in names.iter().zip(answers.expect("batch")) {
                let files = run.model.get_mut(volume).expect("volume");
                let file = files.get_mut(*name).expect("file");
                file.0 = answer.expect("create").fid;
            }
        });
    }
}

/// A device with an empty volume store, as it was closed; recording starts here.
fn founded(seed: u64) -> Arc<FaultDevice> {
    let device = FaultDevice::new(128 * MIB, seed);
    let dyn_device: Arc<dyn Device> = device.clone();
    format(&dyn_device);
    drop(open(&dyn_device));
    FaultDevice::from_image(device.image(), seed + 1)
}

/// A history with every kind of operation.
fn history() -> (DeviceHistory, Vec<Step>) {
    let device = founded(42);
    let dyn_device: Arc<dyn Device> = device.clone();
    let store = open(&dyn_device);
    let mut run = Run {
        device: device.clone(),
        store,
        vids: BTreeMap::new(),
        model: Model::new(),
        steps: vec![Step { began: 0, acknowledged: 0, model: Model::new() }],
        seed: 0,
    };
    run.create("a");
    run.put("a", b"inline", 100, false);
    run.put("a", b"block", 30_000, false);
    run.put("a", b"piece", 300_000, false);
    run.create("b");
    run.put("b", b"stream", 5_000_000, true);
    run.put("b", b"neighbour", 70_000, false);
    run.delete("a", b"block");
    run.batch("a", &[b"x", b"y", b"z"]);
    run.drop_stream("a", 5_000_000);
    run.delete("b", b"stream");
    run.store.kv().flush().expect("flush");
    run.put("a", b"block", 20_000, false);
    run.put("a", b"large", 4_500_000, false);
    run.delete("a", b"inline");
    run.put("a", b"inline", 50, false);
    run.rename("b", "c");
    run.remove("c");
    run.create("b");
    run.put("b", b"last", 5_000, false);
    let vid = run.vids["a"];
    run.store.reclaim(vid).expect("reclaim");
    run.delete("a", b"large");
    let steps = std::mem::take(&mut run.steps);
    drop(run);
    (device.history(), steps)
}

/// Contents of the store, with every body read.
fn contents(store: &LocalStore) -> Model {
    let mut model = Model::new();
    for (volume, vid) in store.list_volumes("", None, 100).expect("list volumes") {
        let mut files = BTreeMap::new();
        for (name, info) in store.list(vid, b"", None, 100, &ReadOptions::default()).expect("list") {
            let bytes = get(store, vid, &name).expect("a listed file is whole");
            let seed =
                (0..200).find(|&seed| body(seed, bytes.len()) == bytes).expect("bytes that a writer wrote");
            files.insert(name.to_vec(), (info.fid, seed, bytes.len()));
        }
        model.insert(volume, files);
    }
    model
}

/// Opens a crashed device and compares it with the permitted contents at `step`.
fn verify(device: &Arc<dyn Device>, step: usize, steps: &[Step], what: &str) {
    let store = open(device);
    let found = contents(&store);
    let done = steps.iter().rposition(|s| s.acknowledged <= step).expect("the first step");
    let under_way = steps.get(done + 1).filter(|next| next.began < step);
    let fits = found == steps[done].model || under_way.is_some_and(|next| found == next.model);
    assert!(
        fits,
        "{what}: after {done} acknowledged operations found {found:#?}, not {:#?}",
        steps[done].model
    );
    let report = store.check(&everything(), &mut |_| {});
    let report = report.expect("check");
    assert_eq!(report.damage, [], "{what}");
    assert_eq!(report.uploads, 0, "{what}: dead uploads are freed at open");
    // The store works on.
    let vid = match store.open_volume("a") {
        Ok(vid) => vid,
        Err(_) => store.create_volume("", "a", &VolumeOptions::default()).expect("create"),
    };
    let put = store.put(vid, b"after", body(999, 5000), &PutOptions::default());
    put.unwrap_or_else(|error| panic!("{what}: put after the crash: {error}"));
}

#[test]
fn acknowledged_operations_survive_a_power_cut_and_others_are_complete_or_absent() {
    const CUTS: usize = 60;
    const STATES_PER_CUT: u64 = 8;
    let (history, steps) = history();
    let cuts: Vec<_> = crash::cuts(&history).collect();
    let mut random = Random::new(1);
    let stride = cuts.len().div_ceil(CUTS).max(1);
    let mut verified = 0;
    for cut in cuts.iter().step_by(stride) {
        let states = cut.states(&crash::StateLimits::default());
        let count = states.count_all();
        for n in 0..STATES_PER_CUT.min(count) {
            let index = if n == 0 { 0 } else { random.below(count) };
            let state = states.get(index).expect("a state of this cut");
            let device = state.device();
            verify(&device, state.step(), &steps, &state.describe());
            verified += 1;
        }
    }
    assert!(verified >= 100, "only {verified} states");
    let end = FaultDevice::from_image(cuts[cuts.len() - 1].durable().clone(), 1);
    let end: Arc<dyn Device> = end;
    verify(&end, history.len(), &steps, "everything flushed");
}

/// Removes all volumes. Returns the bytes of the device in live objects.
fn emptied(store: &LocalStore) -> u64 {
    let keep = store.create_volume("", "keep", &VolumeOptions::default()).expect("create a volume");
    for (name, vid) in store.list_volumes("", None, 100).expect("list") {
        if name != "keep" {
            store.remove_volume(vid, RemoveMode::WithFiles).expect("remove");
        }
    }
    store.kv().flush().expect("flush");
    store.reclaim(keep).expect("reclaim");
    store.kv().objects().space().live_bytes
}

#[test]
fn no_space_leaks_over_power_cuts() {
    let (history, _) = history();
    let cuts: Vec<_> = crash::cuts(&history).collect();
    let mut random = Random::new(2);
    let never_used =
        emptied(&open(&cuts[0].states(&crash::StateLimits::default()).get(0).expect("a state").device()));
    let stride = cuts.len().div_ceil(24).max(1);
    for cut in cuts.iter().step_by(stride) {
        let states = cut.states(&crash::StateLimits::default());
        let index = random.below(states.count_all());
        let state = states.get(index).expect("a state");
        let live_bytes = emptied(&open(&state.device()));
        assert!(
            live_bytes < never_used + MIB / 2,
            "{}: an emptied store holds {live_bytes} bytes, one never used {never_used}",
            state.describe(),
        );
    }
}

/// One create by one of several threads.
struct Create {
    name: Vec<u8>,
    seed: u64,
    size: usize,
    /// Events of the device before it began.
    began: usize,
    /// Events at its acknowledgement; `None`: another creator won.
    acknowledged: Option<usize>,
}

/// Threads that create files of their own and race for common names.
fn racing_history() -> (DeviceHistory, Vec<Create>) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 10;
    let device = founded(7);
    let dyn_device: Arc<dyn Device> = device.clone();
    let store = open(&dyn_device);
    let vid = store.create_volume("", "v", &VolumeOptions::default()).expect("create a volume");
    let create = |thread: u64, round: u64, name: Vec<u8>| {
        let seed = thread * 1000 + round * 10 + u64::from(name[0] == b'c');
        let size = [100, 6_000, 70_000, 4_300_000][(seed / 10 % 4) as usize];
        let began = device.step();
        let put = store.put(vid, &name, body(seed, size), &PutOptions::default());
        let acknowledged = match put {
            Ok(_) => Some(device.step()),
            Err(VolumeError::Exists { .. }) => None,
            Err(error) => panic!("put: {error}"),
        };
        Create { name, seed, size, began, acknowledged }
    };
    let creates = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let create = &create;
                scope.spawn(move || {
                    let mut creates = Vec::new();
                    for round in 0..ROUNDS {
                        let own = format!("own {thread} {round}").into_bytes();
                        creates.push(create(thread, round, own));
                        let common = format!("common {round}").into_bytes();
                        creates.push(create(thread, round, common));
                    }
                    creates
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().flat_map(join).collect::<Vec<_>>()
    });
    drop(store);
    (device.history(), creates)
}

#[test]
fn creates_of_many_threads_survive_a_power_cut_once_acknowledged() {
    let (history, creates) = racing_history();
    let cuts: Vec<_> = crash::cuts(&history).collect();
    let mut random = Random::new(3);
    let stride = cuts.len().div_ceil(40).max(1);
    let mut acknowledged_seen = 0;
    for cut in cuts.iter().step_by(stride) {
        let states = cut.states(&crash::StateLimits::default());
        for index in [0, random.below(states.count_all())] {
            let state = states.get(index).expect("a state");
            let what = state.describe();
            let store = open(&state.device());
            let vid = store.open_volume("v").ok();
            for create in &creates {
                let read = match vid {
                    Some(vid) => get(&store, vid, &create.name),
                    None => Err(VolumeError::NotFound),
                };
                match create.acknowledged {
                    Some(step) if step <= state.step() => {
                        acknowledged_seen += 1;
                        assert!(
                            read == Ok(body(create.seed, create.size)),
                            "{what}: acknowledged file {}",
                            create.name.escape_ascii()
                        );
                    }
                    _ => {
                        // Absent, or the complete file of a creator of that name that had begun.
                        let by_a_writer = |bytes: &bytes::Bytes| {
                            creates
                                .iter()
                                .filter(|other| other.name == create.name)
                                .filter(|other| other.began < state.step())
                                .any(|other| body(other.seed, other.size) == bytes)
                        };
                        match &read {
                            Ok(bytes) => assert!(by_a_writer(bytes), "{what}: not complete"),
                            Err(error) => assert_eq!(*error, VolumeError::NotFound, "{what}"),
                        }
                    }
                }
            }
            let report = store.check(&everything(), &mut |_| {});
            assert_eq!(report.expect("check").damage, [], "{what}");
        }
    }
    assert!(acknowledged_seen > 100, "only {acknowledged_seen} looked at");
}
