//! Model of a backup of a VM by a host, from its session to its snapshot.

use super::setup::{ModelSetup, WeakRule};
use super::state::{FleetState, HostJob, ModelLog, PendingAppend, host_key};
use super::store::{Id, ModelManifest, ModelPack, ModelRef, uuid};
use crate::catalog::record::Record;
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::request::SnapshotId;
use crate::request::peers::Writer;
use crate::steps::frames::is_in_use;
use crate::steps::popular::{EnterStep, counts, entering};
use crate::steps::session::{OpenStep, PublishStep, first_removed, opening, publishing};

/// Phase of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum BackupPhase {
    /// Its session is not open yet.
    Begun,
    /// It removes listed packs.
    Opened,
    /// It looks for chunks.
    Ready,
    /// It stores a popular chunk.
    StoresPopular,
    /// The popular pack is durable.
    Enters(PackNumber),
    /// It stores the new chunks.
    Stores,
    Publishes,
}

/// A backup in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BackupRun {
    pub(super) vm: usize,
    pub(super) session: [u8; 16],
    sequence: u64,
    disk: [Id; 2],
    base: Vec<ModelRef>,
    refs: [Option<PackNumber>; 2],
    pub(super) phase: BackupPhase,
}

/// The answer of other hosts for chunks that the VM does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PeerAnswer {
    New,
    /// A popular frame exists.
    Hit,
    StorePopular,
}

impl BackupRun {
    pub(super) fn new(vm: usize, session: [u8; 16], disk: [Id; 2]) -> BackupRun {
        BackupRun {
            vm,
            session,
            sequence: 0,
            disk,
            base: Vec::new(),
            refs: [None; 2],
            phase: BackupPhase::Begun,
        }
    }

    fn snapshot(&self) -> SnapshotId {
        SnapshotId(self.session)
    }

    /// The popular chunk that it stores: the first without a location.
    fn first_missing(&self) -> Option<usize> {
        self.refs.iter().position(Option::is_none)
    }
}

/// The record that a backup is about to append.
pub(super) fn append_of_backup(fleet: &FleetState, host: usize, backup: &BackupRun) -> Option<PendingAppend> {
    let state = &fleet.vms[backup.vm];
    let session = backup.session;
    match backup.phase {
        BackupPhase::Begun if opening(state, &session, false) == OpenStep::Append => {
            let base = state.published.last().map(|one| one.snapshot);
            Some(fleet.next(ModelLog::Vm(backup.vm), Record::Open { session, base }))
        }
        BackupPhase::Publishes if publishing(state, &session, backup.snapshot()) == PublishStep::Append => {
            let record = Record::Publish {
                session,
                snapshot: backup.snapshot(),
                sequence: backup.sequence,
                manifest: [0; 32],
                clock_ms: None,
                is_dated: false,
            };
            Some(fleet.next(ModelLog::Vm(backup.vm), record))
        }
        BackupPhase::Enters(pack) => enter_popular(fleet, host, pack),
        _ => None,
    }
}

/// The record that enters a popular pack.
pub(super) fn enter_popular(fleet: &FleetState, host: usize, pack: PackNumber) -> Option<PendingAppend> {
    match entering(&fleet.popular, pack, 1) {
        EnterStep::Append { first_ordinal } => Some(fleet.next(
            ModelLog::Popular,
            Record::Popular {
                volume: 0,
                pack,
                first_ordinal,
                frames: 1,
                writer: Writer(host as u64),
                host: Some(host_key(host)),
            },
        )),
        EnterStep::Entered | EnterStep::BeingRemoved | EnterStep::NoRoom => None,
    }
}

/// Makes manifest and vector durable, before the publication.
pub(super) fn put_manifest(fleet: &mut FleetState, backup: &BackupRun) {
    let refs = backup.disk.iter().zip(backup.refs).map(|(id, pack)| (*id, pack.expect("all is stored")));
    let manifest = ModelManifest { refs: refs.collect(), has_vector: true };
    fleet.store.manifests.insert(backup.snapshot(), manifest);
}

/// A step without an answer of others. `None`: the backup waits.
pub(super) fn go_on_with_backup(
    fleet: &mut FleetState,
    setup: &ModelSetup,
    host: usize,
    mut backup: BackupRun,
) -> Option<HostJob> {
    let vm = backup.vm;
    if backup.phase == BackupPhase::Publishes {
        put_manifest(fleet, &backup);
    }
    if let Some(append) = append_of_backup(fleet, host, &backup) {
        fleet.append(&append);
    }
    let state = &fleet.vms[vm];
    match backup.phase {
        BackupPhase::Begun => match opening(state, &backup.session, false) {
            OpenStep::Opened => {
                let base = state
                    .published
                    .last()
                    .map(|one| one.snapshot)
                    .and_then(|base| fleet.store.manifests.get(&base));
                backup.base = base.map(|base| base.refs.clone()).unwrap_or_default();
                backup.sequence = state.next_sequence;
                backup.phase = match setup.is_weak(WeakRule::LooksFirst) {
                    true => BackupPhase::Ready,
                    false => BackupPhase::Opened,
                };
            }
            OpenStep::Held => return None,
            _ => return Some(HostJob::Idle),
        },
        BackupPhase::Opened => {
            let going = first_removed(state).to_vec();
            going.iter().for_each(|place| fleet.store.remove(place.pack));
            if !going.is_empty() {
                let removed = fleet.next(ModelLog::Vm(vm), Record::Removed { packs: going });
                fleet.append(&removed);
            }
            backup.phase = BackupPhase::Ready;
        }
        BackupPhase::Ready => return None,
        BackupPhase::StoresPopular => {
            let place = backup.first_missing().expect("it is asked about one");
            let pack = put_popular(fleet, backup.session, backup.disk[place]);
            backup.phase = BackupPhase::Enters(pack);
        }
        BackupPhase::Enters(pack) => {
            let EnterStep::Entered = entering(&fleet.popular, pack, 1) else {
                return Some(HostJob::Idle);
            };
            let place = backup.first_missing().expect("it has stored one");
            let id = backup.disk[place];
            for (place, other) in backup.disk.iter().enumerate() {
                if *other == id {
                    backup.refs[place] = Some(pack);
                }
            }
            backup.phase = backup.behind_answers();
        }
        BackupPhase::Stores => {
            let missing = backup.disk.iter().zip(&backup.refs).filter(|(_, found)| found.is_none());
            let mut ids: Vec<Id> = missing.map(|(id, _)| *id).collect();
            ids.dedup();
            let pack = ModelPack {
                home: PackHome::Private(uuid(vm)),
                ids,
                session: backup.session,
                spoilt_by: None,
                is_late: false,
            };
            let pack = fleet.store.put(pack);
            backup.refs.iter_mut().for_each(|found| *found = found.or(Some(pack)));
            backup.phase = BackupPhase::Publishes;
        }
        BackupPhase::Publishes => return Some(HostJob::Idle),
    }
    Some(HostJob::Backup(backup))
}

/// Looks in its base, in its VM's packs, and asks others. `None`: no host gives that answer.
pub(super) fn look(fleet: &FleetState, mut backup: BackupRun, answer: PeerAnswer) -> Option<BackupRun> {
    let state = &fleet.vms[backup.vm];
    let dead = fleet.store.dead_of(backup.vm, state.dead.as_ref());
    let mut is_hit = false;
    for (place, id) in backup.disk.into_iter().enumerate() {
        let base = backup.base.get(place).filter(|(old, _)| *old == id);
        let known = base.map(|(_, pack)| *pack).or_else(|| {
            let mut own = fleet.store.own(backup.vm);
            let own =
                own.find(|(number, pack)| pack.slot(id).is_some_and(|slot| is_in_use(&dead, *number, slot)));
            own.map(|(number, _)| number).or_else(|| fleet.store.moved_to(backup.vm, state, id))
        });
        let popular = || {
            let mut entered = fleet.popular.packs.iter().map(|pack| pack.pack);
            let row =
                |pack: &PackNumber| fleet.store.shared(*pack).is_some_and(|pack| pack.slot(id).is_some());
            entered.find(|pack| counts(&fleet.popular, *pack) && row(pack))
        };
        backup.refs[place] = match (known, answer) {
            (None, PeerAnswer::Hit) => popular().inspect(|_| is_hit = true),
            (known, _) => known,
        };
    }
    let is_missing = backup.first_missing().is_some();
    backup.phase = match answer {
        PeerAnswer::New => backup.behind_answers(),
        PeerAnswer::Hit if is_hit => backup.behind_answers(),
        PeerAnswer::StorePopular if is_missing && fleet.left.popular > 0 => BackupPhase::StoresPopular,
        _ => return None,
    };
    Some(backup)
}

/// Stores a popular chunk.
pub(super) fn put_popular(fleet: &mut FleetState, session: [u8; 16], id: Id) -> PackNumber {
    // Two hosts may be told to store the last one.
    fleet.left.popular = fleet.left.popular.saturating_sub(1);
    let pack = ModelPack { home: PackHome::Shared, ids: vec![id], session, spoilt_by: None, is_late: false };
    fleet.store.put(pack)
}

impl BackupRun {
    fn behind_answers(&self) -> BackupPhase {
        match self.first_missing() {
            Some(_) => BackupPhase::Stores,
            None => BackupPhase::Publishes,
        }
    }
}
