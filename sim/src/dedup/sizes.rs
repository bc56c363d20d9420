//! Sizes of VMs and their assignment to hosts.
//!
//! Paper: low-profile-dedup §5, figure 1 (the largest VM 20 or 45 times the average).

use super::inputs::{DIRTY_SHARE, SEGMENT_BYTES, VM_BYTES};
use crate::rules::random::Random;
use std::f64::consts::TAU;

/// Distribution of the sizes. All have the same mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sizes {
    /// At most a tenth above or below the mean
    Even,
    /// Most VMs are small; the largest of all has the skew
    Lognormal,
    /// A fifth of the VMs has four fifths of the bytes, before the largest are cut
    Pareto,
}

/// Assignment of VMs to hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Placement {
    /// Every host has about the same bytes and at most its share of the VMs
    Balanced,
    /// Each VM on a random host
    Random,
}

/// One VM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vm {
    pub(super) bytes: f64,
    /// Bytes of its dirty segments.
    pub(super) dirty_bytes: f64,
}

/// All hosts and their VMs.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    pub(super) vms: Vec<Vm>,
    /// Indexes of the VMs of each host, in the order of their draw.
    pub(super) hosts: Vec<Vec<usize>>,
}

impl Fleet {
    pub(super) fn draw(
        (hosts, vms): (usize, usize),
        sizes: Sizes,
        skew: f64,
        placement: Placement,
        seed: u64,
    ) -> Fleet {
        let mut random = Random(seed ^ 0x5153_5a45_5300_0001);
        let of_mean = of_mean(sizes, vms, skew, &mut random);
        let vms: Vec<Vm> = of_mean
            .into_iter()
            .map(|size| {
                let bytes = size * VM_BYTES;
                let segments = (bytes / SEGMENT_BYTES).max(1.0);
                let deviation = (segments * DIRTY_SHARE * (1.0 - DIRTY_SHARE)).sqrt();
                let dirty = (segments * DIRTY_SHARE + deviation * normal(&mut random)).max(1.0);
                Vm { bytes, dirty_bytes: dirty * SEGMENT_BYTES }
            })
            .collect();
        let hosts = match placement {
            Placement::Balanced => balanced(&vms, hosts),
            Placement::Random => {
                let mut placed = vec![Vec::new(); hosts];
                for vm in 0..vms.len() {
                    placed[random.below(hosts as u64) as usize].push(vm);
                }
                placed
            }
        };
        Fleet { vms, hosts }
    }

    pub(super) fn dirty_bytes(&self) -> f64 {
        self.vms.iter().map(|vm| vm.dirty_bytes).sum()
    }

    pub(super) fn dirty_bytes_of(&self, host: usize) -> f64 {
        self.hosts[host].iter().map(|&vm| self.vms[vm].dirty_bytes).sum()
    }

    /// Size of the largest VM by the mean.
    pub(super) fn skew(&self) -> f64 {
        let largest = self.vms.iter().map(|vm| vm.bytes).fold(0.0, f64::max);
        largest * self.vms.len() as f64 / self.vms.iter().map(|vm| vm.bytes).sum::<f64>()
    }
}

/// Sizes in units of the mean; the largest is `skew` unless they are even.
fn of_mean(sizes: Sizes, count: usize, skew: f64, random: &mut Random) -> Vec<f64> {
    let mut drawn: Vec<f64> = match sizes {
        Sizes::Even => return even(count, random),
        Sizes::Lognormal => {
            let sigma = sigma(count, skew);
            (0..count).map(|_| (sigma * normal(random)).exp()).collect()
        }
        Sizes::Pareto => (0..count).map(|_| (1.0 - random.unit()).powf(-1.0 / PARETO)).collect(),
    };
    let skew = skew.min(count as f64);
    let largest = (0..count).max_by(|a, b| drawn[*a].total_cmp(&drawn[*b]));
    if let Some(largest) = largest {
        drawn[largest] = f64::INFINITY;
    }
    // The factor that makes the mean 1 after all sizes above the skew are cut.
    let mean = |factor: f64| drawn.iter().map(|size| (size * factor).min(skew)).sum::<f64>() / count as f64;
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        match mean(middle) < 1.0 {
            true => low = middle,
            false => high = middle,
        }
    }
    drawn.iter().map(|size| (size * high).min(skew)).collect()
}

/// Exponent with which a fifth of the VMs has four fifths of the bytes.
const PARETO: f64 = 1.16;

fn even(count: usize, random: &mut Random) -> Vec<f64> {
    let drawn: Vec<f64> = (0..count).map(|_| 0.9 + 0.2 * random.unit()).collect();
    let mean = drawn.iter().sum::<f64>() / count as f64;
    drawn.iter().map(|size| size / mean).collect()
}

/// Deviation with which the largest of so many sizes is about `skew` times the mean. The z of the largest is
/// known, and `sigma z - sigma^2 / 2 = ln skew`.
fn sigma(count: usize, skew: f64) -> f64 {
    let twice_log = 2.0 * (count.max(3) as f64).ln();
    let z_squared = (twice_log - twice_log.ln() - TAU.ln()).max(0.5);
    let left = z_squared - 2.0 * skew.max(1.0).ln();
    z_squared.sqrt() - left.max(0.0).sqrt()
}

/// Normal random number by the method of Box and Muller.
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (TAU * random.unit()).cos()
}

/// Assigns the largest VM first, each to the host with the fewest bytes and a free place.
fn balanced(vms: &[Vm], hosts: usize) -> Vec<Vec<usize>> {
    let most = vms.len().div_ceil(hosts);
    let mut order: Vec<usize> = (0..vms.len()).collect();
    order.sort_by(|a, b| vms[*b].dirty_bytes.total_cmp(&vms[*a].dirty_bytes));
    let mut placed = vec![Vec::new(); hosts];
    let mut by_load: std::collections::BTreeSet<(u64, usize)> = (0..hosts).map(|host| (0, host)).collect();
    for vm in order {
        let Some((load, host)) = by_load.pop_first() else {
            break;
        };
        placed[host].push(vm);
        if placed[host].len() < most {
            by_load.insert((load + vms[vm].dirty_bytes as u64, host));
        }
    }
    placed.iter_mut().for_each(|of_host| of_host.sort_unstable());
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(sizes: Sizes, skew: f64, placement: Placement) -> Fleet {
        Fleet::draw((100, 2500), sizes, skew, placement, 1)
    }

    #[test]
    fn mean_and_largest_size_equal_the_arguments() {
        for (sizes, skew) in [(Sizes::Lognormal, 20.0), (Sizes::Pareto, 20.0), (Sizes::Lognormal, 45.0)] {
            let fleet = fleet(sizes, skew, Placement::Balanced);
            assert!((fleet.skew() / skew - 1.0).abs() < 0.01, "{sizes:?}: {}", fleet.skew());
            let mean = fleet.vms.iter().map(|vm| vm.bytes).sum::<f64>() / 2500.0;
            assert!((mean / VM_BYTES - 1.0).abs() < 0.01, "{sizes:?}: {mean}");
            let dirty = fleet.dirty_bytes() / 22e12;
            assert!((0.98..1.02).contains(&dirty), "{sizes:?}: {dirty}");
        }
        assert!(fleet(Sizes::Even, 20.0, Placement::Balanced).skew() < 1.12);
    }

    #[test]
    fn balanced_hosts_have_equal_bytes_and_random_ones_do_not() {
        let most = |placement| {
            let fleet = fleet(Sizes::Lognormal, 20.0, placement);
            assert_eq!(fleet.hosts.iter().map(Vec::len).sum::<usize>(), 2500);
            let most = (0..100).map(|host| fleet.dirty_bytes_of(host)).fold(0.0, f64::max);
            most * 100.0 / fleet.dirty_bytes()
        };
        assert!(most(Placement::Balanced) < 1.03, "{}", most(Placement::Balanced));
        let random = most(Placement::Random);
        assert!((1.6..3.0).contains(&random), "{random}");
    }
}
