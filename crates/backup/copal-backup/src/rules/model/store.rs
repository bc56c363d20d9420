//! Store of the model: packs, lists, manifests, and creates and deletes that take effect late.

use crate::catalog::fields::{DeadList, MovedList};
use crate::catalog::vm::VmState;
use crate::index::dead_frames::DeadFrames;
use crate::packs::home::PackHome;
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::request::SnapshotId;
use crate::steps::frames::is_in_use;
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use uuid::Uuid;

/// A chunk.
pub(super) type Id = u8;

/// A chunk and the pack that it was put into.
pub(super) type ModelRef = (Id, PackNumber);

pub(super) fn uuid(vm: usize) -> Uuid {
    Uuid::from_u128(vm as u128 + 1)
}

/// A durable pack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelPack {
    pub(super) home: PackHome,
    pub(super) ids: Vec<Id>,
    /// The session of its writer.
    pub(super) session: [u8; 16],
    /// Its frames do not decrypt: the memory of the host that backed up this VM was bad.
    pub(super) spoilt_by: Option<usize>,
    /// It is the file of an earlier try, which came about after that of a later one.
    pub(super) is_late: bool,
}

impl ModelPack {
    pub(super) fn slot(&self, id: Id) -> Option<u32> {
        let slot = self.ids.iter().position(|&own| own == id);
        slot.map(|slot| slot as u32)
    }
}

/// References of a snapshot, place by place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelManifest {
    pub(super) refs: Vec<ModelRef>,
    pub(super) has_vector: bool,
}

/// The store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ModelStore {
    pub(super) packs: BTreeMap<PackNumber, ModelPack>,
    /// By VM and number.
    pub(super) dead: BTreeMap<(usize, u64), DeadFrames>,
    pub(super) moved: BTreeMap<(usize, u64), BTreeMap<Id, PackNumber>>,
    pub(super) manifests: BTreeMap<SnapshotId, ModelManifest>,
    /// Packs of which a delete has reached one server, or is on its way.
    pub(super) doomed: BTreeSet<PackNumber>,
    /// Packs whose creation is on its way: for the first time, or again after another try was answered.
    pub(super) late: BTreeMap<PackNumber, ModelPack>,
    /// Lists of dead frames, by VM and number, of which a delete is on its way.
    pub(super) doomed_lists: BTreeSet<(usize, u64)>,
    /// Number of pack names given so far.
    pub(super) names: u64,
}

impl ModelStore {
    /// Stores a pack under a new name. Names are never reused.
    pub(super) fn put(&mut self, pack: ModelPack) -> PackNumber {
        self.names += 1;
        let number = PackNumber(self.names);
        self.packs.insert(number, pack);
        number
    }

    pub(super) fn remove(&mut self, pack: PackNumber) {
        self.packs.remove(&pack);
    }

    /// Deletes a pack of which a process knows the file.
    pub(super) fn remove_known(&mut self, number: PackNumber, is_late: bool) {
        if self.packs.get(&number).is_some_and(|pack| pack.is_late == is_late) {
            self.remove(number);
        }
    }

    /// A delete takes effect that was on its way.
    pub(super) fn unlink(&mut self, pack: PackNumber) {
        self.doomed.remove(&pack);
        self.remove(pack);
    }

    /// A create takes effect that was on its way, unless the pack is there. Deletes that are on their way mean the object
    /// of another try, if a delete names that.
    pub(super) fn arrive(&mut self, number: PackNumber, names_try: bool) {
        let Some(pack) = self.late.remove(&number) else { return };
        if let Entry::Vacant(free) = self.packs.entry(number) {
            free.insert(ModelPack { is_late: true, ..pack });
            if names_try {
                self.doomed.remove(&number);
            }
            // A repair that runs now does not know it.
            self.names += 1;
        }
    }

    /// A VM's own packs.
    pub(super) fn own(&self, vm: usize) -> impl Iterator<Item = (PackNumber, &ModelPack)> {
        let home = PackHome::Private(uuid(vm));
        let own = self.packs.iter().filter(move |(_, pack)| pack.home == home);
        own.map(|(number, pack)| (*number, pack))
    }

    /// The first frame of a VM's own packs that is not dead.
    pub(super) fn first_in_use(&self, vm: usize, dead: &DeadFrames) -> Option<(PackNumber, u32, Id)> {
        let mut frames = self
            .own(vm)
            .flat_map(|(number, pack)| (0..).zip(&pack.ids).map(move |(slot, id)| (number, slot, *id)));
        frames.find(|(number, slot, _)| is_in_use(dead, *number, *slot))
    }

    pub(super) fn shared(&self, number: PackNumber) -> Option<&ModelPack> {
        self.packs.get(&number).filter(|pack| pack.home == PackHome::Shared)
    }

    /// Whether a popular frame decrypts to a chunk.
    pub(super) fn opens(&self, number: PackNumber, id: Id) -> bool {
        let pack = self.shared(number);
        pack.is_some_and(|pack| pack.spoilt_by.is_none() && pack.slot(id).is_some())
    }

    /// The list of dead frames in force.
    pub(super) fn dead_of(&self, vm: usize, list: Option<&DeadList>) -> DeadFrames {
        let list = list.and_then(|list| self.dead.get(&(vm, list.number)));
        list.cloned().unwrap_or_default()
    }

    /// The popular pack to which a chunk of the VM has moved.
    pub(super) fn moved_to(&self, vm: usize, state: &VmState, id: Id) -> Option<PackNumber> {
        let lists = state.moved.iter().filter_map(|list| self.moved.get(&(vm, list.number)));
        lists.filter_map(|list| list.get(&id)).copied().next()
    }

    /// `floor`: no list that was in force has a number from there on.
    pub(super) fn put_dead(&mut self, vm: usize, dead: DeadFrames, floor: u64) -> Option<DeadList> {
        if dead.total() == 0 {
            return None;
        }
        let newest = self.dead.keys().filter(|(of, _)| *of == vm).map(|(_, number)| *number);
        let number = newest.max().unwrap_or(0).max(floor) + 1;
        self.dead.insert((vm, number), dead);
        Some(DeadList { number, hash: [number as u8; 32] })
    }

    pub(super) fn next_moved(&self, vm: usize, ids: usize) -> MovedList {
        let newest = self.moved.keys().filter(|(of, _)| *of == vm).map(|(_, number)| *number);
        let number = newest.max().unwrap_or(0) + 1;
        MovedList { number, ids: ids as u32, hash: [number as u8; 32] }
    }

    /// `dead`: the list that the process has recorded; without one it drops those below `floor`.
    pub(super) fn drop_lists(&mut self, vm: usize, state: &VmState, dead: Option<&DeadList>, floor: u64) {
        let below = dead.map_or(floor, |list| list.number);
        self.dead.retain(|(of, number), _| *of != vm || *number >= below);
        let newest = state.moved.last().map_or(0, |list| list.number);
        self.moved.retain(|(of, number), _| *of != vm || *number >= newest);
    }
}

/// Adds a frame of a VM's pack to a list of dead frames.
pub(super) fn add_dead(dead: &mut DeadFrames, number: PackNumber, pack: &ModelPack, slot: u32) {
    let location = FrameLocation { home: pack.home, volume: 0, pack: number, slot };
    dead.add(location, pack.ids.len() as u32);
}
