//! Checkers of a popular pack: the first two hosts by the agents' own order, without the writer.

use super::log::PackNumber;
use copal_agent::fleet::partition::rank;

/// First and second; `None` where there are too few hosts.
pub(super) fn first_two(names: &[String], writer: usize, pack: PackNumber) -> [Option<usize>; 2] {
    let is_before = |a: usize, b: usize| {
        let both = [names[a].as_str(), names[b].as_str()];
        rank(both, both[1], pack as u64) > 0
    };
    let mut two: [Option<usize>; 2] = [None; 2];
    for host in (0..names.len()).filter(|&host| host != writer) {
        if two[0].is_none_or(|first| is_before(host, first)) {
            two = [Some(host), two[0]];
        } else if two[1].is_none_or(|second| is_before(host, second)) {
            two[1] = Some(host);
        }
    }
    two
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_by_rank_check_a_pack_and_never_its_writer() {
        let names: Vec<String> = (0..9).map(|host| format!("host{host}")).collect();
        for pack in 0..50 {
            let others = || names.iter().enumerate().filter(|(host, _)| *host != 3);
            let mut by_rank: Vec<(u32, usize)> = others()
                .map(|(host, name)| (rank(others().map(|(_, name)| name.as_str()), name, pack as u64), host))
                .collect();
            by_rank.sort_unstable();
            assert_eq!(first_two(&names, 3, pack), [Some(by_rank[0].1), Some(by_rank[1].1)]);
        }
        assert_eq!(first_two(&names[..1], 0, 7), [None, None]);
    }
}
