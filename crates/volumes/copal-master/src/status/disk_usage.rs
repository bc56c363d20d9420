//! Usage of each disk, and the bytes that it still takes: `copal disk ls`.
//!
//! Design: docs/design/cluster.md#rules VOL-27
//! Not here: the relief of full disks (`membership::full_disks`).

use crate::{
    leader::leader_state::LeaderState,
    membership::{disk_facts::disk_facts, full_disks::is_full},
    tables::meta_store::ServerRow,
};
use copal_proto::administration::{DiskList, DiskUsage};
use copal_volume::group::placement::{DiskFacts, HARD_STOP_PERCENT, LOW_WATERMARK_PERCENT};

/// All disks with their sites, usage, and the bytes that they still take.
pub(crate) fn disk_list(state: &LeaderState) -> DiskList {
    let facts = disk_facts(state);
    let disks = facts
        .iter()
        .filter_map(|facts| Some(disk_usage(state, state.map.servers.get(&facts.disk.0)?, facts)));
    DiskList { disks: disks.collect() }
}

fn disk_usage(state: &LeaderState, server: &ServerRow, facts: &DiskFacts) -> DiskUsage {
    let activity = state.activity.get(&server.disk);
    let used_bytes = activity.map_or(0, |activity| activity.used_bytes);
    let reported_room = activity.and_then(|activity| activity.room_bytes);
    let capacity_bytes = server.capacity_bytes;
    let below = |percent: u64, taken: u64| {
        let mark = u128::from(capacity_bytes) * u128::from(percent) / 100;
        (mark as u64).saturating_sub(taken)
    };
    let is_full = is_full(state, server);
    DiskUsage {
        name: server.name.clone(),
        disk: server.disk,
        zone: server.zone.clone(),
        rack: server.rack.clone(),
        state: server.state.word().to_owned(),
        draining: server.is_draining,
        full: is_full,
        medium: activity.and_then(|activity| activity.medium).map(|medium| medium.word().to_owned()),
        used_bytes,
        arriving_bytes: facts.used_bytes.saturating_sub(used_bytes),
        capacity_bytes,
        used_percent: (used_bytes as f64 * 1000.0 / capacity_bytes.max(1) as f64).round() / 10.0,
        groups: state.map.groups_of(server.disk).count(),
        copies_take_bytes: below(LOW_WATERMARK_PERCENT, facts.used_bytes),
        files_take_bytes: match is_full {
            true => 0,
            false => below(HARD_STOP_PERCENT, used_bytes).min(reported_room.unwrap_or(u64::MAX)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DiskMedium, Master, MasterOptions, PoolConfig, ServerHeartbeat, ServerJoin, SqliteStore,
        tests::{beat, joiner},
    };

    #[test]
    fn a_disk_shows_its_site_and_the_bytes_that_it_still_takes() {
        let mut meta = SqliteStore::in_memory().unwrap();
        let pool = PoolConfig { replicas: 1, min_ack: 1, groups: 4 };
        Master::create_cluster(&mut meta, [7; 16], pool).unwrap();
        let master = Master::open(Box::new(meta), MasterOptions::default()).unwrap();
        let (zone, rack) = ("north".to_owned(), "r7".to_owned());
        let joins = ServerJoin { zone: zone.clone(), rack: rack.clone(), capacity_bytes: 1000, ..joiner(1) };
        master.join(&joins, 1000).unwrap();
        assert_eq!(master.disks().disks[0].medium, None, "no heartbeat came yet");
        let beats = ServerHeartbeat {
            zone,
            rack,
            capacity_bytes: 1000,
            used_bytes: 853,
            medium: Some(DiskMedium::Hdd),
            ..beat(1, 1)
        };
        master.heartbeat(beats, 2000).unwrap();
        let expected = DiskUsage {
            name: "data1".to_owned(),
            disk: 1,
            zone: "north".to_owned(),
            rack: "r7".to_owned(),
            state: "up".to_owned(),
            draining: false,
            full: false,
            medium: Some("hdd".to_owned()),
            used_bytes: 853,
            arriving_bytes: 0,
            capacity_bytes: 1000,
            used_percent: 85.3,
            groups: 4,
            copies_take_bytes: 0,
            files_take_bytes: 97,
        };
        assert_eq!(master.disks().disks, [expected]);
    }

    /// Symptom: a server whose engine had no room refused every file, but no report showed it: the disk was
    /// 88 % full.
    /// Cause: the master compared only bytes, and the engine keeps an eighth of a small store for itself.
    /// Fix: the server reports whether it takes files; status, the list of disks and an event show that with
    /// the advice.
    #[test]
    fn a_disk_that_takes_no_files_is_reported_as_full() {
        let mut meta = SqliteStore::in_memory().unwrap();
        let pool = PoolConfig { replicas: 1, min_ack: 1, groups: 4 };
        Master::create_cluster(&mut meta, [7; 16], pool).unwrap();
        let master = Master::open(Box::new(meta), MasterOptions::default()).unwrap();
        master.join(&joiner(1), 1000).unwrap();
        let report = |is_full, now_ms| {
            let beats = ServerHeartbeat {
                is_full,
                room_bytes: Some(700),
                used_bytes: 900 << 20,
                is_in_sync: true,
                map_version: u64::from(u32::MAX),
                ..beat(1, 1)
            };
            master.heartbeat(beats, now_ms).unwrap();
        };
        let events = || {
            let events = master.events(0, 100).unwrap();
            let full = events.iter().filter(|event| event.kind == "full");
            full.map(|event| event.text.clone()).collect::<Vec<_>>()
        };
        report(false, 2000);
        assert_eq!(master.disks().disks[0].files_take_bytes, 700);
        assert_eq!(events(), [""; 0]);
        report(true, 3000);
        report(true, 4000);
        let disk = &master.disks().disks[0];
        assert!(disk.full && disk.files_take_bytes == 0, "{disk:?}");
        let sentence = "data1 is full (87 %) and takes no new files; delete some, add a server, or give its store more \
                        space";
        assert_eq!(events(), [sentence]);
        let status = master.status(5000);
        assert!(status.sentence.contains(sentence), "{}", status.sentence);
        assert!(status.servers[0].full);
        report(false, 6000);
        assert_eq!(events(), [sentence, "data1 takes new files again"]);
        assert!(!master.disks().disks[0].full);
    }
}
