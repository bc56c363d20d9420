//! Assignment of partitions to the members of a fleet.

use crate::asker::{FleetMember, OwnerMap};
use crate::fleet::partition::{IdPartitions, answerers};
use copal_backup::peers::ShortId;

/// Fleets of at most this many hosts have 2^8 partitions, larger ones 2^12, and those of more than 16 times
/// as many 2^16. All hosts of a job use the same number, and it changes rarely.
const HOSTS_OF_8_BITS: usize = 64;

/// Bits of an id that choose its partition, for this number of hosts.
#[must_use]
pub fn partition_bits(hosts: usize) -> u8 {
    match hosts {
        0..=HOSTS_OF_8_BITS => 8,
        hosts if hosts <= 16 * HOSTS_OF_8_BITS => 12,
        _ => 16,
    }
}

/// The members that answer for each partition: a function of the members' names alone, so that all hosts
/// agree.
#[derive(Debug)]
pub(crate) struct ResponsibleMembers {
    partitions: IdPartitions,
    /// For each partition the owner and, unless there is only one member, the stand-in.
    by_partition: Vec<(u16, Option<u16>)>,
}

impl ResponsibleMembers {
    /// `None`: there are no members, or too many bits.
    pub(crate) fn of(members: &[FleetMember], bits: u8) -> Option<ResponsibleMembers> {
        let partitions = IdPartitions::new(bits)?;
        let index_of = |name: &str| members.iter().position(|member| member.name == name);
        let by_partition = (0..partitions.count()).map(|partition| {
            let names = members.iter().map(|member| member.name.as_str());
            let found = answerers(names, partition)?;
            let owner = index_of(found.owner)? as u16;
            let stand_in = found.stand_in.and_then(index_of).map(|index| index as u16);
            Some((owner, stand_in))
        });
        Some(ResponsibleMembers { partitions, by_partition: by_partition.collect::<Option<Vec<_>>>()? })
    }

    fn at(&self, partition: u32) -> (u16, Option<u16>) {
        self.by_partition.get(partition as usize).copied().unwrap_or_default()
    }
}

impl OwnerMap for ResponsibleMembers {
    fn partition_bits(&self) -> u8 {
        self.partitions.bits()
    }

    fn partition(&self, id: &ShortId) -> u32 {
        self.partitions.of(id)
    }

    fn owner(&self, partition: u32) -> usize {
        self.at(partition).0.into()
    }

    fn stand_in(&self, partition: u32) -> Option<usize> {
        self.at(partition).1.map(usize::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(names: &[&str]) -> Vec<FleetMember> {
        let member = |name: &&str| FleetMember { name: (*name).to_owned(), address: String::new() };
        names.iter().map(member).collect()
    }

    #[test]
    fn hosts_that_list_members_in_another_order_ask_the_same_ones() {
        let (some, others) = (members(&["a", "b", "c"]), members(&["c", "a", "b"]));
        let of_some = ResponsibleMembers::of(&some, 8).unwrap();
        let of_others = ResponsibleMembers::of(&others, 8).unwrap();
        for partition in 0..256 {
            let owner =
                |of: &ResponsibleMembers, from: &[FleetMember]| from[of.owner(partition)].name.clone();
            assert_eq!(owner(&of_some, &some), owner(&of_others, &others));
            assert_ne!(of_some.stand_in(partition), Some(of_some.owner(partition)));
        }
        assert!(ResponsibleMembers::of(&[], 8).is_none());
        let alone = ResponsibleMembers::of(&some[..1], 8).unwrap();
        assert_eq!(alone.stand_in(3), None);
    }
}
