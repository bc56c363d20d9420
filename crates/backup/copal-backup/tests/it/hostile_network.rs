//! Two hosts with all operations of a fleet, over a network that loses, repeats, cuts, delays and refuses requests.
//!
//! Seeded, as far as threads permit: the operations of each host, and the fault of each request by its number.
//! `COPAL_STORM_SEED` and `COPAL_STORM_STEPS` choose another run.

use crate::consolidate::{free, try_clean_up};
use crate::fleet_store::again_with_keys;
use crate::popular::back_up_with;
use crate::world::*;
use copal_backup::peers::{Answer, Ids, Peers, ShortId, Turn};
use copal_backup::*;
use copal_remote::{RemoteOptions, RemoteStore, RemoteUrl};
use copal_testkit::{NetworkFault, ObjectServer, RequestFacts};
use copal_volume::{ReadOptions, VolumeStore};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uuid::Uuid;

const BUCKET: &str = "b";
/// VMs of either host, and one that both back up.
const VMS: [[&str; 3]; 2] = [["a", "b", "both"], ["c", "d", "both"]];
/// Longest time after which a request takes effect that was answered by nothing.
const LATE: Duration = Duration::from_millis(400);

/// Answers by the rules of agents, and knows one host only. A network failure is no answer.
struct OneHost<'a> {
    repository: &'a Repository,
    askers: Mutex<HashMap<ShortId, BTreeSet<Uuid>>>,
    sent: Mutex<Vec<(Uuid, Vec<ShortId>)>>,
}

impl Peers for OneHost<'_> {
    fn begin(&self, _: Uuid, _: Turn) -> std::result::Result<(), String> {
        Ok(())
    }
    fn end(&self, _: Uuid, _: Turn) {}
    fn send(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<u64> {
        let ids = ids.collect::<io::Result<Vec<_>>>()?;
        let mut askers = self.askers.lock().unwrap();
        for id in &ids {
            askers.entry(*id).or_default().insert(vm);
        }
        let mut sent = self.sent.lock().unwrap();
        sent.push((vm, ids));
        Ok(sent.len() as u64 - 1)
    }
    fn receive(&self, sent: u64) -> Vec<Answer> {
        let (_, ids) = self.sent.lock().unwrap()[sent as usize].clone();
        let mut popular = HashMap::new();
        let visit = &mut |frames: popular::PopularFrames| {
            if frames.is_checked {
                popular.extend(frames.ids.into_iter().zip(frames.first_ordinal..));
            }
            Ok(())
        };
        if self.repository.for_each_popular_since(0, visit).is_err() {
            return vec![Answer::UNANSWERED; ids.len()];
        }
        let askers = self.askers.lock().unwrap();
        let answer = |id: &ShortId| match popular.get(id) {
            Some(&ordinal) => Answer::hit(ordinal).unwrap(),
            None if askers[id].len() > 1 => Answer::STORE_POPULAR,
            None => Answer::NEW,
        };
        ids.iter().map(answer).collect()
    }
    fn ask_again(&self, _: Uuid, _: Ids<'_>) -> io::Result<Option<Vec<Answer>>> {
        Ok(None)
    }
    fn stored(&self) {
        for pack in self.repository.unchecked_popular().unwrap_or_default() {
            let _ = self.repository.check_popular(pack.pack, &CancelFlag::new());
        }
    }
}

/// A disk of which most is the same on all VMs; its first bytes name it.
fn disk(random: &mut Random) -> Disk {
    let mut disk = Disk::new(1 << 20);
    Random::new(1).fill(&mut disk.bytes[..512 << 10]);
    Random::new(random.below(12) + 100).fill(&mut disk.bytes[512 << 10..700 << 10]);
    let name = random.below(u64::MAX);
    disk.bytes[..8].copy_from_slice(&name.to_le_bytes());
    disk
}

#[derive(Default)]
struct Record {
    /// Contents that a backup has read, by their names.
    disks: HashMap<[u8; 8], Vec<u8>>,
    /// Snapshots whose publication was acknowledged.
    acknowledged: BTreeMap<SnapshotId, Vec<u8>>,
    /// Snapshots that a host has tried to forget, alone or with their VM.
    may_go: BTreeSet<SnapshotId>,
    /// VMs whose removal was begun, and may have ended in the middle.
    half_removed: BTreeSet<String>,
    steps: BTreeMap<&'static str, [u32; 2]>,
}

/// A fault by the number of a request.
fn fault(seed: u64, request: &RequestFacts) -> NetworkFault {
    let mut random = Random::new(seed ^ request.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // Outages of sixteen requests: a client gives up, as if its process had been killed.
    if Random::new(seed ^ (request.number / 16)).below(30) == 0 && request.number > 200 {
        let is_lost = matches!(random.below(3), 0 | 1);
        return if is_lost { NetworkFault::LoseRequest } else { NetworkFault::LoseAnswer };
    }
    let refuse = |status, code: &str| NetworkFault::Refuse { status, code: code.to_owned() };
    match random.below(300) {
        0..=5 => NetworkFault::LoseAnswer,
        6..=8 => NetworkFault::LoseRequest,
        9..=11 => NetworkFault::Twice,
        12..=14 => NetworkFault::CutAnswer(random.below(600) as usize),
        15 => NetworkFault::Delay(LATE),
        16 => NetworkFault::Stall(LATE),
        17..=20 if request.method != "GET" => {
            NetworkFault::LateEffect(LATE.mul_f64(random.below(100) as f64 / 100.))
        }
        21 => refuse(503, "SlowDown"),
        22 => refuse(503, "ServiceUnavailable"),
        23 => refuse(429, "TooManyRequests"),
        24 => refuse(409, "ConditionalRequestConflict"),
        25 => refuse(409, "OperationAborted"),
        26 => refuse(403, "SlowDown"),
        27 => refuse(403, "RequestLimitExceeded"),
        28 => refuse(500, "InternalError"),
        _ => NetworkFault::None,
    }
}

struct Storm {
    server: ObjectServer,
    record: Mutex<Record>,
}

impl Storm {
    fn store(&self, retry_for: Duration) -> RemoteStore {
        let url = format!("s3://{BUCKET}/p?endpoint={}&region=us-east-1", self.server.url());
        let url = RemoteUrl::parse(&url).unwrap().unwrap();
        RemoteStore::new(&url, &RemoteOptions { retry_for, ..RemoteOptions::default() }).unwrap()
    }

    /// A host that opens the repository until the network lets it.
    fn host(&self) -> Repository {
        for _ in 0..100 {
            let store = self.store(Duration::from_millis(500));
            match Repository::open(Arc::new(store), IndexHome::Memory, &Unlock::Insecure) {
                Ok(repository) => return repository.behave_as_another_process(),
                Err(error) => assert!(!error.is_corruption(), "{error}"),
            }
        }
        panic!("the network lets no host open the repository");
    }

    fn work(&self, host: usize, mut random: Random, steps: u64) {
        let mut repository = self.host();
        for step in 0..steps {
            // Each process of a host is another one, with another memory of the store.
            if step % 6 == 5 {
                repository = self.host();
            }
            let peers = OneHost { repository: &repository, askers: Mutex::default(), sent: Mutex::default() };
            let vm = VMS[host][random.index(VMS[host].len())];
            let (name, outcome) = self.step(&repository, &peers, vm, &mut random);
            if let Err(error) = &outcome {
                assert!(!error.is_corruption(), "{name} of {vm} by host {host}: {error}");
                if matches!(error.code(), "busy" | "vm_busy") {
                    // By hand: also sessions whose holders live.
                    let _ = repository.fence_sessions(vm);
                }
            }
            self.record.lock().unwrap().steps.entry(name).or_default()[usize::from(outcome.is_err())] += 1;
        }
    }

    fn step(
        &self,
        repository: &Repository,
        peers: &OneHost<'_>,
        vm: &str,
        random: &mut Random,
    ) -> (&'static str, Result<()>) {
        let cancel = CancelFlag::new();
        match random.below(20) {
            0..=8 => ("backup", self.back_up(repository, peers, vm, &disk(random))),
            9..=11 => ("forget", self.forget(repository, vm, random)),
            12 | 13 => ("delete", repository.delete(&Silent, &cancel).map(drop)),
            14 => ("prune", repository.prune(&thorough(), &Silent, &cancel).map(drop)),
            15 => ("repair leak", repository.repair_leak(vm, 24 << 20, &Silent, &cancel).map(drop)),
            16 => ("clean-up", try_clean_up(repository, peers, vm).map(drop)),
            17 => ("pds prune", repository.remove_unneeded(false, &Silent, &cancel).map(drop)),
            18 => ("sweep", repository.sweep_popular(&cancel).map(drop)),
            _ => ("vm rm", self.remove(repository, vm)),
        }
    }

    fn back_up(&self, repository: &Repository, peers: &OneHost<'_>, vm: &str, disk: &Disk) -> Result<()> {
        let name: [u8; 8] = disk.bytes[..8].try_into().unwrap();
        self.record.lock().unwrap().disks.insert(name, disk.bytes.clone());
        let made = back_up_with(repository, peers, vm, disk, false)?;
        self.record.lock().unwrap().acknowledged.insert(made.snapshot, disk.bytes.clone());
        Ok(())
    }

    fn forget(&self, repository: &Repository, vm: &str, random: &mut Random) -> Result<()> {
        let snapshots = repository.snapshots(Some(vm))?;
        if snapshots.is_empty() {
            return Ok(());
        }
        let id = snapshots[random.index(snapshots.len())].id;
        self.record.lock().unwrap().may_go.insert(id);
        repository.forget(&[id]).map(drop)
    }

    fn remove(&self, repository: &Repository, vm: &str) -> Result<()> {
        // Snapshots that another host publishes before the removal takes effect go with it, too.
        let removed = repository.remove_vm(vm, true, false);
        let mut record = self.record.lock().unwrap();
        let all: Vec<SnapshotId> = record.acknowledged.keys().copied().collect();
        if !matches!(&removed, Err(error) if error.code() == "not_found") {
            record.may_go.extend(all);
        }
        if removed.is_err() {
            record.half_removed.insert(vm.to_owned());
        }
        removed.map(drop)
    }

    /// All that was acknowledged and not forgotten is there, whole, and nothing else is stored.
    fn end(&self) {
        self.server.clear_faults();
        // Heartbeats of hosts that could not delete them count as old.
        self.server.set_clock_offset(10 * 24 * 3600);
        let store = self.store(Duration::from_secs(20));
        let repository = || {
            let opened = Repository::open(Arc::new(store.clone()), IndexHome::Memory, &Unlock::Insecure);
            opened.unwrap().behave_as_another_process()
        };
        let mut last = Vec::new();
        for _ in 0..40 {
            let ended = repository();
            for vm in ended.vms().unwrap() {
                ended.fence_sessions(&vm.name).unwrap();
                let repaired = ended.repair_leak(&vm.name, 24 << 20, &Silent, &CancelFlag::new());
                if matches!(repaired, Err(Error::Busy { .. })) {
                    // A removal that ended in the middle is for the operator to repeat.
                    assert!(
                        self.record.lock().unwrap().half_removed.contains(&vm.name),
                        "{} is busy",
                        vm.name
                    );
                    ended.remove_vm(&vm.name, true, false).unwrap();
                } else {
                    repaired.unwrap();
                }
            }
            ended.sweep_popular(&CancelFlag::new()).unwrap();
            ended.remove_unneeded(false, &Silent, &CancelFlag::new()).unwrap();
            free(&ended);
            prune(&ended);
            last = self.garbage(&store, &ended);
            if last.is_empty() {
                break;
            }
            // A request that was not answered may still have been on its way.
            std::thread::sleep(LATE / 4);
        }
        assert_eq!(last, Vec::<String>::new(), "nothing refers to these objects");
        self.verify(&repository());
    }

    fn verify(&self, repository: &Repository) {
        let report = check(repository);
        assert!(report.is_clean(), "{:?}", report.damages);
        let record = self.record.lock().unwrap();
        let listed: Vec<SnapshotId> = repository.snapshots(None).unwrap().iter().map(|one| one.id).collect();
        for id in record.acknowledged.keys().filter(|id| !record.may_go.contains(id)) {
            assert!(listed.contains(id), "snapshot {id} is lost");
        }
        for id in listed {
            let bytes = restore(repository, id);
            let name: [u8; 8] = bytes[..8].try_into().unwrap();
            assert!(record.disks[&name] == bytes, "snapshot {id} is another disk");
            assert!(record.acknowledged.get(&id).is_none_or(|disk| *disk == bytes), "snapshot {id} changed");
        }
    }

    /// Objects to which nothing refers.
    fn garbage(&self, store: &RemoteStore, repository: &Repository) -> Vec<String> {
        let mut garbage = Vec::new();
        let vms: BTreeSet<String> =
            repository.vms().unwrap().iter().map(|vm| vm.uuid.simple().to_string()).collect();
        let snapshots: BTreeSet<String> =
            repository.snapshots(None).unwrap().iter().map(|one| one.id.to_string()).collect();
        let volumes = store.list_volumes("", None, 1000).unwrap();
        let mut prefixes = BTreeSet::new();
        for (volume, vid) in &volumes {
            prefixes.insert(format!("p/f/{:016x}/", vid.0));
            let vm = volume.strip_prefix("vm-").map(|rest| rest.split('.').next().unwrap());
            if vm.is_some_and(|vm| !vms.contains(vm)) {
                garbage.push(volume.clone());
            }
            let mut counts: BTreeMap<String, u32> = BTreeMap::new();
            for (name, _) in store.list(*vid, b"", None, 100_000, &ReadOptions::STRICT).unwrap() {
                let name = String::from_utf8_lossy(&name).into_owned();
                let (kind, rest) = name.split_once('.').unwrap_or((&name, ""));
                let of = rest.split('.').next().unwrap();
                *counts.entry(format!("{kind}.")).or_default() += 1;
                let is_needed = match kind {
                    "m" | "s" => snapshots.contains(of),
                    "a" | "p" | "r" => false,
                    _ => true,
                };
                if !is_needed {
                    garbage.push(format!("{volume}/{name}"));
                }
            }
            if counts.get("dead.").is_some_and(|lists| *lists > 1) {
                garbage.push(format!("{volume}: {counts:?}"));
            }
        }
        for (key, body) in self.server.objects(BUCKET) {
            let is_known = key.starts_with("p/n/") || prefixes.iter().any(|prefix| key.starts_with(prefix));
            if !is_known {
                garbage.push(format!("{key}: {} bytes", body.len()));
            }
        }
        let dry = PruneOptions { dry_run: true, ..thorough() };
        let unneeded = repository.prune(&dry, &Silent, &CancelFlag::new()).unwrap().dead_frames;
        if unneeded > 0 {
            garbage.push(format!("{unneeded} frames"));
        }
        let shared = volumes.iter().filter(|(volume, _)| volume.starts_with("pds-"));
        let stored: u64 = shared.map(|(_, vid)| store.volume_stats(*vid).unwrap().files).sum();
        let known = repository.popular_status().unwrap().packs;
        if stored != known {
            garbage.push(format!("{stored} popular packs instead of {known}"));
        }
        garbage
    }
}

/// One run; returns its figures.
fn storm(seed: u64, steps: u64) -> String {
    let server = ObjectServer::start();
    server.create_bucket(BUCKET);
    let storm = Storm { server, record: Mutex::default() };
    init_as(&storm.store(Duration::from_secs(20)), FLEET);
    // A store that takes no conditions with deletes is as safe.
    storm.server.ignore_delete_conditions(seed % 2 == 1);
    storm.server.set_faults(move |request| fault(seed, request));
    std::thread::scope(|scope| {
        for host in 0..2 {
            let storm = &storm;
            scope.spawn(move || storm.work(host, Random::new(seed * 2 + host as u64), steps));
        }
    });
    let requests = storm.server.take_requests().len();
    storm.end();
    let record = storm.record.into_inner().unwrap();
    let snapshots = record.acknowledged.len();
    format!("seed {seed}: {requests} requests, {snapshots} snapshots, {:?}", record.steps)
}

#[test]
#[expect(clippy::print_stdout, reason = "a run prints its figures")]
fn two_hosts_lose_nothing_on_a_hostile_network() {
    if again_with_keys("hostile_network::two_hosts_lose_nothing_on_a_hostile_network") {
        return;
    }
    let of = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let steps = of("COPAL_STORM_STEPS").unwrap_or(12);
    let seeds = match of("COPAL_STORM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..2,
    };
    for seed in seeds {
        println!("{}", storm(seed, steps));
    }
}
