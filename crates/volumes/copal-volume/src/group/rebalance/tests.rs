use super::*;

/// SplitMix64: cases are drawn from the seed alone.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }
}

fn disk(number: u32, used_bytes: u64) -> DiskFacts {
    DiskFacts {
        disk: DiskId(number),
        identity: [number as u8; 16],
        domain: number,
        capacity_bytes: 1000,
        used_bytes,
        is_up: true,
        is_draining: false,
    }
}

fn group(number: u32, bytes: u64, members: &[u32]) -> GroupFacts {
    GroupFacts {
        group: GroupId(number),
        bytes,
        members: members.iter().copied().map(DiskId).collect(),
        is_whole: true,
    }
}

#[test]
fn a_disk_above_85_comes_down_to_80_and_one_at_85_is_left_alone() {
    let disks = [disk(1, 851), disk(2, 850), disk(3, 100)];
    let groups = [
        group(1, 400, &[1, 2]),
        group(2, 60, &[1, 2]),
        group(3, 51, &[1, 2]),
    ];
    let plan = plan(&disks, &groups, Goal::Watermarks);
    let wanted = Move {
        group: GroupId(3),
        source: DiskId(1),
        target: DiskId(3),
        bytes: 51,
    };
    assert_eq!(plan.moves, [wanted], "the smallest that is enough");
    assert_eq!((plan.disks[0].after_bytes, plan.disks[0].after_groups), (800, 2));
    assert_eq!((plan.moved_bytes(), plan.busiest_bytes()), (51, 51));
    assert_eq!(plan.refused, []);
}

#[test]
fn what_cannot_be_done_is_refused_with_its_reason() {
    let full = plan(
        &[disk(1, 960), disk(2, 790)],
        &[group(1, 11, &[1])],
        Goal::Watermarks,
    );
    assert!(full.moves.is_empty());
    let said = full.refused[0].to_string();
    assert!(
        said.contains("disk 1 stays too full: group 1 has no disk to go to")
            && said.contains("1 would be filled above 80 %"),
        "{said}"
    );
    let mut degraded = group(1, 200, &[1]);
    degraded.is_whole = false;
    let waits = plan(&[disk(1, 960), disk(2, 0)], &[degraded], Goal::Watermarks);
    assert!(waits.moves.is_empty());
    assert_eq!(waits.refused, [Refusal::NothingMayMove { disk: DiskId(1) }]);
}

#[test]
fn no_plan_overfills_a_target_goes_back_or_leaves_full_disks_unexplained() {
    for seed in 0..500 {
        let mut draw = Draw(seed);
        let count = 3 + draw.below(10) as u32;
        let mut disks: Vec<DiskFacts> = (0..count).map(|number| disk(number, draw.below(300))).collect();
        let mut groups = Vec::new();
        for number in 1..=draw.below(120) as u32 {
            let (first, step) = (
                draw.below(count.into()) as u32,
                1 + draw.below(u64::from(count) - 1) as u32,
            );
            let mut facts = group(number, draw.below(90), &[first, (first + step) % count]);
            facts.is_whole = draw.below(10) > 0;
            let fits = |member: &DiskId| disks[member.0 as usize].used_bytes + facts.bytes <= 1000;
            if facts.members.iter().all(fits) {
                for member in &facts.members {
                    disks[member.0 as usize].used_bytes += facts.bytes;
                }
                groups.push(facts);
            }
        }
        for disk in &mut disks {
            disk.is_up = draw.below(10) > 0;
            disk.is_draining = draw.below(10) == 0;
        }
        let plan = plan(&disks, &groups, Goal::Watermarks);
        let mut used: Vec<u64> = disks.iter().map(|disk| disk.used_bytes).collect();
        let mut moved = Vec::new();
        for made in &plan.moves {
            let facts = groups.iter().find(|group| group.group == made.group).unwrap();
            let (source, target) = (made.source.0 as usize, made.target.0 as usize);
            assert!(
                facts.is_whole && facts.members.contains(&made.source),
                "seed {seed}"
            );
            assert!(
                !facts.members.contains(&made.target) && !moved.contains(&made.group),
                "seed {seed}"
            );
            assert!(disks[target].is_up && !disks[target].is_draining, "seed {seed}");
            assert!(
                disks[source].used_bytes > 850 && used[source] > 800,
                "seed {seed}: {made:?}"
            );
            used[source] -= made.bytes;
            used[target] += made.bytes;
            assert!(used[target] <= 800, "seed {seed}: {made:?}");
            moved.push(made.group);
        }
        assert!(
            plan.disks
                .iter()
                .zip(&used)
                .all(|(fill, used)| fill.after_bytes == *used)
        );
        for (disk, used) in disks.iter().zip(&used) {
            let is_refused = plan.refused.iter().any(|refusal| match refusal {
                Refusal::NoPlace { disk: full, .. } | Refusal::NothingMayMove { disk: full } => {
                    *full == disk.disk
                }
            });
            assert_eq!(is_refused, disk.used_bytes > 850 && *used > 800, "seed {seed}");
        }
        let again = super::plan(&disks, &groups, Goal::Watermarks);
        assert_eq!(plan, again);
    }
}

#[test]
fn a_new_disk_takes_its_share_and_nothing_moves_twice() {
    for seed in 0..200 {
        let mut draw = Draw(seed);
        let old = 3 + draw.below(5) as u32;
        let new = 1 + draw.below(3) as u32;
        let mut disks: Vec<DiskFacts> = (0..old + new).map(|number| disk(number, 0)).collect();
        let capacity = 1_u64 << 40;
        let large = draw.below(2) == 0;
        let groups: Vec<GroupFacts> = (1..=64 + draw.below(100) as u32)
            .map(|number| {
                let first = draw.below(old.into()) as u32;
                let bytes = if large { (1 << 28) + draw.below(1 << 28) } else { 0 };
                group(number, bytes, &[first, (first + 1) % old, (first + 2) % old])
            })
            .collect();
        for disk in &mut disks {
            disk.capacity_bytes = capacity;
            let here = groups.iter().filter(|group| group.members.contains(&disk.disk));
            disk.used_bytes = here.map(|group| group.bytes).sum();
        }
        let plan = plan(&disks, &groups, Goal::Even);
        let mut moved: Vec<GroupId> = plan.moves.iter().map(|next| next.group).collect();
        moved.sort_unstable();
        moved.dedup();
        assert_eq!(moved.len(), plan.moves.len(), "seed {seed}");
        let held: Vec<u64> = plan.disks.iter().map(|fill| fill.after_groups).collect();
        let (most, fewest) = (held.iter().max().unwrap(), held.iter().min().unwrap());
        let mean = held.iter().sum::<u64>() / held.len() as u64;
        if !large && new == 1 {
            // A group moves once in a plan: with many new disks one plan may not be enough.
            assert!(most - fewest <= mean / 5 + 2, "seed {seed}: {held:?}");
        }
        assert!(*fewest > 0, "seed {seed}: {held:?}");
        let uneven = |fills: &dyn Fn(&Fill) -> u64| plan.disks.iter().map(fills).max();
        assert!(uneven(&|fill| fill.after_groups) <= uneven(&|fill| fill.before_groups).map(|most| most + 1));
        for next in &plan.moves {
            let facts = groups.iter().find(|group| group.group == next.group).unwrap();
            assert!(facts.members.contains(&next.source) && !facts.members.contains(&next.target));
        }
        assert_eq!(plan, super::plan(&disks, &groups, Goal::Even), "seed {seed}");
    }
}

#[test]
fn what_is_even_stays_where_it_is() {
    let mut disks: Vec<DiskFacts> = (0..4).map(|number| disk(number, 300)).collect();
    let groups: Vec<GroupFacts> = (0..4)
        .map(|number| group(number + 1, 100, &[number, (number + 1) % 4, (number + 2) % 4]))
        .collect();
    assert_eq!(plan(&disks, &groups, Goal::Even).moves, []);
    // One is being emptied: that is not what this plan is for, and nothing goes there.
    disks[3].is_draining = true;
    assert!(
        plan(&disks, &groups, Goal::Even)
            .moves
            .iter()
            .all(|next| next.target != DiskId(3))
    );
}
