//! First members of groups: apart by racks and zones, and within these by weighted rendezvous hashing, so that
//! each server holds about its share.

use crate::{
    error::MasterResult,
    leader::leader_state::LeaderState,
    membership::disk_facts::disk_facts,
    tables::meta_store::{MemberKind, MemberList, PoolConfig},
};
use copal_volume::group::{
    GroupId,
    placement::{self, DiskFacts},
};

/// Members of every group on the present disks; `None`: there are fewer disks than copies.
pub(crate) fn initial(pool: PoolConfig, disks: &[DiskFacts]) -> Option<Vec<(GroupId, MemberList)>> {
    let copies = usize::from(pool.replicas);
    if disks.len() < copies {
        return None;
    }
    let groups = (1..=pool.groups).map(|group| {
        let chosen = placement::first_members(GroupId(group), copies, disks);
        let mut members: MemberList = chosen.into_iter().map(|disk| (disk.0, MemberKind::Full)).collect();
        members.sort_unstable_by_key(|(disk, _)| *disk);
        (GroupId(group), members)
    });
    Some(groups.collect())
}

/// Gives groups their first members once enough servers have joined.
pub(crate) fn assign_first_members(state: &mut LeaderState, now_ms: u64) -> MasterResult<()> {
    if !state.map.groups.is_empty() {
        return Ok(());
    }
    let disks = disk_facts(state);
    if disks.len() < state.first_servers {
        return Ok(());
    }
    let Some(groups) = initial(state.map.pool, &disks) else {
        return Ok(());
    };
    let text = format!("{} groups lie on {} servers", groups.len(), disks.len());
    state.change_members(groups)?;
    state.add_event(now_ms, "layout", &text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tables::meta_store::{ServerRow, ServerState};
    use copal_volume::group::{DiskId, placement::DiskSite};

    pub(crate) fn server(number: u8) -> ServerRow {
        ServerRow {
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
        }
    }

    fn disks(count: u8) -> Vec<DiskFacts> {
        let disk = |number: u8| DiskFacts {
            disk: DiskId(number.into()),
            identity: [number; 16],
            site: DiskSite { rack: number.into(), zone: number.into() },
            capacity_bytes: 1 << 40,
            used_bytes: 0,
            is_up: true,
            is_draining: false,
        };
        (1..=count).map(disk).collect()
    }

    const POOL: PoolConfig = PoolConfig { replicas: 3, min_ack: 2, groups: 1024 };

    #[test]
    fn groups_lie_on_different_servers_about_evenly() {
        assert!(initial(POOL, &disks(2)).is_none());
        let groups = initial(POOL, &disks(8)).unwrap();
        let mut held = [0; 9];
        for (_, members) in &groups {
            assert_eq!(members.len(), 3);
            assert!(members.windows(2).all(|pair| pair[0].0 < pair[1].0));
            members.iter().for_each(|(disk, _)| held[*disk as usize] += 1);
        }
        assert!(held[1..].iter().all(|&held| (300..=470).contains(&held)), "{held:?}");
    }

    #[test]
    fn a_new_server_takes_its_share_and_moves_nothing_else() {
        let (before, after) = (initial(POOL, &disks(8)).unwrap(), initial(POOL, &disks(9)).unwrap());
        for ((_, old), (_, new)) in before.iter().zip(&after) {
            let lost = old.iter().filter(|member| !new.contains(member)).count();
            let is_new = new.iter().any(|(disk, _)| *disk == 9);
            assert_eq!(lost, usize::from(is_new));
        }
    }
}
