//! Tests of the rules of a clean-up, each with its negative control.

use super::{Flaw, with};
use crate::request::peers::Writer;
use crate::request::peers::{Answer, Ids, Peers, Turn};
use crate::world::*;
use crate::{CancelFlag, CleanUpOptions, Collaboration, Repository, Silent};
use copal_volume::{MemoryStore, PutOptions, ReadOptions, VolumeStore};
use std::io;
use uuid::Uuid;

/// Other hosts that claim to have every chunk.
struct EagerPeers<'a> {
    repository: &'a Repository,
    store: &'a MemoryStore,
    /// Damages the popular packs after their check.
    spoils: bool,
}

impl Peers for EagerPeers<'_> {
    fn begin(&self, _vm: Uuid, _turn: Turn) -> Result<(), String> {
        Ok(())
    }
    fn end(&self, _vm: Uuid, _turn: Turn) {}
    fn send(&self, _vm: Uuid, ids: Ids<'_>) -> io::Result<u64> {
        Ok(ids.count() as u64)
    }
    fn receive(&self, sent: u64) -> Vec<Answer> {
        vec![Answer::STORE_POPULAR; sent as usize]
    }
    fn ask_again(&self, _vm: Uuid, _ids: Ids<'_>) -> io::Result<Option<Vec<Answer>>> {
        Ok(None)
    }
    fn stored(&self) {
        for pack in self.repository.unchecked_popular().unwrap() {
            assert!(self.repository.check_popular(pack.pack, &CancelFlag::new()).unwrap());
        }
        if self.spoils {
            spoil_popular(self.store);
        }
    }
}

/// Changes a byte of every frame of the popular packs, but not their ends.
fn spoil_popular(store: &MemoryStore) {
    let mut volumes = store.list_volumes("", None, 100).unwrap();
    volumes.retain(|(name, _)| name.starts_with("pds-"));
    for (_, vid) in volumes {
        for (file, info) in store.list(vid, b"", None, 100, &ReadOptions::default()).unwrap() {
            let read = ReadOptions::default();
            let mut body = store.get(vid, &file, 0..info.size, &read).unwrap().to_vec();
            let frames = 100..body.len() - 20_000;
            body[frames].iter_mut().step_by(64).for_each(|byte| *byte ^= 1);
            store.delete(vid, &file, info.fid).unwrap();
            store.put(vid, &file, body.into(), &PutOptions::default()).unwrap();
        }
    }
}

/// Whether a VM can be restored and backed up after a clean-up and the removal of its dead frames.
fn survives(spoils: bool) -> bool {
    let store = MemoryStore::new();
    let repository = init_as(&store, FLEET);
    let mut disk = Disk::new(3 << 20);
    Random::new(1).fill(&mut disk.bytes);
    let web = back_up(&repository, "web", &disk, false);
    let spool = tempfile::tempdir().unwrap();
    let peers = EagerPeers { repository: &repository, store: &store, spoils };
    let others = Collaboration {
        peers: &peers,
        spool_directory: spool.path().to_owned(),
        writer: Writer::of("host"),
        part_bytes: u64::MAX,
    };
    let cancel = CancelFlag::new();
    // With the rule broken, it may meet its own damage.
    let options = CleanUpOptions::all(24 << 20);
    let _ = repository.clean_up_vm("web", &others, options, &Silent, &cancel);
    let is_freed = open(&store).delete(&Silent, &cancel).is_ok();
    let is_whole = try_restore(&open(&store), web.snapshot).is_ok_and(|bytes| bytes == disk.bytes);
    is_freed && is_whole && try_back_up(&open(&store), "web", &disk, false).is_ok()
}

#[test]
fn a_frame_is_given_up_only_for_one_that_decrypts() {
    assert!(survives(true));
    assert!(!with(&[Flaw::MovesUnopened], || survives(true)), "the flaw is not noticed");
}

#[test]
fn a_list_is_durable_before_a_record_names_it() {
    assert!(survives(false));
    assert!(!with(&[Flaw::NamesUnwritten], || survives(false)), "the flaw is not noticed");
}
