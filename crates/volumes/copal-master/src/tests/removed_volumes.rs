//! Members learn of a removed volume, and then the master forgets it.

use super::*;
use crate::tables::meta_store::MemberKind;
use copal_volume::VolumeId;

/// Three servers with all groups, a fourth that holds nothing, and a volume that was removed.
fn removed() -> (Master, VolumeId, u64) {
    let master = master();
    for number in 1..=4 {
        master.join(&joiner(number), 1000).unwrap();
        report(&master, number, 0, 1000);
    }
    let vid = master.mkdir("", "mail", Some(1 << 20)).unwrap();
    let kept = master.mkdir("", "kept", Some(1 << 20)).unwrap();
    assert_ne!(kept, vid);
    let removing = master.begin_rmdir("mail", vid).unwrap();
    master.rmdir(&removing).unwrap();
    let version = master.map().version;
    (master, vid, version)
}

fn report(master: &Master, number: u8, map_version: u64, now_ms: u64) {
    let beat = ServerHeartbeat { map_version, ..beat(number, 1) };
    master.heartbeat(beat, now_ms).unwrap();
}

fn removed_volumes(master: &Master) -> usize {
    let remembered = master.state.lock().volumes.removed().len();
    let kept = master.state.lock().tables.removed_volumes(0).unwrap().len();
    assert_eq!(remembered, kept, "memory and database agree");
    kept
}

#[test]
fn a_removed_volume_is_remembered_until_all_members_know() {
    let (master, _, version) = removed();
    for number in 1..=2 {
        report(&master, number, version, 20_000);
    }
    // The third has sent a heartbeat, but has not entered this map.
    report(&master, 3, version - 1, 20_000);
    master.tick(20_000).unwrap();
    assert_eq!(removed_volumes(&master), 1);
    // It is down, and the master waits for it.
    master.mark_failed(3, "refuses connections", 21_000).unwrap();
    for now_ms in [32_000, 43_000] {
        report(&master, 1, version, now_ms);
        report(&master, 2, version, now_ms);
        master.tick(now_ms).unwrap();
    }
    assert_eq!(removed_volumes(&master), 1);
    report(&master, 3, version, 44_000);
    master.tick(54_000).unwrap();
    assert_eq!(removed_volumes(&master), 0);
}

#[test]
fn the_master_does_not_wait_for_a_server_that_was_given_up() {
    let (master, _, version) = removed();
    for number in 1..=2 {
        report(&master, number, version, 20_000);
    }
    master.mark_failed(3, "refuses connections", 21_000).unwrap();
    master.give_up_server("data3", 21_000).unwrap();
    // The fourth takes its place once it has entered the view, and must learn of the removal, too.
    for now_ms in [22_000, 28_000, 34_000] {
        let version = master.map().version;
        for number in [1, 2, 4] {
            report(&master, number, version, now_ms);
        }
        master.tick(now_ms).unwrap();
    }
    assert_eq!(removed_volumes(&master), 0);
}

#[test]
fn a_new_member_learns_of_removals_before_they_are_forgotten() {
    let (master, vid, version) = removed();
    let group = vid.birth_group();
    for number in 1..=4 {
        report(&master, number, version, 20_000);
    }
    let mut members = master.map().groups[&group].members.clone();
    members[2] = (4, MemberKind::Full);
    master.state.lock().change_members(vec![(group, members)]).unwrap();
    master.tick(20_000).unwrap();
    assert_eq!(removed_volumes(&master), 1, "the fourth learned of no removal before it was a member");
    for number in 1..=4 {
        report(&master, number, master.map().version, 31_000);
    }
    master.tick(31_000).unwrap();
    assert_eq!(removed_volumes(&master), 0);
}

/// Symptom: a new member of a group accepted creates in volumes that had been removed before, and ignored quotas
/// that were set before.
/// Cause: the map has only changes since the version that the server has entered, and the server had entered
/// later versions as a member of other groups.
/// Fix: when the members of a group change, the map repeats all removed volumes and all quotas of the group.
#[test]
fn a_new_member_learns_of_volumes_that_were_removed_before() {
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
        master.state.lock().change_members(vec![(of, members)]).unwrap();
        let delta = delta(since);
        let limits_sent: Vec<u64> = delta.limits.iter().map(|limit| limit.volume).collect();
        assert_eq!((delta.gone_volumes, limits_sent), (gone, limits));
    }
}
