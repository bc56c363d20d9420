use super::*;

fn disks(count: u32) -> Vec<DiskFacts> {
    (1..=count)
        .map(|number| DiskFacts {
            disk: DiskId(number),
            identity: [number as u8; 16],
            site: DiskSite { rack: number, zone: number },
            capacity_bytes: 1000,
            used_bytes: 100,
            is_up: true,
            is_draining: false,
        })
        .collect()
}

#[test]
fn a_new_member_is_up_stays_and_has_room() {
    let mut disks = disks(8);
    disks[0].is_up = false;
    disks[1].is_draining = true;
    disks[2].used_bytes = 790;
    for group in 1..200 {
        let members = [DiskId(4)];
        let chosen = choose_new_member(GroupId(group), &members, &members, 11, &disks).unwrap();
        assert!((5..=8).contains(&chosen.0), "{chosen}");
    }
    let at_the_mark = (1..200)
        .any(|group| choose_new_member(GroupId(group), &[DiskId(4)], &[], 10, &disks) == Ok(DiskId(3)));
    assert!(at_the_mark, "80 % exactly is not above it");
}

#[test]
fn without_a_place_the_reasons_are_counted() {
    let mut disks = disks(4);
    disks[1].is_up = false;
    disks[2].is_draining = true;
    disks[3].used_bytes = 900;
    let refused = choose_new_member(GroupId(7), &[DiskId(1)], &[DiskId(1)], 1, &disks).unwrap_err();
    assert_eq!((refused.members, refused.away, refused.draining, refused.full), (1, 1, 1, 1));
    assert!(refused.to_string().contains("group 7 has no disk to go to"), "{refused}");
}

#[test]
fn the_best_ranked_disk_is_chosen_in_any_order() {
    let mut disks = disks(9);
    for group in (1..50).map(GroupId) {
        let ranked = rank(group, disks.iter().map(|d| (d.disk, d.identity, d.capacity_bytes)));
        disks.reverse();
        assert_eq!(choose_new_member(group, &ranked[..2], &ranked[..2], 1, &disks), Ok(ranked[2]));
        assert_eq!(first_members(group, 3, &disks), ranked[..3]);
        assert_eq!(least_wanted(group, &ranked[3..7], &disks), Some(ranked[6]));
    }
}

#[test]
fn sums_of_huge_sizes_do_not_overflow() {
    let mut disks = disks(1);
    disks[0].capacity_bytes = u64::MAX;
    disks[0].used_bytes = u64::MAX;
    assert!(choose_new_member(GroupId(1), &[], &[], u64::MAX, &disks).is_err());
}

/// Disks 1, 2, .. in racks of two: 1 and 2 in rack 1, 3 and 4 in rack 3, ..; zones have `racks_a_zone` racks.
fn in_racks(count: u32, racks_a_zone: u32) -> Vec<DiskFacts> {
    let mut disks = disks(count);
    for facts in &mut disks {
        let at = facts.disk.0 - 1;
        let wide = 2 * racks_a_zone;
        facts.site = DiskSite { rack: at / 2 * 2 + 1, zone: at / wide * wide + 1 };
    }
    disks
}

fn distinct(members: &[DiskId], disks: &[DiskFacts], of: impl Fn(DiskSite) -> u32) -> usize {
    let here = disks.iter().filter(|facts| members.contains(&facts.disk));
    let named: std::collections::BTreeSet<u32> = here.map(|facts| of(facts.site)).collect();
    named.len()
}

#[test]
fn first_members_lie_in_different_racks_and_zones_as_far_as_there_are_enough() {
    for (count, racks_a_zone, racks, zones) in
        [(6, 3, 3, 1), (6, 1, 3, 3), (8, 2, 3, 2), (4, 1, 2, 2), (12, 2, 3, 3)]
    {
        let disks = in_racks(count, racks_a_zone);
        for group in (1..200).map(GroupId) {
            let members = first_members(group, 3, &disks);
            assert_eq!(members.len(), 3, "{count} disks");
            assert_eq!(distinct(&members, &disks, |site| site.rack), racks, "{count} disks: {members:?}");
            assert_eq!(distinct(&members, &disks, |site| site.zone), zones, "{count} disks: {members:?}");
        }
    }
    assert_eq!(first_members(GroupId(1), 3, &in_racks(2, 1)).len(), 2, "there are no more");
}

#[test]
fn racks_of_one_size_take_the_same_share() {
    let disks = in_racks(6, 3);
    let mut held = [0; 7];
    for group in (1..=3000).map(GroupId) {
        first_members(group, 3, &disks).iter().for_each(|disk| held[disk.0 as usize] += 1);
    }
    assert!(held[1..].iter().all(|&held| (1350..=1650).contains(&held)), "{held:?}");
}

#[test]
fn a_replacement_lies_in_a_rack_without_other_members() {
    let mut disks = in_racks(6, 3);
    disks[0].is_up = false;
    for group in (1..100).map(GroupId) {
        let members = [DiskId(1), DiskId(3), DiskId(5)];
        let staying = &members[1..];
        assert_eq!(choose_new_member(group, &members, staying, 1, &disks), Ok(DiskId(2)));
    }
    // The rest of that rack fails too: a copy too close is better than none.
    disks[1].is_up = false;
    let members = [DiskId(1), DiskId(3), DiskId(5)];
    let chosen = choose_new_member(GroupId(1), &members, &members[1..], 1, &disks).unwrap();
    assert!([DiskId(4), DiskId(6)].contains(&chosen), "{chosen}");
}

#[test]
fn a_disk_of_no_rack_is_apart_from_all_others() {
    let mut disks = in_racks(4, 1);
    // Disk 4 has no known site; disks 1 and 2, and 3, are in racks.
    disks[3].site = DiskSite { rack: 4, zone: 4 };
    for group in (1..100).map(GroupId) {
        let members = first_members(group, 3, &disks);
        assert!(members.contains(&DiskId(4)) && members.contains(&DiskId(3)), "{members:?}");
    }
}

#[test]
fn a_move_brings_no_member_closer_to_another() {
    let disks = in_racks(8, 2);
    let members = [DiskId(1), DiskId(3), DiskId(5)];
    for group in (1..100).map(GroupId) {
        // Beside 3 and 5 there are 4 and 6, and 2, 7 and 8 in racks without a member. Of these, 2 shares a
        // zone with a remaining member as 1 did, and so do 7 and 8.
        let chosen = choose_for_move(group, &members, DiskId(1), 1, &disks).unwrap();
        assert!([2, 7, 8].contains(&chosen.0), "{chosen}");
    }
    let only_beside: Vec<DiskFacts> =
        disks.iter().filter(|facts| [1, 3, 4, 5].contains(&facts.disk.0)).cloned().collect();
    let refused = choose_for_move(GroupId(1), &members, DiskId(1), 1, &only_beside).unwrap_err();
    assert_eq!((refused.members, refused.beside), (3, 1));
    // A member that shares a rack may move to another shared rack.
    let crowded = [DiskId(3), DiskId(4), DiskId(5)];
    assert!(choose_for_move(GroupId(1), &crowded, DiskId(4), 1, &disks[4..]).is_ok());
}

#[test]
fn of_too_many_members_one_that_shares_a_rack_goes() {
    let disks = in_racks(8, 2);
    let members = [DiskId(1), DiskId(3), DiskId(4), DiskId(5)];
    for group in (1..100).map(GroupId) {
        let goes = least_wanted(group, &members, &disks).unwrap();
        assert!([DiskId(3), DiskId(4)].contains(&goes), "{goes}");
    }
    assert_eq!(least_wanted(GroupId(1), &[], &disks), None);
}
