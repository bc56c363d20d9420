//! Attack of a host: it stores other bytes under the id of a popular chunk, and records itself that they are
//! right (BAK-20).
//!
//! The host has a backup key of the repository and can create any records. It does not have the key of
//! another host.

use super::{Flaw, with};
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::{FORMAT, Record};
use crate::keys::role::{Role, RoleKey};
use crate::keys::{MAC_BYTES, random};
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::packs::pack::writer::{FrameInput, WrittenPack};
use crate::packs::pack_appender::PackAppender;
use crate::popular;
use crate::request::peers::{HostKey, Writer};
use crate::request::*;
use crate::steps::popular::{OwnHost, counts, counts_for};
use crate::world::*;
use crate::{CancelFlag, IndexHome, Repository};
use copal_codec::{ENVELOPE_LEN, Envelope};
use copal_kv::Durability;
use copal_volume::MemoryStore;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A fleet with a key for each host.
struct SignedFleet {
    admin: Repository,
    keys: Vec<RoleKey>,
    handles: Vec<Repository>,
}

impl SignedFleet {
    fn new(count: usize) -> SignedFleet {
        let store = MemoryStore::new();
        let options = InitOptions {
            layout: FLEET,
            argon2_memory_kib: 64,
            ..InitOptions::new(Unlock::Password(Zeroizing::new("correct horse".into())))
        };
        let admin = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap();
        let key = |_| {
            let key = admin.draw_key(Role::Backup).unwrap();
            admin.add_key(&key).unwrap();
            key
        };
        let keys: Vec<RoleKey> = (0..count).map(key).collect();
        let open = |key: &RoleKey| {
            let unlock = Unlock::Key(key.clone());
            Repository::open(Arc::new(store.clone()), IndexHome::Memory, &unlock).unwrap()
        };
        let handles = keys.iter().map(open).collect();
        SignedFleet { admin, keys, handles }
    }

    fn remove_key(&self, host: usize) {
        let removed = self.admin.remove_key(&self.keys[host].id().to_string());
        assert_eq!(removed.unwrap().role, Some(Role::Backup));
    }

    fn add_key(&self, host: usize) {
        self.admin.add_key(&self.keys[host]).unwrap();
    }

    fn key(&self, host: usize) -> Option<HostKey> {
        let key = self.handles[host].host_key();
        assert!(key.is_some(), "a host with a role key signs");
        key
    }

    /// A host stores `raw` under the id of `named`, in the name of `writer`.
    fn store(&self, host: usize, writer: &str, raw: &[u8], named: &[u8]) -> PackNumber {
        store_by(&self.handles[host], writer, raw, named)
    }

    /// A host records that it has checked a pack.
    fn say_checked(&self, host: usize, pack: PackNumber) {
        let host_key = self.key(host);
        self.say(host, &Record::Checked { pack, host: host_key });
    }

    /// A host records that a pack is spoiled.
    fn say_spoiled(&self, host: usize, pack: PackNumber) {
        let host_key = self.key(host);
        self.say(host, &Record::Spoiled { pack, host: host_key });
    }

    fn say(&self, host: usize, record: &Record) {
        let catalog = self.handles[host].parts().catalog();
        let number = catalog.popular().unwrap().next_number;
        let appended = catalog.append(LogName::Popular, number, record).unwrap();
        assert!(matches!(appended, AppendOutcome::Done));
    }

    fn counts(&self, host: usize, pack: PackNumber) -> bool {
        counts(&self.handles[host].parts().catalog().popular().unwrap(), pack)
    }

    fn check(&self, host: usize, pack: PackNumber) -> bool {
        let handle = &self.handles[host];
        handle.check_popular(pack.0, &CancelFlag::new()).unwrap()
    }
}

fn write_by(handle: &Repository, raw: &[u8], named: &[u8]) -> WrittenPack {
    let parts = handle.parts();
    let session = random().unwrap();
    let mut packs = PackAppender::new(parts.pack_store(), PackHome::Shared, session, Durability::Device);
    let frame = FrameInput {
        id: parts.pack_store().keys.id.id(named).short(),
        raw_bytes: raw.len() as u32,
        flags: 0,
        payload: raw,
    };
    packs.append(&frame).unwrap();
    packs.finish().unwrap().remove(0)
}

fn store_by(handle: &Repository, writer: &str, raw: &[u8], named: &[u8]) -> PackNumber {
    let written = write_by(handle, raw, named);
    popular::enter(handle.parts(), &written, Writer::of(writer)).unwrap();
    written.number
}

/// Whether a host's check of its own pack counts for another host.
fn is_believed() -> bool {
    let hosts = SignedFleet::new(2);
    let pack = hosts.store(0, "liar", b"others", b"a chunk");
    hosts.say_checked(0, pack);
    hosts.counts(1, pack)
}

/// Symptom: a host that stored other bytes under popular ids, and recorded its own check of them, damaged
/// every snapshot that referred to them. Cause: a Checked record of any host counted. Fix: hosts sign with
/// keys of their own, and a Checked record of the writer is ignored.
#[test]
fn a_check_by_the_writer_of_a_pack_is_ignored() {
    assert!(!is_believed());
    assert!(with(&[Flaw::ChecksOwn], is_believed), "the flaw is not noticed");
}

/// Whether a spoiled pack counts again after another host has recorded a check.
fn comes_back() -> bool {
    let hosts = SignedFleet::new(3);
    let pack = hosts.store(0, "h1", b"others", b"a chunk");
    assert!(!hosts.check(1, pack));
    // An accomplice with a key of its own.
    hosts.say_checked(2, pack);
    hosts.counts(1, pack)
}

#[test]
fn a_spoiled_pack_stays_spoiled_despite_later_checks() {
    assert!(!comes_back());
    assert!(with(&[Flaw::RefersToSpoiled], comes_back), "the flaw is not noticed");
}

#[test]
fn a_spoiled_pack_names_the_key_of_the_host_that_wrote_it() {
    let hosts = SignedFleet::new(3);
    let good = hosts.store(1, "h1", b"a chunk", b"a chunk");
    // In the name of the other host, as any host may.
    let bad = hosts.store(0, "h1", b"others", b"a chunk");
    let honest = &hosts.handles[1];
    assert_eq!(honest.unchecked_popular().unwrap().len(), 2);
    let from = honest.newest_popular().unwrap();
    assert!(hosts.check(2, good) && hosts.counts(0, good));
    assert!(!hosts.check(1, bad), "it does not take it for its own");
    let spoiled = honest.spoiled_popular(from).unwrap();
    assert_eq!(spoiled.len(), 1);
    assert_eq!((spoiled[0].pack, spoiled[0].key), (bad.0, Some(hosts.keys[0].id())));
    assert!(honest.spoiled_popular(spoiled[0].position).unwrap().is_empty());
    assert!(honest.unchecked_popular().unwrap().is_empty());
    assert_eq!(honest.popular_status().unwrap().spoiled_packs, 1);
    // No answer leads to the pack any more.
    let mut shown = Vec::new();
    let visit = &mut |frames: popular::PopularFrames| {
        shown.extend(frames.ids);
        Ok(())
    };
    honest.for_each_popular_since(0, visit).unwrap();
    assert_eq!(shown.len(), 2, "the good one, stored and checked");
    // The key determines the writer of a pack, not the name.
    let state = honest.parts().catalog().popular().unwrap();
    let unchecked = hosts.store(0, "h1", b"more", b"more");
    let own = |host: usize| OwnHost { writer: Writer::of("h1"), key: hosts.key(host) };
    drop(state);
    let state = honest.parts().catalog().popular().unwrap();
    assert!(counts_for(&state, unchecked, own(0)) && !counts_for(&state, unchecked, own(1)));
}

/// A host does not check its own pack: it leaves that to another host, and records nothing.
#[test]
fn a_host_records_no_check_of_its_own_pack() {
    let hosts = SignedFleet::new(2);
    let pack = hosts.store(0, "h1", b"a chunk", b"a chunk");
    let before = hosts.handles[0].newest_popular().unwrap();
    assert!(hosts.check(0, pack));
    assert_eq!(hosts.handles[0].newest_popular().unwrap(), before);
    assert!(!hosts.counts(1, pack));
    assert!(hosts.check(1, pack) && hosts.counts(0, pack));
}

/// Whether a host whose key was removed can still confirm a pack.
fn removed_key_is_believed() -> bool {
    let hosts = SignedFleet::new(3);
    let before = hosts.store(0, "h1", b"a chunk", b"a chunk");
    hosts.say_checked(2, before);
    assert!(hosts.counts(1, before));
    hosts.remove_key(2);
    // Its earlier records stay in force: snapshots refer to that pack.
    assert!(hosts.counts(1, before));
    let spoiled = hosts.store(0, "h1", b"others", b"a chunk");
    hosts.say_checked(2, spoiled);
    let is_believed = hosts.counts(1, spoiled);
    assert!(!hosts.check(1, spoiled) || is_believed);
    // Nor can it withdraw good packs of others.
    let good = hosts.store(1, "h2", b"more", b"more");
    assert!(hosts.check(0, good));
    hosts.say_spoiled(2, good);
    let is_taken = !hosts.counts(1, good);
    assert_eq!(is_taken, is_believed);
    // Once entered anew, its records count again.
    hosts.add_key(2);
    let next = hosts.store(1, "h2", b"next", b"next");
    hosts.say_checked(2, next);
    assert!(hosts.counts(1, next));
    is_believed
}

/// Symptom: a stolen key that was removed with `copal key rm` could still confirm popular packs. Cause: the
/// removal took the slot and left the host entered in log `k`. Fix: a record ends the host.
#[test]
fn a_host_whose_key_was_removed_confirms_no_pack() {
    assert!(!removed_key_is_believed());
    assert!(with(&[Flaw::RemovedKeyCounts], removed_key_is_believed), "the flaw is not noticed");
}

/// The slot of a key was removed before removals ended hosts: the next removal of any key ends its host too.
#[test]
fn a_host_without_a_slot_is_ended_by_the_next_removal() {
    let hosts = SignedFleet::new(3);
    let slot = hosts.keys[0].id().file_name();
    let parts = hosts.admin.parts();
    let store = &parts.pack_store().volumes.store;
    let listed = hosts.admin.list_keys().unwrap();
    let lost = listed.iter().find(|key| key.file_name() == slot).unwrap();
    store.delete(parts.catalog().files().vid(), slot.as_bytes(), lost.fid).unwrap();
    hosts.remove_key(2);
    let pack = hosts.store(1, "h2", b"a chunk", b"a chunk");
    for gone in [0, 2] {
        hosts.say_checked(gone, pack);
        assert!(!hosts.counts(1, pack));
    }
}

/// Symptom: a host could check its own packs in the name of another one, and no test noticed: every host can
/// compute the MAC of a record. Fix: this test; a record in the name of a host counts as unsigned unless the
/// host's own key signed it.
#[test]
fn a_record_in_the_name_of_another_host_counts_as_unsigned() {
    let hosts = SignedFleet::new(2);
    let keys = &hosts.handles[0].parts().pack_store().keys;
    let (liar, other) = (hosts.key(0).unwrap(), hosts.key(1).unwrap());
    let (pack, place) = (PackNumber(7), LogName::Popular.place(3));
    let checked = |host: Option<HostKey>| Record::Checked { pack, host };
    let bytes = checked(Some(liar)).encode(&place, keys);
    assert_eq!(Record::decode(&bytes, &place, keys), Ok(checked(Some(liar))));
    let mut forged = bytes[..bytes.len() - MAC_BYTES].to_vec();
    let at =
        forged.windows(liar.0.len()).position(|words| words == liar.0).expect("the key that has signed it");
    forged[at..at + other.0.len()].copy_from_slice(&other.0);
    let mac = keys.mac(&place, &forged[ENVELOPE_LEN..]);
    forged.extend_from_slice(&mac);
    Envelope::seal(&FORMAT, 0, 0, &mut forged);
    assert_eq!(Record::decode(&forged, &place, keys), Ok(checked(None)));
}

/// Symptom: no test noticed when hosts recorded verdicts that are ignored, or known already: the log would
/// grow with each look.
#[test]
fn a_known_or_ineffective_verdict_is_not_recorded() {
    let hosts = SignedFleet::new(4);
    let bad = hosts.store(0, "h1", b"others", b"a chunk");
    hosts.remove_key(3);
    let newest = || hosts.admin.newest_popular().unwrap();
    let before = newest();
    assert!(!hosts.check(3, bad), "its key was removed");
    assert_eq!(newest(), before);
    assert!(!hosts.check(1, bad));
    assert_eq!(newest(), before + 1);
    assert!(!hosts.check(2, bad), "that is known");
    assert_eq!(newest(), before + 1);
    // Nor is a host entered twice.
    popular::enter_host(hosts.admin.parts(), hosts.key(1).unwrap(), hosts.keys[1].id()).unwrap();
    assert_eq!(newest(), before + 1);
}

/// Symptom: no test noticed when a pack with fewer frames than its entry counted as right: ordinals would
/// lead nowhere.
#[test]
fn a_pack_without_the_frames_of_its_entry_is_spoiled() {
    let hosts = SignedFleet::new(2);
    let written = write_by(&hosts.handles[0], b"a chunk", b"a chunk");
    let first_ordinal = hosts.admin.parts().catalog().popular().unwrap().next_ordinal();
    let entry = Record::Popular {
        volume: written.volume,
        pack: written.number,
        first_ordinal,
        frames: 2,
        writer: Writer::of("h1"),
        host: hosts.key(0),
    };
    hosts.say(0, &entry);
    assert!(!hosts.check(1, written.number));
    assert_eq!(hosts.admin.popular_status().unwrap().spoiled_packs, 1);
}

/// A host that uses the password has no role key that could be removed.
#[test]
fn a_host_with_the_password_stays_when_keys_are_removed() {
    let hosts = SignedFleet::new(2);
    let pack = store_by(&hosts.admin, "h3", b"a chunk", b"a chunk");
    let own = hosts.admin.host_key().unwrap();
    hosts.remove_key(1);
    let state = hosts.admin.parts().catalog().popular().unwrap();
    assert!(state.is_entered(&own) && !state.is_entered(&hosts.key(1).unwrap()));
    assert!(hosts.check(0, pack) && hosts.counts(0, pack));
}
