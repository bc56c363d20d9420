//! Processors that this process may use, one of each physical core first.

use anyhow::{Context, Result};
use std::{fs, thread};

/// Processors in the order of their use.
pub(super) struct Processors(Vec<usize>);

impl Processors {
    /// Those of this process; fewer where a control group limits its processor time.
    pub(super) fn here() -> Result<Processors> {
        let status = fs::read_to_string("/proc/self/status").context("reading the allowed processors")?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let allowed = numbers(list.context("a list of allowed processors")?);
        let limit = thread::available_parallelism().map_or(allowed.len(), std::num::NonZero::get);
        let mut order = ordered(&allowed, |processor| {
            let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
            fs::read_to_string(path).map_or_else(|_| vec![processor], |text| numbers(&text))
        });
        order.truncate(limit);
        Ok(Processors(order))
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The first ones, as `taskset -c` takes them.
    pub(super) fn first(&self, count: usize) -> String {
        list(&self.0[..count.min(self.count())])
    }

    /// All but the first ones, in the same form.
    pub(super) fn beyond(&self, count: usize) -> String {
        list(&self.0[count.min(self.count())..])
    }
}

/// First the allowed processors that are the first of their core, then the second ones, and so on.
fn ordered(allowed: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let rank = |processor: usize| {
        let earlier = siblings(processor).into_iter().filter(|other| *other < processor);
        earlier.filter(|other| allowed.contains(other)).count()
    };
    let mut order = allowed.to_vec();
    order.sort_by_key(|processor| (rank(*processor), *processor));
    order
}

fn list(processors: &[usize]) -> String {
    processors.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Numbers of a list such as `0-3,8`.
fn numbers(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::{list, numbers, ordered};

    #[test]
    fn lists_of_the_kernel_are_read_and_written() {
        assert_eq!(numbers("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(numbers("\t5"), [5]);
        assert_eq!(list(&[0, 2, 8]), "0,2,8");
    }

    #[test]
    fn physical_cores_come_before_their_second_threads() {
        let pairs = |processor: usize| vec![processor / 2 * 2, processor / 2 * 2 + 1];
        assert_eq!(ordered(&[0, 1, 2, 3], pairs), [0, 2, 1, 3]);
        // The first thread of the second core is not allowed.
        assert_eq!(ordered(&[0, 1, 3], pairs), [0, 3, 1]);
    }
}
