//! Who has missed what, once a group goes on from one member by an operator's order.

use super::*;
use crate::tables::meta_store::GroupRow;
use std::collections::BTreeSet;

/// What a server says of one of its groups as its last view is now.
fn told(master: &Master, number: u8, incarnation: u64, group: GroupId, role: Role) {
    let map = master.map();
    let epoch = map.view(&map.groups[&group]).epoch;
    let beat =
        Beat { groups: vec![(group, epoch, role)], is_whole: role.is_in_sync(), ..beat(number, incarnation) };
    master.beat(beat, 3000).unwrap();
}

/// A group whose third member came back without what it missed, after which both others went, the second
/// last.
fn bereft() -> (Master, GroupRow) {
    let master = three();
    let vid = master.mkdir("", "mail", None).unwrap();
    let group = vid.birth_group();
    master.fail(3, "refuses connections", 2000).unwrap();
    told(&master, 3, 2, group, Role::Recovering);
    for number in [1, 2] {
        master.fail(number, "refuses connections", 2500).unwrap();
    }
    told(&master, 3, 2, group, Role::Recovering);
    let row = master.map().groups[&group].clone();
    (master, row)
}

fn who_missed(master: &Master, group: GroupId) -> BTreeSet<u32> {
    let map = master.map();
    let missed = map.missed.keys().filter(|(of, _)| *of == group);
    missed.map(|(_, disk)| *disk).collect()
}

/// The last that were whole are so no longer: the group went on without them.
#[test]
fn all_others_have_missed_what_was_before_the_order_and_the_chosen_one_nothing() {
    let (master, row) = bereft();
    let group = row.group;
    assert_eq!(who_missed(&master, group), BTreeSet::from([1, 3]), "the second was the last whole one");
    let epoch = master.accept(group, "data3", "{}", 4000).unwrap();
    assert_eq!(who_missed(&master, group), BTreeSet::from([1, 2]));
    let map = master.map();
    assert_eq!(map.view(&map.groups[&group]).epoch, epoch);
    for disk in [1, 2] {
        assert!(map.missed[&(group, disk)] < epoch.0, "{:?}", map.missed);
    }
    // The database says the same to the next master.
    let kept = master.reign.lock().meta.missed().unwrap().into_iter();
    let kept: BTreeSet<u32> = kept.filter(|((of, _), _)| *of == group).map(|((_, disk), _)| disk).collect();
    assert_eq!(kept, BTreeSet::from([1, 2]));
}

#[test]
fn a_group_that_has_a_whole_member_is_not_made_to_go_on_from_another() {
    let (master, row) = bereft();
    // It is back, is told so, and says what it has in the view that follows.
    for _ in 0..3 {
        told(&master, 2, 2, row.group, Role::Normal);
    }
    told(&master, 3, 2, row.group, Role::Recovering);
    let refused = master.accept(row.group, "data3", "{}", 4000);
    let said = format!("{refused:?}");
    assert!(said.contains("data2 has everything"), "{said}");
    assert_eq!(who_missed(&master, row.group), BTreeSet::from([1, 3]));
}
