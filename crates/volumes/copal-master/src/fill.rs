//! How full each disk is, and what it still takes: `copal disk ls`.
//!
//! Design: docs/design/cluster.md#rules VOL-27
//! Not here: what is done about a disk that is too full (`moving`).

use crate::{
    master::{Master, Reign},
    medium::Medium,
    meta::ServerRow,
};
use copal_volume::group::placement::{DiskFacts, HARD_STOP_PERCENT, LOW_WATERMARK_PERCENT};
use serde_json::{Value, json};

impl Master {
    /// All disks, as JSON: where they stand, how full they are, what they still take.
    pub fn disks(&self) -> Value {
        let reign = self.reign.lock();
        let facts = reign.disk_facts();
        let told =
            facts.iter().filter_map(|facts| Some(reign.disk(reign.map.servers.get(&facts.disk.0)?, facts)));
        json!({ "disks": told.collect::<Vec<_>>() })
    }
}

impl Reign {
    fn disk(&self, server: &ServerRow, facts: &DiskFacts) -> Value {
        let watch = self.watches.get(&server.disk);
        let used_bytes = watch.map_or(0, |watch| watch.used_bytes);
        let told = watch.and_then(|watch| watch.room_bytes);
        let capacity_bytes = server.capacity_bytes;
        let below = |percent: u64, taken: u64| {
            let mark = u128::from(capacity_bytes) * u128::from(percent) / 100;
            (mark as u64).saturating_sub(taken)
        };
        json!({
            "name": server.name,
            "disk": server.disk,
            "zone": server.zone,
            "rack": server.rack,
            "state": server.state.word(),
            "draining": server.is_draining,
            "full": self.is_full(server),
            "medium": watch.and_then(|watch| watch.medium).map(Medium::word),
            "used_bytes": used_bytes,
            "arriving_bytes": facts.used_bytes.saturating_sub(used_bytes),
            "capacity_bytes": capacity_bytes,
            "used_percent": (used_bytes as f64 * 1000.0 / capacity_bytes.max(1) as f64).round() / 10.0,
            "groups": self.map.groups_of(server.disk).count(),
            "copies_take_bytes": below(LOW_WATERMARK_PERCENT, facts.used_bytes),
            "files_take_bytes": match self.is_full(server) {
                true => 0,
                false => below(HARD_STOP_PERCENT, used_bytes).min(told.unwrap_or(u64::MAX)),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Beat, Joiner, MasterOptions, Pool, SqliteStore,
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
        let told = master.disks();
        assert_eq!(told["disks"][0]["medium"], Value::Null, "nothing was heard of it yet");
        let beats = Beat {
            zone,
            rack,
            capacity_bytes: 1000,
            used_bytes: 853,
            medium: Some(Medium::Hdd),
            ..beat(1, 1)
        };
        master.beat(beats, 2000).unwrap();
        let expected = json!({
            "name": "data1", "disk": 1, "zone": "north", "rack": "r7", "state": "up", "draining": false, "full": false, "medium": "hdd",
            "used_bytes": 853, "arriving_bytes": 0, "capacity_bytes": 1000, "used_percent": 85.3, "groups": 4,
            "copies_take_bytes": 0, "files_take_bytes": 97,
        });
        assert_eq!(master.disks()["disks"][0], expected);
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
        assert_eq!(master.disks()["disks"][0]["files_take_bytes"], 700);
        assert_eq!(events(), [""; 0]);
        tell(true, 3000);
        tell(true, 4000);
        let disk = &master.disks()["disks"][0];
        assert_eq!((&disk["full"], &disk["files_take_bytes"]), (&json!(true), &json!(0)));
        let sentence = "data1 is full (87 %) and takes no new files; delete some, add a server, or give its store more \
                        space";
        assert_eq!(events(), [sentence]);
        let status = master.status(5000);
        let told = status["sentence"].as_str().unwrap_or_default();
        assert!(told.contains(sentence), "{told}");
        assert_eq!(status["servers"][0]["full"], true);
        tell(false, 6000);
        assert_eq!(events(), [sentence, "data1 takes new files again"]);
        assert_eq!(master.disks()["disks"][0]["full"], false);
    }
}
