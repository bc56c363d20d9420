//! Partitions of the ids, and the agents that answer for each.
//!
//! Ids are hashes, so their first bits divide them evenly. The agents' names alone determine the owner
//! (rendezvous hashing): adding or removing one agent moves only its own partitions.
//! Not here: the list of agents.

use copal_backup::peers::ShortId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most bits that choose a partition.
pub const MAX_BITS: u8 = 16;
/// Bytes of one row of an index run: a short id and an ordinal.
const INDEX_ROW_BYTES: u64 = 20;
/// An index run of this length is read in a fraction of a second, and covers 400,000 popular chunks.
const INDEX_RUN_BYTES: u64 = 8 << 20;
/// With fewer partitions per host, chance would give some hosts twice the work of others.
const PARTITIONS_PER_HOST: u64 = 16;

/// 2^bits partitions of the ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdPartitions {
    bits: u8,
}

impl IdPartitions {
    /// Partitions by the first `bits` bits; `None` above [`MAX_BITS`].
    pub fn new(bits: u8) -> Option<IdPartitions> {
        (bits <= MAX_BITS).then_some(IdPartitions { bits })
    }

    /// As many partitions as give each index run of `popular_ids` at most 8 MiB, and each host several
    /// partitions.
    pub fn for_fleet(popular_ids: u64, hosts: u32) -> IdPartitions {
        let for_size = popular_ids.saturating_mul(INDEX_ROW_BYTES).div_ceil(INDEX_RUN_BYTES);
        let for_balance = u64::from(hosts) * PARTITIONS_PER_HOST;
        let wanted = for_size.max(for_balance).clamp(1, 1 << MAX_BITS);
        IdPartitions { bits: wanted.next_power_of_two().trailing_zeros() as u8 }
    }

    /// Bits that choose a partition.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// Number of partitions.
    pub fn count(self) -> u32 {
        1 << self.bits
    }

    /// The partition an id belongs to.
    pub fn of(self, id: &ShortId) -> u32 {
        let first = u32::from_be_bytes([0, 0, id[0], id[1]]);
        first >> (MAX_BITS - self.bits)
    }
}

/// The agents that answer for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionMembers<'a> {
    /// Asked first.
    pub owner: &'a str,
    /// Asked if the owner is silent; `None` for a single agent.
    pub stand_in: Option<&'a str>,
}

/// Owner and stand-in of a partition among the agents of these names, in any order; `None` without an agent.
pub fn answerers<'a>(
    names: impl IntoIterator<Item = &'a str>,
    partition: u32,
) -> Option<PartitionMembers<'a>> {
    let mut first: Option<(u64, &str)> = None;
    let mut second: Option<(u64, &str)> = None;
    for name in names {
        let drawn = Some((draw(name, partition), name));
        if drawn > first {
            second = first;
            first = drawn;
        } else if drawn > second && drawn != first {
            second = drawn;
        }
    }
    first.map(|(_, owner)| PartitionMembers { owner, stand_in: second.map(|(_, name)| name) })
}

/// Number of these names that come before `own` for a task that each of them could do; all agents agree on
/// the order.
pub fn rank<'a>(names: impl IntoIterator<Item = &'a str>, own: &str, what: u64) -> u32 {
    let lot = |name: &str| xxh3_64_with_seed(name.as_bytes(), what);
    let mine = lot(own);
    names.into_iter().filter(|name| *name != own && lot(name) > mine).count() as u32
}

/// The hash of an agent for a partition; the highest belongs to the owner.
fn draw(name: &str, partition: u32) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), u64::from(partition))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn id(first: u8, second: u8) -> ShortId {
        let mut id = [0xff; 16];
        (id[0], id[1]) = (first, second);
        id
    }

    #[test]
    fn the_first_bits_choose_the_partition() {
        let of = |bits, first, second| IdPartitions::new(bits).unwrap().of(&id(first, second));
        assert_eq!(of(0, 0xff, 0xff), 0);
        assert_eq!((of(1, 0x7f, 0xff), of(1, 0x80, 0)), (0, 1));
        assert_eq!((of(8, 0xab, 0xcd), of(12, 0xab, 0xcd)), (0xab, 0xabc));
        assert_eq!(of(16, 0xab, 0xcd), 0xabcd);
        assert_eq!(IdPartitions::new(17), None);
    }

    #[test]
    fn the_number_of_partitions_follows_from_index_and_hosts() {
        let count = |ids, hosts| IdPartitions::for_fleet(ids, hosts).count();
        assert_eq!((count(0, 0), count(0, 1), count(0, 3)), (1, 16, 64));
        assert_eq!(count(40_000_000, 100), 2048);
        assert_eq!(count(400_000_000, 1), 1024, "8 GB in runs of 8 MiB");
        assert_eq!(count(u64::MAX, u32::MAX), 1 << 16);
    }

    #[test]
    fn owners_are_the_same_on_every_machine() {
        let agents = ["h1", "h2", "h3"];
        let owners: Vec<&str> = (0..8).map(|at| answerers(agents, at).unwrap().owner).collect();
        assert_eq!(owners, OWNERS_OF_EIGHT);
        assert_eq!(answerers([], 0), None);
        let alone = answerers(["h1", "h1"], 0).unwrap();
        assert_eq!((alone.owner, alone.stand_in), ("h1", None));
    }

    /// Recorded values: another build must give the same.
    const OWNERS_OF_EIGHT: [&str; 8] = ["h3", "h3", "h3", "h1", "h1", "h2", "h1", "h3"];

    #[test]
    fn each_agent_owns_about_its_share() {
        let names: Vec<String> = (0..16).map(|number| format!("host{number}")).collect();
        let mut shares = HashMap::new();
        for partition in 0..4096 {
            let who = answerers(names.iter().map(String::as_str), partition).unwrap();
            *shares.entry(who.owner).or_insert(0_u32) += 1;
        }
        assert!(shares.values().all(|share| (190..330).contains(share)), "{shares:?}");
    }

    proptest! {
        #[test]
        fn order_does_not_matter_and_a_leaver_hands_over_to_its_stand_in(
            mut names in proptest::collection::hash_set("[a-c]{1,3}", 2..9).prop_map(Vec::from_iter),
            partition in 0_u32..1 << 16,
        ) {
            let before = answerers(names.iter().map(String::as_str), partition).unwrap();
            let (owner, stand_in) = (before.owner.to_owned(), before.stand_in.map(str::to_owned));
            names.reverse();
            let again = answerers(names.iter().map(String::as_str), partition).unwrap();
            prop_assert_eq!((again.owner, again.stand_in), (owner.as_str(), stand_in.as_deref()));
            names.retain(|name| *name != owner);
            let after = answerers(names.iter().map(String::as_str), partition).unwrap();
            prop_assert_eq!(Some(after.owner), stand_in.as_deref());
        }
    }
}
