//! Tests of the log of popular packs.

use super::*;
use crate::steps::popular::{OwnHost, needs_check, needs_verdict};

fn state_of(records: impl IntoIterator<Item = Record>) -> PopularState {
    let mut state = PopularState::default();
    for (record, number) in records.into_iter().zip(0..) {
        state.apply(&LogEntry { number, created_ms: 0, record });
    }
    state
}

fn popular(pack: u64, first_ordinal: u32, frames: u32) -> Record {
    Record::Popular {
        volume: 1,
        pack: PackNumber(pack),
        first_ordinal,
        frames,
        writer: Writer(9),
        host: None,
    }
}

#[test]
fn ordinals_ascend_and_resolve_to_frames_after_a_lost_record() {
    let checked = Record::Checked { pack: PackNumber(7), host: None };
    let state = state_of([popular(9, 0, 3), popular(7, 4, 2), popular(9, 6, 3), checked.clone(), checked]);
    assert_eq!(state.next_ordinal(), 6);
    let found = |ordinal| state.of_ordinal(ordinal).map(|(pack, slot)| (pack.pack.0, slot));
    assert_eq!(
        [0, 2, 3, 4, 5, 6].map(found),
        [Some((9, 0)), Some((9, 2)), None, Some((7, 0)), Some((7, 1)), None]
    );
    assert_eq!(state.pack(PackNumber(7)).and_then(|pack| pack.checked_at), Some(3));
    assert_eq!(state.pack(PackNumber(9)).and_then(|pack| pack.checked_at), None);
    let mut bytes = Vec::new();
    state.put(&mut bytes);
    assert_eq!(PopularState::parse(5, &mut Reader::new(&bytes), 2), Ok(state));
}

#[test]
fn a_condemned_pack_is_spared_or_removed_and_a_checkpoint_keeps_that() {
    let packs = |numbers: &[u64]| numbers.iter().map(|number| PackNumber(*number)).collect();
    let state = state_of([
        popular(1, 0, 3),
        popular(2, 3, 3),
        popular(3, 6, 3),
        popular(4, 9, 3),
        Record::Spared { packs: packs(&[4]) },
        Record::Condemned { packs: packs(&[1, 2, 3, 9]) },
        Record::Spared { packs: packs(&[2, 4]) },
        Record::Gone { packs: packs(&[3]) },
    ]);
    let fates: Vec<PopularFate> = state.packs.iter().map(|pack| pack.fate).collect();
    assert_eq!(
        fates,
        [PopularFate::Condemned(5), PopularFate::Stays, PopularFate::Removed, PopularFate::Stays]
    );
    assert_eq!(state.generation, 8);
    // Its ordinals are not used again.
    assert_eq!(state.next_ordinal(), 12);
    let mut bytes = Vec::new();
    state.put(&mut bytes);
    assert_eq!(PopularState::parse(8, &mut Reader::new(&bytes), 2), Ok(state));
    for len in 0..bytes.len() {
        let _ = PopularState::parse(8, &mut Reader::new(&bytes[..len]), 2);
    }
}

fn host(number: u8) -> HostKey {
    HostKey([number; 32])
}

fn entered(number: u8) -> Record {
    Record::HostEntered { host: host(number), key: KeyId([number; 8]) }
}

fn signed(pack: u64, first_ordinal: u32, by: u8) -> Record {
    let Record::Popular { volume, pack, first_ordinal, frames, writer, .. } = popular(pack, first_ordinal, 1)
    else {
        unreachable!("it was made above")
    };
    Record::Popular { volume, pack, first_ordinal, frames, writer, host: Some(host(by)) }
}

fn checked(pack: u64, by: Option<u8>) -> Record {
    Record::Checked { pack: PackNumber(pack), host: by.map(host) }
}

fn spoiled(pack: u64, by: Option<u8>) -> Record {
    Record::Spoiled { pack: PackNumber(pack), host: by.map(host) }
}

/// Symptom: a host that stored other bytes under popular ids, and entered Checked itself, damaged
/// snapshots of all other hosts. Cause: a Checked record of any host counted, and no record could mark a
/// pack as bad. Fix: hosts sign; an unsigned Checked, or one by the writer, is ignored, and Spoiled stays
/// in force.
#[test]
fn a_pack_is_checked_by_another_host_and_stays_spoiled() {
    let records = vec![
        // Entered before the first host.
        popular(1, 0, 1),
        popular(2, 1, 1),
        checked(2, None),
        entered(1),
        entered(2),
        entered(2),
        signed(3, 2, 1),
        checked(3, Some(1)),
        checked(3, None),
        checked(3, Some(9)),
        signed(4, 3, 1),
        checked(4, Some(2)),
        // Not signed, or signed by a host that is not entered: no host may check it, since its writer is
        // unknown.
        popular(5, 4, 1),
        checked(5, Some(2)),
        signed(6, 5, 9),
        checked(6, Some(1)),
        checked(1, Some(1)),
        signed(7, 6, 2),
        spoiled(7, Some(9)),
        spoiled(7, None),
        checked(7, Some(1)),
        spoiled(4, Some(2)),
        checked(4, Some(2)),
    ];
    let state = state_of(records);
    let known = |number| *state.pack(PackNumber(number)).unwrap();
    let is_checked = [1, 2, 3, 4, 5, 6, 7].map(|pack| known(pack).checked_at.is_some());
    assert_eq!(is_checked, [true, true, false, true, false, false, true]);
    let is_spoiled = [1, 2, 3, 4, 5, 6, 7].map(|pack| known(pack).spoiled_at.is_some());
    assert_eq!(is_spoiled, [false, false, false, true, false, false, false]);
    assert_eq!(state.generation, 22, "owners of partitions make their runs anew");
    assert_eq!(state.hosts.len(), 2);
    assert_eq!((known(3).host, known(5).host, known(6).host), (Some(host(1)), None, None));
    let mut bytes = Vec::new();
    state.put(&mut bytes);
    let number = state.next_number;
    assert_eq!(PopularState::parse(number, &mut Reader::new(&bytes), 2), Ok(state));
    for len in 0..bytes.len() {
        let _ = PopularState::parse(number, &mut Reader::new(&bytes[..len]), 2);
    }
}

/// Symptom: no test noticed when a second verdict, or a second removal, replaced the first. Which
/// references are valid depends on the first.
#[test]
fn the_first_verdict_and_the_first_removal_count() {
    let removed = || Record::HostRemoved { host: host(1) };
    let state = state_of([
        entered(1),
        entered(2),
        signed(1, 0, 1),
        spoiled(1, Some(2)),
        spoiled(1, Some(2)),
        removed(),
        removed(),
    ]);
    assert_eq!(state.pack(PackNumber(1)).unwrap().spoiled_at, Some(3));
    assert_eq!(state.generation, 4);
    assert_eq!(state.hosts[0].removed_at, Some(5));
}

#[test]
fn a_removed_pack_needs_no_verdict_and_a_host_without_a_key_is_no_writer() {
    let gone = Record::Gone { packs: vec![PackNumber(1)] };
    let state = state_of([entered(1), popular(1, 0, 1), popular(2, 1, 1), gone]);
    let needs = |pack| [needs_check, needs_verdict].map(|needs| needs(&state, PackNumber(pack)));
    assert_eq!((needs(1), needs(2)), ([false; 2], [true; 2]));
    // The name matches, but the record is not signed.
    let known = state.pack(PackNumber(2)).unwrap();
    let own = OwnHost { writer: known.writer, key: None };
    assert!(!own.has_written(&state, known));
    let unsigned = state_of([popular(2, 0, 1)]);
    assert!(own.has_written(&unsigned, unsigned.pack(PackNumber(2)).unwrap()));
}

#[test]
fn without_hosts_anybody_checks_and_spoils() {
    let state = state_of([popular(1, 0, 1), checked(1, None), spoiled(1, None)]);
    let known = state.pack(PackNumber(1)).unwrap();
    assert_eq!((known.checked_at, known.spoiled_at), (Some(1), Some(2)));
    let mut bytes = Vec::new();
    state.put(&mut bytes);
    assert_eq!(PopularState::parse(3, &mut Reader::new(&bytes), 2), Ok(state));
}

#[test]
fn a_pack_beyond_the_last_ordinal_is_not_entered() {
    let last = Answer::FIRST_CODE - 1;
    let state = state_of([popular(1, 0, last), popular(2, last, 2), popular(4, 3, 1), popular(3, last, 1)]);
    let packs: Vec<u64> = state.packs.iter().map(|pack| pack.pack.0).collect();
    assert_eq!(packs, [1, 3]);
    assert!(!state.has_room(state.next_ordinal(), 1));
}
