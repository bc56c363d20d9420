//! Where groups lie at first: weighted rendezvous hashing, so that each server holds about its share and adding one moves little.

use crate::meta::{MemberKind, Members, Pool, ServerRow};
use copal_volume::group::{DiskId, GroupId, placement};

/// Members of every group on the servers that are there; `None`: they are fewer than the copies to keep.
pub(crate) fn initial(pool: Pool, servers: &[ServerRow]) -> Option<Vec<(GroupId, Members)>> {
    let copies = usize::from(pool.replicas);
    if servers.len() < copies {
        return None;
    }
    let groups = (1..=pool.groups).map(|group| {
        let ranked = ranked(GroupId(group), servers);
        let mut members: Vec<_> = ranked[..copies]
            .iter()
            .map(|&disk| (disk, MemberKind::Full))
            .collect();
        members.sort_unstable_by_key(|(disk, _)| *disk);
        (GroupId(group), members)
    });
    Some(groups.collect())
}

/// Disks for a group, the best first: a disk of twice the capacity comes first twice as often.
pub(crate) fn ranked(group: GroupId, servers: &[ServerRow]) -> Vec<u32> {
    let weighed = servers
        .iter()
        .map(|server| (DiskId(server.disk), server.server_uuid, server.capacity_bytes));
    placement::rank(group, weighed)
        .into_iter()
        .map(|disk| disk.0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::ServerState;

    fn servers(count: u8) -> Vec<ServerRow> {
        let server = |number: u8| ServerRow {
            disk: number.into(),
            name: format!("data{number}"),
            address: String::new(),
            server_uuid: [number; 16],
            disk_uuid: [number; 16],
            state: ServerState::Normal,
            version: 0,
            incarnation: copal_volume::group::Incarnation(0),
            is_draining: false,
            failed_since_ms: 0,
            capacity_bytes: 1 << 40,
            zone: String::new(),
            rack: String::new(),
        };
        (1..=count).map(server).collect()
    }

    const POOL: Pool = Pool {
        replicas: 3,
        min_ack: 2,
        groups: 1024,
    };

    #[test]
    fn groups_lie_on_different_servers_about_evenly() {
        assert!(initial(POOL, &servers(2)).is_none());
        let groups = initial(POOL, &servers(8)).unwrap();
        let mut held = [0; 9];
        for (_, members) in &groups {
            assert_eq!(members.len(), 3);
            assert!(members.windows(2).all(|pair| pair[0].0 < pair[1].0));
            members.iter().for_each(|(disk, _)| held[*disk as usize] += 1);
        }
        assert!(
            held[1..].iter().all(|&held| (300..=470).contains(&held)),
            "{held:?}"
        );
    }

    #[test]
    fn a_new_server_takes_its_share_and_moves_nothing_else() {
        let (before, after) = (
            initial(POOL, &servers(8)).unwrap(),
            initial(POOL, &servers(9)).unwrap(),
        );
        for ((_, old), (_, new)) in before.iter().zip(&after) {
            let lost = old.iter().filter(|member| !new.contains(member)).count();
            let is_new = new.iter().any(|(disk, _)| *disk == 9);
            assert_eq!(lost, usize::from(is_new));
        }
    }
}
