//! Missed operations after a force-accept.

use super::*;
use crate::tables::meta_store::GroupRow;
use std::collections::BTreeSet;

/// Sends a heartbeat with the role of a server in the present view of a group.
fn report(master: &Master, number: u8, incarnation: u64, group: GroupId, role: Role) {
    let map = master.map();
    let epoch = map.view(&map.groups[&group]).epoch;
    let beat = ServerHeartbeat {
        groups: vec![(group, epoch, role)],
        is_in_sync: role.is_in_sync(),
        ..beat(number, incarnation)
    };
    master.heartbeat(beat, 3000).unwrap();
}

/// A group whose third member returned without the operations that it missed. Then both others failed, the
/// second one last.
fn group_without_in_sync_member() -> (Master, GroupRow) {
    let master = three();
    let vid = master.mkdir("", "mail", None).unwrap();
    let group = vid.birth_group();
    master.mark_failed(3, "refuses connections", 2000).unwrap();
    report(&master, 3, 2, group, Role::Recovering);
    for number in [1, 2] {
        master.mark_failed(number, "refuses connections", 2500).unwrap();
    }
    report(&master, 3, 2, group, Role::Recovering);
    let row = master.map().groups[&group].clone();
    (master, row)
}

fn missed_members(master: &Master, group: GroupId) -> BTreeSet<u32> {
    let map = master.map();
    let missed = map.missed.keys().filter(|(of, _)| *of == group);
    missed.map(|(_, disk)| *disk).collect()
}

/// The last in-sync members are not in sync any more, because the group continued without them.
#[test]
fn all_other_members_have_missed_earlier_operations_and_the_chosen_one_none() {
    let (master, row) = group_without_in_sync_member();
    let group = row.group;
    assert_eq!(missed_members(&master, group), BTreeSet::from([1, 3]), "the second was the last one in sync");
    let epoch = master.force_accept(group, "data3", "{}", 4000).unwrap();
    assert_eq!(missed_members(&master, group), BTreeSet::from([1, 2]));
    let map = master.map();
    assert_eq!(map.view(&map.groups[&group]).epoch, epoch);
    for disk in [1, 2] {
        assert!(map.missed[&(group, disk)] < epoch.0, "{:?}", map.missed);
    }
    // The database has the same for the next master.
    let kept = master.state.lock().tables.missed_members().unwrap().into_iter();
    let kept: BTreeSet<u32> = kept.filter(|((of, _), _)| *of == group).map(|((_, disk), _)| disk).collect();
    assert_eq!(kept, BTreeSet::from([1, 2]));
}

#[test]
fn a_group_with_a_member_in_sync_does_not_accept_another() {
    let (master, row) = group_without_in_sync_member();
    // It returns, learns its new view, and reports its role in that view.
    for _ in 0..3 {
        report(&master, 2, 2, row.group, Role::Normal);
    }
    report(&master, 3, 2, row.group, Role::Recovering);
    let refused = master.force_accept(row.group, "data3", "{}", 4000);
    let said = format!("{refused:?}");
    assert!(said.contains("data2 is in sync"), "{said}");
    assert_eq!(missed_members(&master, row.group), BTreeSet::from([1, 3]));
}
