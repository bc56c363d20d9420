//! How full each disk is, and what it still takes: `copal disk ls`.
//!
//! Design: docs/design/cluster.md#rules VOL-27
//! Not here: what is done about a disk that is too full (`moving`).

use crate::master::{Master, Reign};
use crate::tables::meta_store::ServerRow;
use copal_proto::administration::{DiskList, DiskUsage};
use copal_volume::group::placement::{DiskFacts, HARD_STOP_PERCENT, LOW_WATERMARK_PERCENT};

impl Master {
    /// All disks: where they stand, how full they are, what they still take.
    pub fn disks(&self) -> DiskList {
        let reign = self.reign.lock();
        let facts = reign.disk_facts();
        let disks =
            facts.iter().filter_map(|facts| Some(reign.disk(reign.map.servers.get(&facts.disk.0)?, facts)));
        DiskList { disks: disks.collect() }
    }
}

impl Reign {
    fn disk(&self, server: &ServerRow, facts: &DiskFacts) -> DiskUsage {
        let watch = self.watches.get(&server.disk);
        let used_bytes = watch.map_or(0, |watch| watch.used_bytes);
        let told = watch.and_then(|watch| watch.room_bytes);
        let capacity_bytes = server.capacity_bytes;
        let below = |percent: u64, taken: u64| {
            let mark = u128::from(capacity_bytes) * u128::from(percent) / 100;
            (mark as u64).saturating_sub(taken)
        };
        let is_full = self.is_full(server);
        DiskUsage {
            name: server.name.clone(),
            disk: server.disk,
            zone: server.zone.clone(),
            rack: server.rack.clone(),
            state: server.state.word().to_owned(),
            draining: server.is_draining,
            full: is_full,
            medium: watch.and_then(|watch| watch.medium).map(|medium| medium.word().to_owned()),
            used_bytes,
            arriving_bytes: facts.used_bytes.saturating_sub(used_bytes),
            capacity_bytes,
            used_percent: (used_bytes as f64 * 1000.0 / capacity_bytes.max(1) as f64).round() / 10.0,
            groups: self.map.groups_of(server.disk).count(),
            copies_take_bytes: below(LOW_WATERMARK_PERCENT, facts.used_bytes),
            files_take_bytes: match is_full {
                true => 0,
                false => below(HARD_STOP_PERCENT, used_bytes).min(told.unwrap_or(u64::MAX)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Beat, Joiner, MasterOptions, Medium, Pool, SqliteStore,
        tests::{beat, joiner},
    };

    #[test]
    fn a_disk_shows_where_it_stands_and_what_it_still_takes() {
        let mut meta = SqliteStore::in_memory().unwrap();
        let pool = Pool { replicas: 1, min_ack: 1, groups: 4 };
        Master::found(&mut meta, [7; 16], pool).unwrap();
        let master = Master::open(Box::new(meta), MasterOptions::default()).unwrap();
        let (zone, rack) = ("north".to_owned(), "r7".to_owned());
        let joins = Joiner { zone: zone.clone(), rack: rack.clone(), capacity_bytes: 1000, ..joiner(1) };
        master.join(&joins, 1000).unwrap();
        assert_eq!(master.disks().disks[0].medium, None, "nothing was heard of it yet");
        let beats = Beat {
            zone,
            rack,
            capacity_bytes: 1000,
            used_bytes: 853,
            medium: Some(Medium::Hdd),
            ..beat(1, 1)
        };
        master.beat(beats, 2000).unwrap();
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

    /// Symptom: a server whose engine had no room refused every file, and nothing said so: its disk was 88 %
    /// full.
    /// Cause: the master went by the bytes alone, and the engine keeps an eighth of a small store for itself.
    /// Fix: the server tells whether it takes files; status, the list of disks and an event say so, and what
    /// to do.
    #[test]
    fn a_disk_that_takes_no_files_is_said_to_be_full() {
        let mut meta = SqliteStore::in_memory().unwrap();
        let pool = Pool { replicas: 1, min_ack: 1, groups: 4 };
        Master::found(&mut meta, [7; 16], pool).unwrap();
        let master = Master::open(Box::new(meta), MasterOptions::default()).unwrap();
        master.join(&joiner(1), 1000).unwrap();
        let tell = |is_full, now_ms| {
            let beats = Beat {
                is_full,
                room_bytes: Some(700),
                used_bytes: 900 << 20,
                is_whole: true,
                map_version: u64::from(u32::MAX),
                ..beat(1, 1)
            };
            master.beat(beats, now_ms).unwrap();
        };
        let events = || {
            let events = master.events(0, 100).unwrap();
            let full = events.iter().filter(|event| event.kind == "full");
            full.map(|event| event.text.clone()).collect::<Vec<_>>()
        };
        tell(false, 2000);
        assert_eq!(master.disks().disks[0].files_take_bytes, 700);
        assert_eq!(events(), [""; 0]);
        tell(true, 3000);
        tell(true, 4000);
        let disk = &master.disks().disks[0];
        assert!(disk.full && disk.files_take_bytes == 0, "{disk:?}");
        let sentence = "data1 is full (87 %) and takes no new files; delete some, add a server, or give its store more \
                        space";
        assert_eq!(events(), [sentence]);
        let status = master.status(5000);
        assert!(status.sentence.contains(sentence), "{}", status.sentence);
        assert!(status.servers[0].full);
        tell(false, 6000);
        assert_eq!(events(), [sentence, "data1 takes new files again"]);
        assert!(!master.disks().disks[0].full);
    }
}
