//! Rounds: the parts of VMs that are backed up together.
//!
//! Paper: low-profile-dedup §3, Figure 3 and the choice of k. Pure.
//!
//! The answers of a round take memory, so a host's VMs are divided into rounds. A part is a run of 1 GiB
//! pages of one VM; a VM with more changes than the average is cut into parts of about the average.
//!
//! Invariants
//! - Every page is in one part, and every part in one round. The parts of a VM come in order.
//! - The answers of a round fit their memory; but a single page is always a round.
//! - Parts of one VM are in different rounds if there are enough rounds.

mod count;
mod parts;

pub use count::{
    ANSWER_BYTES, ANSWERS_BYTES, CHUNK_BYTES, NotARoundCount, RoundCount, RoundLimits, round_count,
};
pub use parts::{PAGE_BYTES, VmChanges, VmPart, parts};

/// Divides the VMs of a host into rounds: small VMs first, and VMs with missed windows before their turn by
/// size.
///
/// There are more rounds than [`round_count`] gives if parts do not fit the memory otherwise.
pub fn plan(vms: &[VmChanges], limits: &RoundLimits) -> Vec<Vec<VmPart>> {
    let parts = parts(vms, limits);
    let total = sum(parts.iter().flatten());
    let count = round_count(total, parts.iter().map(Vec::len).sum(), limits);
    let share = total.div_ceil(count);
    let mut waiting = in_order(vms, parts);
    let mut rounds = Vec::new();
    while waiting.iter().any(|vm| !vm.is_empty()) {
        let rounds_left = count.saturating_sub(rounds.len() as u64).max(1);
        let round = fill(&mut waiting, share, rounds_left, limits.most_bytes());
        rounds.push(round);
    }
    rounds
}

fn sum<'a>(parts: impl IntoIterator<Item = &'a VmPart>) -> u64 {
    parts.into_iter().fold(0, |sum, part| sum.saturating_add(part.changed_bytes))
}

/// The parts of each VM, the last first; VMs by changed bytes / (1 + missed windows).
fn in_order(vms: &[VmChanges], parts: Vec<Vec<VmPart>>) -> Vec<Vec<VmPart>> {
    let mut order: Vec<(u64, Vec<VmPart>)> = parts
        .into_iter()
        .zip(vms)
        .map(|(mut parts, vm)| {
            parts.reverse();
            (sum(&parts) / (1 + u64::from(vm.missed_windows)), parts)
        })
        .collect();
    // Stable: equal VMs keep their given order.
    order.sort_by_key(|(priority, _)| *priority);
    order.into_iter().map(|(_, parts)| parts).collect()
}

/// Fills one round. First the VMs with at least as many remaining parts as rounds; then, in order, one part
/// of each other VM until the round has its share.
fn fill(waiting: &mut [Vec<VmPart>], share: u64, rounds_left: u64, most_bytes: u64) -> Vec<VmPart> {
    let mut round = RoundFill::default();
    let (urgent, others): (Vec<_>, Vec<_>) =
        waiting.iter_mut().partition(|parts| parts.len() as u64 >= rounds_left);
    for parts in urgent {
        for _ in 0..(parts.len() as u64).div_ceil(rounds_left) {
            round.take_if_it_fits(parts, most_bytes);
        }
    }
    for parts in others {
        if round.changed_bytes < share || round.parts.is_empty() {
            round.take_if_it_fits(parts, most_bytes);
        }
    }
    round.parts
}

#[derive(Default)]
struct RoundFill {
    parts: Vec<VmPart>,
    changed_bytes: u64,
}

impl RoundFill {
    /// Takes the next part of a VM, unless its answers do not fit beside the others.
    fn take_if_it_fits(&mut self, of: &mut Vec<VmPart>, most_bytes: u64) {
        if let Some(part) = of.last() {
            let longer = self.changed_bytes.saturating_add(part.changed_bytes);
            if self.parts.is_empty() || longer <= most_bytes {
                self.changed_bytes = longer;
                self.parts.extend(of.pop());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn vm(pages: &[u64]) -> VmChanges {
        VmChanges { pages: pages.to_vec(), missed_windows: 0 }
    }

    fn limits(rounds: RoundCount) -> RoundLimits {
        RoundLimits { rounds, answers_bytes: 6 << 20, chunk_bytes: 16 << 10 }
    }

    /// VMs of each round.
    fn vms_of(rounds: &[Vec<VmPart>]) -> Vec<Vec<usize>> {
        rounds.iter().map(|round| round.iter().map(|part| part.vm).collect()).collect()
    }

    #[test]
    fn the_count_is_twelve_or_more_for_memory_and_no_more_than_parts() {
        let auto = limits(RoundCount::Auto);
        assert_eq!(round_count(220_000_000_000, 1000, &auto), 12, "the paper's load needs 11");
        assert_eq!(round_count(440_000_000_000, 1000, &auto), 22);
        assert_eq!(round_count(220_000_000_000, 5, &auto), 5);
        assert_eq!(round_count(0, 0, &auto), 1);
        assert_eq!(round_count(1, 100, &limits(RoundCount::Exactly(3))), 3);
        assert_eq!(round_count(220_000_000_000, 100, &limits(RoundCount::Exactly(3))), 11);
    }

    #[test]
    fn rounds_are_auto_or_a_number() {
        assert_eq!("auto".parse(), Ok(RoundCount::Auto));
        assert_eq!("7".parse(), Ok(RoundCount::Exactly(7)));
        for wrong in ["", "0", "-1", "Auto", "99999999999"] {
            assert_eq!(wrong.parse::<RoundCount>(), Err(NotARoundCount(wrong.into())));
        }
        assert_eq!(
            (RoundCount::Auto.to_string(), RoundCount::Exactly(7).to_string()),
            ("auto".into(), "7".into())
        );
    }

    #[test]
    fn a_large_vm_is_cut_into_parts_of_about_the_average() {
        let vms = [vm(&[GIB]), vm(&[GIB]), vm(&[GIB; 10])];
        let parts = parts(&vms, &limits(RoundCount::Auto));
        let pages: Vec<usize> = parts[2].iter().map(|part| part.pages).collect();
        assert_eq!((parts[0].len(), parts[1].len(), pages), (1, 1, vec![5, 5]));
        assert_eq!((parts[2][1].first_page, parts[2][1].part), (5, 1));
    }

    #[test]
    fn the_smallest_goes_first_and_missed_windows_count() {
        let mut vms = vec![vm(&[3 * GIB]), vm(&[GIB]), vm(&[2 * GIB])];
        let three = limits(RoundCount::Exactly(3));
        assert_eq!(vms_of(&plan(&vms, &three)), [vec![1, 2], vec![0]]);
        vms[0].missed_windows = 4;
        assert_eq!(vms_of(&plan(&vms, &three)), [vec![0], vec![1, 2]]);
    }

    #[test]
    fn one_round_has_everybody_and_a_large_vm_begins_early() {
        let vms: Vec<VmChanges> = (0..11).map(|_| vm(&[GIB])).chain([vm(&[GIB; 49])]).collect();
        let all = plan(&vms, &limits(RoundCount::Exactly(1)));
        assert_eq!(all.len(), 4, "60 GiB have 19 MiB of answers: fewer rounds have no room for them");
        let auto = plan(&vms, &limits(RoundCount::Auto));
        let of_the_large: Vec<usize> =
            auto.iter().map(|round| round.iter().filter(|part| part.vm == 11).count()).collect();
        assert!(of_the_large.iter().all(|&parts| parts <= 1), "{of_the_large:?}");
        assert!((10..=12).contains(&auto.len()), "{}", auto.len());
    }

    fn any_vm() -> impl Strategy<Value = VmChanges> {
        let page = prop_oneof![Just(0), 0..GIB, Just(GIB)];
        (proptest::collection::vec(page, 0..40), 0_u32..4)
            .prop_map(|(pages, missed_windows)| VmChanges { pages, missed_windows })
    }

    fn any_limits() -> impl Strategy<Value = RoundLimits> {
        let rounds = prop_oneof![Just(RoundCount::Auto), (1_u32..30).prop_map(RoundCount::Exactly)];
        (rounds, prop_oneof![Just(6_u64 << 20), 0..6_u64 << 20])
            .prop_map(|(rounds, answers_bytes)| RoundLimits { answers_bytes, ..limits(rounds) })
    }

    proptest! {
        #[test]
        fn every_page_is_in_one_round_in_order_and_no_round_is_above_its_share(
            vms in proptest::collection::vec(any_vm(), 0..20),
            limits in any_limits(),
        ) {
            let rounds = plan(&vms, &limits);
            let mut next = vec![(0, 0); vms.len()];
            for part in rounds.iter().flatten() {
                let (page, number) = next[part.vm];
                prop_assert_eq!((part.first_page, part.part), (page, number));
                let pages = &vms[part.vm].pages[page..page + part.pages];
                prop_assert_eq!(part.changed_bytes, pages.iter().sum::<u64>());
                next[part.vm] = (page + part.pages, number + 1);
            }
            for (vm, (pages, parts)) in vms.iter().zip(&next) {
                prop_assert_eq!(*pages, vm.pages.len());
                prop_assert!(*parts >= 1);
            }
            for round in &rounds {
                let changed: u64 = round.iter().map(|part| part.changed_bytes).sum();
                let is_one_page = round.len() == 1 && round[0].pages == 1;
                prop_assert!(!round.is_empty());
                // Chunks are counted per part when they arrive, so the sum must fit.
                prop_assert!(limits.answers_for(changed) <= limits.answers_bytes.max(ANSWER_BYTES) || is_one_page);
            }
        }

        #[test]
        fn with_memory_enough_there_are_no_more_rounds_than_planned_and_parts_of_a_vm_are_apart(
            vms in proptest::collection::vec(any_vm(), 1..20),
            rounds in 1_u32..30,
        ) {
            let limits = RoundLimits { answers_bytes: 1 << 40, ..limits(RoundCount::Exactly(rounds)) };
            let all = parts(&vms, &limits);
            let planned = plan(&vms, &limits);
            let total = sum(all.iter().flatten());
            let count = round_count(total, all.iter().map(Vec::len).sum(), &limits);
            prop_assert!(planned.len() as u64 <= count);
            for round in &planned {
                for (vm, parts_of_vm) in all.iter().enumerate() {
                    let together = round.iter().filter(|part| part.vm == vm).count() as u64;
                    prop_assert!(together <= (parts_of_vm.len() as u64).div_ceil(count));
                }
            }
        }
    }
}
