//! Who is told that a volume is gone, and when the master forgets it.

use super::*;
use crate::tables::meta_store::MemberKind;
use copal_volume::VolumeId;

/// Three servers with all groups, a fourth that holds nothing, and a volume that was removed.
fn removed() -> (Master, VolumeId, u64) {
    let master = master();
    for number in 1..=4 {
        master.join(&joiner(number), 1000).unwrap();
        told(&master, number, 0, 1000);
    }
    let vid = master.mkdir("", "mail", Some(1 << 20)).unwrap();
    let kept = master.mkdir("", "kept", Some(1 << 20)).unwrap();
    assert_ne!(kept, vid);
    let removing = master.begin_rmdir("mail", vid).unwrap();
    master.rmdir(&removing).unwrap();
    let version = master.map().version;
    (master, vid, version)
}

fn told(master: &Master, number: u8, map_version: u64, now_ms: u64) {
    let beat = Beat { map_version, ..beat(number, 1) };
    master.beat(beat, now_ms).unwrap();
}

fn gone(master: &Master) -> usize {
    let remembered = master.reign.lock().gone.len();
    let kept = master.reign.lock().meta.gone(0).unwrap().len();
    assert_eq!(remembered, kept, "memory and database agree");
    kept
}

#[test]
fn a_volume_is_remembered_until_all_members_know_that_it_is_gone() {
    let (master, _, version) = removed();
    for number in 1..=2 {
        told(&master, number, version, 20_000);
    }
    // The third was heard before, and has not entered this map.
    told(&master, 3, version - 1, 20_000);
    master.tick(20_000).unwrap();
    assert_eq!(gone(&master), 1);
    // It is away, and is waited for.
    master.fail(3, "refuses connections", 21_000).unwrap();
    for now_ms in [32_000, 43_000] {
        told(&master, 1, version, now_ms);
        told(&master, 2, version, now_ms);
        master.tick(now_ms).unwrap();
    }
    assert_eq!(gone(&master), 1);
    told(&master, 3, version, 44_000);
    master.tick(54_000).unwrap();
    assert_eq!(gone(&master), 0);
}

#[test]
fn who_was_given_up_is_not_waited_for() {
    let (master, _, version) = removed();
    for number in 1..=2 {
        told(&master, number, version, 20_000);
    }
    master.fail(3, "refuses connections", 21_000).unwrap();
    master.lose("data3", 21_000).unwrap();
    // The fourth takes its place once it knows of the groups, and is to be told, too.
    for now_ms in [22_000, 28_000, 34_000] {
        let version = master.map().version;
        for number in [1, 2, 4] {
            told(&master, number, version, now_ms);
        }
        master.tick(now_ms).unwrap();
    }
    assert_eq!(gone(&master), 0);
}

#[test]
fn who_has_just_become_a_member_is_told_first() {
    let (master, vid, version) = removed();
    let group = vid.birth_group();
    for number in 1..=4 {
        told(&master, number, version, 20_000);
    }
    let mut members = master.map().groups[&group].members.clone();
    members[2] = (4, MemberKind::Full);
    master.reign.lock().change_members(vec![(group, members)]).unwrap();
    master.tick(20_000).unwrap();
    assert_eq!(gone(&master), 1, "the fourth was told of nothing when it was no member");
    for number in 1..=4 {
        told(&master, number, master.map().version, 31_000);
    }
    master.tick(31_000).unwrap();
    assert_eq!(gone(&master), 0);
}

/// Symptom: a server that became a member of a group took creates of volumes that had been removed before,
/// and went by no quota that was set before. Cause: the map tells what has changed since the one that the
/// server has entered, and it had entered later ones as a member of other groups. Fix: where the members of a
/// group have changed, all of its volumes that are gone and all of its quotas are told again.
#[test]
fn a_new_member_is_told_of_volumes_that_went_before_it_came() {
    let (master, vid, version) = removed();
    let group = vid.birth_group();
    let delta = |since: u64| master.map_since(since, Duration::ZERO, 1000);
    assert_eq!(delta(version - 1).gone_volumes, [vid.0]);
    assert_eq!(delta(version).gone_volumes, [0_u64; 0]);
    let kept = master.resolve("kept").unwrap();
    for (of, gone, limits) in
        [(group, vec![vid.0], Vec::new()), (kept.birth_group(), Vec::new(), vec![kept.0])]
    {
        let since = master.map().version;
        let mut members = master.map().groups[&of].members.clone();
        members[2] = (4, MemberKind::Full);
        master.reign.lock().change_members(vec![(of, members)]).unwrap();
        let delta = delta(since);
        let told: Vec<u64> = delta.limits.iter().map(|limit| limit.volume).collect();
        assert_eq!((delta.gone_volumes, told), (gone, limits));
    }
}
