//! Racks: the places of copies, and the failure of whole racks.

use super::*;

impl Cluster {
    /// Largest number of members of a group in one rack; the disk `without` does not count.
    fn most_in_a_rack(&self, without: u32) -> usize {
        let map = self.master.map();
        let most = map.groups.values().map(|row| {
            let mut racks: BTreeMap<String, usize> = BTreeMap::new();
            for (disk, _) in row.members.iter().filter(|(disk, _)| *disk != without) {
                *racks.entry(map.servers[disk].rack.clone()).or_default() += 1;
            }
            racks.into_values().max().unwrap_or_default()
        });
        most.max().unwrap_or_default()
    }
}

#[test]
fn no_group_has_two_members_in_one_rack_and_a_lost_one_is_replaced_within_its_rack() {
    let mut cluster = Cluster::in_racks(6, 64, MasterOptions::default(), 2);
    assert_eq!(cluster.most_in_a_rack(0), 1);
    let held: Vec<usize> = (1..=6).map(|number| cluster.groups_of(number)).collect();
    assert!(held.iter().all(|held| (20..=44).contains(held)), "{held:?}");
    cluster.kill(3);
    cluster.master.give_up_server("data3", cluster.now_ms).unwrap();
    while !cluster.tasks().is_empty() {
        cluster.step();
        assert_eq!(cluster.most_in_a_rack(3), 1, "during the copies");
    }
    cluster.settle();
    assert_eq!(cluster.most_in_a_rack(0), 1);
    assert_eq!(cluster.groups_of(4), 64, "the remaining server of the rack");
    // The rack has no server left; copies that are too close are better than none.
    cluster.kill(4);
    cluster.master.give_up_server("data4", cluster.now_ms).unwrap();
    cluster.settle();
    assert_eq!(cluster.most_in_a_rack(0), 2);
    // The rack has servers again, so a plan separates the members.
    for number in [7, 8] {
        cluster.join(number);
    }
    cluster.pass(1000);
    let plan = cluster.master.rebalance_plan();
    cluster.master.rebalance_apply(&moves_of(&plan), false, cluster.now_ms).unwrap();
    cluster.settle();
    assert_eq!(cluster.most_in_a_rack(0), 1);
}

#[test]
fn emptying_a_server_brings_no_two_members_into_one_rack() {
    let mut cluster = Cluster::in_racks(8, 32, MasterOptions::default(), 2);
    cluster.master.drain("data1", false, false, cluster.now_ms).unwrap();
    cluster.settle();
    assert_eq!((cluster.groups_of(1), cluster.most_in_a_rack(0)), (0, 1));
}

#[test]
fn a_move_into_the_rack_of_another_member_is_refused() {
    let cluster = Cluster::in_racks(6, 16, MasterOptions::default(), 2);
    let members = cluster.members(1);
    let (leaves, stays) = (members[0], members[1]);
    // The other server in the rack of a staying member.
    let beside = if stays % 2 == 0 { stays - 1 } else { stays + 1 };
    let refused = cluster.denied(&[wanted(1, &format!("data{leaves}"), &format!("data{beside}"))]);
    assert!(refused.contains("1 share a rack or zone with more members than the leaving one"), "{refused}");
}

#[test]
fn a_rack_that_is_reported_later_counts_from_then_on() {
    let mut cluster = Cluster::new(6, 64);
    cluster.servers_a_rack = 2;
    cluster.pass(1000);
    assert_eq!(cluster.master.map().servers[&4].rack, "r2");
    assert!(cluster.most_in_a_rack(0) > 1, "no group moves without an order");
    let plan = cluster.master.rebalance_plan();
    assert!(!plan.moves.is_empty(), "{plan:?}");
}

/// Four of 24 servers are less than a fifth, so their failure starts copies, unless they are two whole racks.
#[test]
fn two_racks_that_fail_at_once_start_no_copies() {
    for (killed, is_held) in [([1, 3, 5, 7], false), ([1, 2, 3, 4], true)] {
        let options = MasterOptions { permanent_after_ms: 60_000, ..MasterOptions::default() };
        let mut cluster = Cluster::in_racks(24, 16, options, 2);
        for number in killed {
            cluster.kill(number);
        }
        cluster.pass(90_000);
        assert_eq!(cluster.events("hold"), usize::from(is_held), "{killed:?}");
        let left: usize = killed.into_iter().map(|number| cluster.groups_of(number)).sum();
        assert_eq!(left > 0, is_held, "{killed:?}: {left} are left");
        if is_held {
            let sentence = cluster.sentence();
            assert!(
                sentence.contains("4 of 24 servers failed within a minute (2 whole racks)"),
                "{sentence}"
            );
        }
    }
}
