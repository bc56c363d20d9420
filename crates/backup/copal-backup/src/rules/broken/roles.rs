//! Attack with a backup key: no file that its holder writes removes a snapshot (BAK-19).
//!
//! The attacker has the keys of a backup key, and creates files in the volumes of the repository. The store
//! keeps it from changing or deleting existing files.

use super::{Flaw, with};
use crate::catalog::checkpoint;
use crate::catalog::fold::LogState;
use crate::catalog::log::LogName;
use crate::catalog::record::{PackPlace, Record};
use crate::catalog::removals::{list_removals, packs_of};
use crate::catalog::vm::VmState;
use crate::delete::summary::format::{VectorHeader, block_mac};
use crate::delete::summary::{Block, Geometry, store as summaries};
use crate::keys::role::Role;
use crate::keys::{BUNDLE_BYTES, DomainKeys};
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::request::*;
use crate::world::*;
use crate::{CancelFlag, Error, IndexHome, Repository, RoleKey, Silent};
use copal_volume::{MemoryStore, PutOptions, VolumeId, VolumeStore};
use std::sync::Arc;
use uuid::Uuid;
use zeroize::Zeroizing;

fn password() -> Unlock {
    Unlock::Password(Zeroizing::new("correct horse".into()))
}

fn open_with(store: &MemoryStore, unlock: &Unlock) -> Repository {
    Repository::open(Arc::new(store.clone()), IndexHome::Memory, unlock).unwrap()
}

/// A repository with role keys and two snapshots of a VM, and the keys of an attacker.
struct RolesScene {
    store: MemoryStore,
    keys: DomainKeys,
    catalog: VolumeId,
    vm: Uuid,
    snapshots: Vec<SnapshotId>,
    backup: RoleKey,
    delete: RoleKey,
}

impl RolesScene {
    fn new(layout: Layout) -> RolesScene {
        let store = MemoryStore::new();
        let options = InitOptions { layout, argon2_memory_kib: 64, ..InitOptions::new(password()) };
        let repository = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap();
        let disk = disk();
        // One snapshot from before the role keys, one from after.
        let mut snapshots = vec![back_up(&repository, "web", &disk, false).snapshot];
        let key = |role| {
            let key = repository.draw_key(role).unwrap();
            repository.add_key(&key).unwrap();
            key
        };
        let (backup, delete) = (key(Role::Backup), key(Role::Delete));
        let summary = back_up(&repository, "web", &disk, false);
        snapshots.push(summary.snapshot);
        let bundle = repository.parts().pack_store().keys.bundle(Role::Backup).unwrap();
        let bundle: [u8; BUNDLE_BYTES] = bundle[..].try_into().unwrap();
        RolesScene {
            catalog: repository.parts().catalog().files().vid(),
            keys: DomainKeys::of_bundle(Role::Backup, &bundle),
            vm: summary.vm.uuid,
            store,
            snapshots,
            backup,
            delete,
        }
    }

    fn put(&self, name: &str, body: Vec<u8>) {
        let options = PutOptions::default();
        self.store.put(self.catalog, name.as_bytes(), body.into(), &options).unwrap();
    }

    fn next(&self, log: LogName) -> u64 {
        let repository = open_with(&self.store, &password());
        match log {
            LogName::Domain => repository.parts().catalog().domain().unwrap().next_number,
            LogName::Vm(vm) => repository.parts().vm_state(vm).unwrap().next_number,
            LogName::Popular => repository.parts().catalog().popular().unwrap().next_number,
        }
    }

    /// Writes a record behind all others.
    fn forge(&self, log: LogName, record: &Record) {
        let place = log.place(self.next(log));
        self.put(&place, record.encode(&place, &self.keys));
    }

    fn visible(&self) -> Vec<SnapshotId> {
        let repository = open_with(&self.store, &password());
        let snapshots = repository.snapshots(None).unwrap();
        snapshots.iter().map(|snapshot| snapshot.id).collect()
    }

    /// Whether all snapshots are visible and restorable, also after a prune by the delete role.
    fn is_complete(&self) -> bool {
        if self.visible() != self.snapshots {
            return false;
        }
        let deleter = open_with(&self.store, &Unlock::Key(self.delete.clone()));
        deleter.prune(&thorough(), &Silent, &CancelFlag::new()).unwrap();
        let restored = |id: &SnapshotId| try_restore(&deleter, *id).is_ok_and(|bytes| bytes == disk().bytes);
        self.snapshots.iter().all(restored)
    }

    /// Damage that a check finds.
    fn damages(&self) -> Vec<String> {
        let report = check(&open_with(&self.store, &password()));
        report.damages.into_iter().map(|one| one.detail).collect()
    }
}

fn disk() -> Disk {
    let mut disk = Disk::new(2 << 20);
    Random::new(9).text(&mut disk.bytes);
    disk
}

/// Asserts that the forgery changes nothing, and that it would if signatures were not verified.
fn control(forge: impl Fn(&RolesScene), is_damage: bool) {
    for layout in LAYOUTS {
        let scene = RolesScene::new(layout);
        forge(&scene);
        assert!(scene.is_complete(), "{layout:?}");
        let damages = scene.damages();
        let is_told = damages.iter().any(|detail| detail.contains("signature"));
        assert_eq!(is_told, is_damage, "{layout:?}: {damages:?}");
        let scene = RolesScene::new(layout);
        let is_whole = with(&[Flaw::NoSignature], || {
            forge(&scene);
            scene.is_complete()
        });
        assert!(!is_whole, "{layout:?}: the flaw is not noticed");
    }
}

#[test]
fn a_record_that_removes_a_snapshot_needs_a_signature() {
    control(
        |scene| {
            let snapshots = scene.snapshots.clone();
            scene.forge(LogName::Vm(scene.vm), &Record::Forget { snapshots });
        },
        true,
    );
    control(|scene| scene.forge(LogName::Domain, &Record::VmRemoved { vm: scene.vm }), true);
}

#[test]
fn a_checkpoint_without_some_snapshots_needs_a_signature() {
    control(
        |scene| {
            let log = LogName::Vm(scene.vm);
            let mut state = VmState::default();
            state.set_next_number(scene.next(log));
            let place = log.checkpoint_place(state.next_number);
            scene.put(&place, checkpoint::encode(&state, &place, &scene.keys));
        },
        true,
    );
}

#[test]
fn a_removal_list_needs_a_signature() {
    let scene = RolesScene::new(Layout::Solo);
    let name = "r.0000000000000099.00000000";
    let packs = vec![PackPlace { home: PackHome::Shared, volume: 0, pack: PackNumber(7) }];
    scene.put(name, Record::Removing { packs: packs.clone() }.encode(name, &scene.keys));
    let repository = open_with(&scene.store, &password());
    let catalog = repository.parts().catalog();
    let listed = list_removals(catalog.files()).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(packs_of(catalog.files(), &listed[0]).unwrap(), []);
    let forged = with(&[Flaw::NoSignature], || packs_of(catalog.files(), &listed[0]).unwrap());
    assert_eq!(forged, packs, "the flaw is not noticed");
}

/// Any backup can write vectors. A vector with fewer ids than the published one frees nothing.
#[test]
fn a_forged_vector_of_another_snapshot_frees_nothing() {
    let lie = |is_trusted: bool| {
        let scene = RolesScene::new(FLEET);
        let repository = open_with(&scene.store, &Unlock::Key(scene.backup.clone()));
        let mut changed = disk();
        changed.write(0, &[7; 100_000]);
        let third = back_up(&repository, "web", &changed, false).snapshot;
        let geometry = Geometry::for_references(100_000);
        let meta = repository.parts().pack_store().volumes.meta(scene.vm, false).unwrap().unwrap();
        // In place of the true vector, in a store that permits that.
        let prefix = summaries::prefix(third);
        crate::packs::volumes::for_each_file(&scene.store, meta, prefix.as_bytes(), |name, info| {
            scene.store.delete(meta, name, info.fid)?;
            Ok(())
        })
        .unwrap();
        let name = summaries::file_name(third, geometry);
        let header =
            VectorHeader { vm: scene.vm, snapshot: third, geometry, references: 1, is_signed: false };
        let mut file = header.encode(&name, &scene.keys);
        for number in 0..geometry.blocks() {
            let bits = Block::new(geometry).bytes();
            file.extend_from_slice(&bits);
            file.extend_from_slice(&block_mac(&name, number, &bits, &scene.keys));
        }
        let options = PutOptions::default();
        scene.store.put(meta, name.as_bytes(), file.into(), &options).unwrap();
        let free = || {
            let deleter = open_with(&scene.store, &Unlock::Key(scene.delete.clone()));
            deleter.forget(&scene.snapshots).unwrap();
            let options = PruneOptions { max_unused_percent: 0, ..PruneOptions::default() };
            deleter.prune(&options, &Silent, &CancelFlag::new()).unwrap();
        };
        match is_trusted {
            true => with(&[Flaw::TrustsAnyVector], free),
            false => free(),
        }
        let opened = open_with(&scene.store, &password());
        try_restore(&opened, third).is_ok_and(|bytes| bytes == changed.bytes)
    };
    assert!(lie(false));
    assert!(!lie(true), "the flaw is not noticed");
}

/// Snapshots published with role keys are freed by vectors, without a walk. So are those that were walked
/// once and got signed vectors.
#[test]
fn published_or_signed_vectors_are_used() {
    let scene = RolesScene::new(FLEET);
    let free = |snapshot: SnapshotId| {
        let deleter = open_with(&scene.store, &Unlock::Key(scene.delete.clone()));
        deleter.forget(&[snapshot]).unwrap();
        deleter.delete(&Silent, &CancelFlag::new()).unwrap()
    };
    let back_up_once = |seed: u64| {
        let repository = open_with(&scene.store, &Unlock::Key(scene.backup.clone()));
        let mut disk = disk();
        Random::new(seed).fill(&mut disk.bytes[..200_000]);
        back_up(&repository, "web", &disk, false).snapshot
    };
    let (third, fourth) = (back_up_once(1), back_up_once(2));
    let freed = free(third);
    assert_eq!((freed.by_summary, freed.by_walk), (1, 0), "{freed:?}");
    // A snapshot without a vector is walked, and has a signed vector afterwards.
    let repository = open_with(&scene.store, &password());
    let meta = repository.parts().pack_store().volumes.meta(scene.vm, false);
    let (meta, prefix) = (meta.unwrap().unwrap(), summaries::prefix(fourth));
    crate::packs::volumes::for_each_file(&scene.store, meta, prefix.as_bytes(), |name, info| {
        scene.store.delete(meta, name, info.fid)?;
        Ok(())
    })
    .unwrap();
    let freed = free(scene.snapshots[0]);
    assert_eq!((freed.by_summary, freed.by_walk), (0, 1), "{freed:?}");
    let freed = free(scene.snapshots[1]);
    assert_eq!((freed.by_summary, freed.by_walk), (1, 0), "{freed:?}");
}

#[test]
fn a_signature_with_another_key_is_ignored() {
    for layout in LAYOUTS {
        let scene = RolesScene::new(layout);
        let foreign = DomainKeys::derive(&[3; 32]);
        let log = LogName::Vm(scene.vm);
        let place = log.place(scene.next(log));
        let forget = Record::Forget { snapshots: scene.snapshots.clone() };
        // The record with a signature by another key and a valid MAC of this repository.
        let mut body = forget.encode(&place, &scene.keys)[copal_codec::ENVELOPE_LEN..].to_vec();
        body.truncate(body.len() - crate::keys::MAC_BYTES);
        foreign.set_signatures(crate::keys::SignatureState::Needed);
        let signature = foreign.sign(&place, &body).unwrap();
        body.extend_from_slice(&signature);
        let mac = scene.keys.mac(&place, &body);
        body.extend_from_slice(&mac);
        let mut file = vec![0; copal_codec::ENVELOPE_LEN];
        file.extend_from_slice(&body);
        copal_codec::Envelope::seal(&crate::catalog::record::SIGNED, 0, 0, &mut file);
        scene.put(&place, file);
        assert!(scene.is_complete(), "{layout:?}");
    }
}

/// An append looks for a checkpoint that covers its number: a file name alone must not make a checkpoint.
#[test]
fn a_file_named_like_a_checkpoint_blocks_no_append() {
    for layout in LAYOUTS {
        let scene = RolesScene::new(layout);
        for log in [LogName::Domain, LogName::Vm(scene.vm)] {
            let place = log.checkpoint_place(u64::MAX - 1);
            scene.put(&place, b"no checkpoint".to_vec());
            let place = log.checkpoint_place(u64::MAX);
            let mut state = VmState::default();
            state.set_next_number(u64::MAX);
            scene.put(&place, checkpoint::encode(&state, &place, &scene.keys));
        }
        let backup = open_with(&scene.store, &Unlock::Key(scene.backup.clone()));
        back_up(&backup, "web", &disk(), false);
        back_up(&backup, "db", &disk(), false);
        // The delete role can remove them.
        let deleter = open_with(&scene.store, &Unlock::Key(scene.delete.clone()));
        assert_eq!(deleter.salvage_catalog().unwrap().len(), 4);
        assert!(check(&deleter).is_clean(), "{layout:?}");
        assert_eq!(deleter.snapshots(None).unwrap().len(), 4);
        back_up(&backup, "web", &disk(), false);
    }
}

#[test]
fn a_backup_key_chooses_neither_the_time_nor_the_id_of_an_existing_snapshot() {
    for layout in LAYOUTS {
        let scene = RolesScene::new(layout);
        let publish = |vm, snapshot, clock_ms| {
            let session = [7; 16];
            let log = LogName::Vm(vm);
            scene.forge(log, &Record::Open { session, base: None });
            let state = open_with(&scene.store, &password()).parts().vm_state(vm).unwrap();
            scene.forge(
                log,
                &Record::Publish {
                    session,
                    snapshot,
                    sequence: state.next_sequence,
                    manifest: [0; 32],
                    clock_ms: Some(clock_ms),
                    is_dated: false,
                },
            );
        };
        let fresh = SnapshotId([0x77; 16]);
        let now_ms = scene.store.now_ms();
        publish(scene.vm, fresh, 1_000_000);
        let repository = open_with(&scene.store, &password());
        let state = repository.parts().vm_state(scene.vm).unwrap();
        let dated = state.published.last().unwrap();
        assert_eq!(dated.snapshot, fresh);
        assert!(dated.created_ms >= now_ms, "{layout:?}: {} {now_ms}", dated.created_ms);
        repository.forget(&[fresh]).unwrap();
        // A second snapshot of one id would be forgotten together with the first.
        publish(scene.vm, scene.snapshots[0], 1);
        assert_eq!(scene.visible(), scene.snapshots);
        // The same holds for an id of another VM's snapshot.
        let other = Uuid::from_bytes([5; 16]);
        scene.forge(LogName::Domain, &Record::VmAdded { vm: other, name: "other".into() });
        publish(other, scene.snapshots[0], 1);
        let refused = open_with(&scene.store, &password()).forget(&scene.snapshots);
        assert!(matches!(refused, Err(Error::Ambiguous { .. })), "{refused:?}");
        // If the VM is named too, its snapshot is forgotten.
        let repository = open_with(&scene.store, &password());
        let named = repository.resolve_damaged(&scene.snapshots[0].to_string(), Some("other")).unwrap();
        repository.forget(&[named.id]).unwrap();
        assert_eq!(scene.visible(), scene.snapshots);
        // A VM under two names would have each snapshot twice.
        scene.forge(LogName::Domain, &Record::VmAdded { vm: scene.vm, name: "again".into() });
        assert_eq!(scene.visible(), scene.snapshots);
    }
}

#[test]
fn a_backup_key_dates_no_copy() {
    for layout in LAYOUTS {
        let is_ignored = || {
            let scene = RolesScene::new(layout);
            let session = [9; 16];
            let dated = Record::Publish {
                session,
                snapshot: SnapshotId([0x77; 16]),
                sequence: 9,
                manifest: [0; 32],
                clock_ms: Some(1_000_000),
                is_dated: true,
            };
            scene.forge(LogName::Vm(scene.vm), &Record::Open { session, base: None });
            scene.forge(LogName::Vm(scene.vm), &dated);
            scene.visible() == scene.snapshots
        };
        assert!(is_ignored());
        assert!(!with(&[Flaw::NoSignature], is_ignored));
    }
}

/// A slot that anybody may have written does not permit removing the last one with the master key.
#[test]
fn a_forged_slot_is_reported_and_does_not_count() {
    let scene = RolesScene::new(Layout::Solo);
    let foreign = DomainKeys::derive(&[3; 32]);
    let key = RoleKey::of_secret(Role::Admin, [4; 32]);
    let repository = open_with(&scene.store, &password());
    let domain = *repository.info().domain.as_bytes();
    let slot = crate::keys::role_key::encode(&key, domain, [0; 16], &foreign).unwrap();
    scene.put(&key.id().file_name(), slot);
    let cost = crate::keys::key_slot::HashCost { memory_kib: 64, passes: 1, lanes: 1 };
    let other = Unlock::Password(Zeroizing::new("other".into()));
    let slot = crate::keys::key_slot::encode(&other, domain, [0; 16], cost, &[3; 32]).unwrap();
    scene.put("key.9", slot);
    let listed = repository.list_keys().unwrap();
    let of = |id: &str| listed.iter().find(|key| key.id == id).unwrap();
    assert_eq!(of(&key.id().to_string()).is_genuine, Some(false));
    assert_eq!(of("9").is_genuine, None);
    assert_eq!(of("0").is_genuine, Some(true));
    assert!(matches!(repository.remove_key("0"), Err(Error::Denied { .. })));
    // They are removed like others.
    repository.remove_key(&key.id().to_string()).unwrap();
    repository.remove_key("9").unwrap();
    assert_eq!(repository.list_keys().unwrap().len(), 3);
}
