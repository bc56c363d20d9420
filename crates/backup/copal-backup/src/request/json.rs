//! JSON of summaries: encoding of the values whose form in JSON differs from that in memory.
//!
//! Invariant: field names are a promise to programs that read `copal --json`; they are added to, never renamed.
//! Not here: disk formats, which do not use serde; the fields that a command adds (`copal`).

use crate::keys::role::Role;
use crate::retention::Misdated;
use serde::{Serialize, Serializer};
use std::fmt::Display;
use std::time::Duration;

/// As people read it.
pub(crate) fn text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Seconds with milliseconds.
pub(crate) fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((duration.as_secs_f64() * 1e3).round() / 1e3)
}

/// Milliseconds as seconds.
pub(crate) fn seconds_of_ms<S: Serializer>(ms: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ms as f64 / 1e3)
}

/// Millionths as a share of one.
pub(crate) fn share<S: Serializer>(millionths: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(f64::from(*millionths) / 1e6)
}

impl Serialize for Misdated {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        text(self, serializer)
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ListedKey;
    use crate::popular::PopularStatus;
    use crate::request::open_session::{HolderId, HolderInfo};
    use crate::request::*;
    use copal_disk::doubt::{DiskDoubt, DoubtKind};

    fn json(value: &impl Serialize) -> String {
        serde_json::to_string(value).unwrap()
    }

    fn vm() -> Vm {
        Vm { uuid: uuid::Uuid::from_bytes([1; 16]), name: "web".to_owned() }
    }

    #[test]
    fn an_id_survives_a_round_trip_through_its_digits() {
        let id = SnapshotId([0xab; 16]);
        assert_eq!(json(&id), format!("{:?}", "ab".repeat(16)));
        assert_eq!(serde_json::from_str::<SnapshotId>(&json(&id)).unwrap(), id);
        for bad in ["\"abab\"", "\"abababab-abab-abab-abab-abababababab\"", "7", "\"zz\""] {
            assert!(serde_json::from_str::<SnapshotId>(bad).is_err(), "{bad}");
        }
    }

    /// Each field has a value of its own, so that none takes the place of another.
    #[test]
    fn a_backup_summary_has_its_promised_fields() {
        let counts = BackupCounts {
            logical_bytes: 1,
            dirty_bytes: 2,
            read_bytes: 3,
            data_bytes: 4,
            inner_dup_bytes: 5,
            cross_dup_bytes: 6,
            new_bytes: 7,
            stored_bytes: 8,
            chunks: 9,
            new_chunks: 10,
            segments: 11,
            clean_segments: 12,
            spot_check_bytes: 13,
            read_again_bytes: 14,
            asked_chunks: 15,
            popular_dup_bytes: 16,
            popular_bytes: 17,
            unresolved_chunks: 18,
        };
        let summary = BackupSummary {
            snapshot: SnapshotId([0xab; 16]),
            vm: vm(),
            base: Some(SnapshotId([0xcd; 16])),
            created_ms: 19,
            misdated: 20,
            disks: vec![DiskSummary {
                name: "sda".to_owned(),
                size_bytes: 21,
                mode: DiskMode::Incremental,
                reason: String::new(),
                bitmap: Some("day-1".to_owned()),
            }],
            counts,
            warnings: vec!["smaller".to_owned()],
            doubts: vec![DiskDoubt {
                disk: "sda".to_owned(),
                kind: DoubtKind::Smaller,
                text: "it shrank".to_owned(),
            }],
            duration: Duration::from_micros(1_234_567),
        };
        let counts = concat!(
            r#"{"logical_bytes":1,"dirty_bytes":2,"read_bytes":3,"data_bytes":4,"inner_dup_bytes":5,"cross_dup_bytes":6,"#,
            r#""new_bytes":7,"stored_bytes":8,"chunks":9,"new_chunks":10,"segments":11,"clean_segments":12,"#,
            r#""spot_check_bytes":13,"read_again_bytes":14,"asked_chunks":15,"popular_dup_bytes":16,"popular_bytes":17,"#,
            r#""unresolved_chunks":18}"#,
        );
        let told = [
            r#"{"snapshot":"abababababababababababababababab","#,
            r#""vm":{"uuid":"01010101-0101-0101-0101-010101010101","name":"web"},"#,
            r#""base":"cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd","created_ms":19,"misdated_snapshots":20,"#,
            r#""disks":[{"name":"sda","size_bytes":21,"mode":"incremental","reason":"","bitmap":"day-1"}],"#,
            r#""counts":"#,
            counts,
            r#","warnings":["smaller"],"doubts":[{"disk":"sda","kind":"smaller","message":"it shrank"}],"seconds":1.235}"#,
        ];
        assert_eq!(json(&summary), told.concat());
    }

    #[test]
    fn a_prune_summary_has_its_promised_fields() {
        let pruned = PruneSummary {
            swept_sessions: 1,
            busy_vms: 2,
            by_summary: 3,
            by_walk: 4,
            candidates: 5,
            candidates_dead: 6,
            candidates_kept: 7,
            freed_bytes: 8,
            read_bytes: 9,
            leak_estimate_bytes: 10,
            live_frames: 11,
            dead_frames: 12,
            removed_packs: 13,
            rewritten_packs: 14,
            before_bytes: 15,
            after_bytes: 16,
            written_bytes: 17,
            unused_bytes: 18,
            mark_passes: 19,
        };
        let told = [
            r#"{"swept_sessions":1,"busy_vms":2,"candidates":5,"dead":6,"kept":7,"read_bytes":9,"leak_estimate_bytes":10,"#,
            r#""live_frames":11,"dead_frames":12,"removed_packs":13,"rewritten_packs":14,"before_bytes":15,"#,
            r#""after_bytes":16,"written_bytes":17,"unused_bytes":18,"mark_passes":19}"#,
        ];
        assert_eq!(json(&pruned), told.concat());
        let cleaned = CleanUpSummary {
            vm: Some(vm()),
            asked: 1,
            moved: 2,
            stored_popular: 3,
            moved_bytes: 4,
            freed_bytes: 5,
            unanswered: 6,
            refused: 7,
            refused_bytes: 8,
            read_bytes: 9,
        };
        let told = [
            r#"{"asked":1,"moved":2,"stored_popular":3,"moved_bytes":4,"freed_bytes":5,"unanswered":6,"#,
            r#""refused_by_fraction":7}"#,
        ];
        assert_eq!(json(&cleaned), told.concat());
        let unneeded = UnneededPacks {
            waiting_for: vec![vm()],
            unneeded_packs: 1,
            condemned_packs: 2,
            spared_packs: 3,
            gone_packs: 4,
            removed_packs: 5,
            removed_bytes: 6,
        };
        let told = [
            r#"{"waiting_for":["web"],"unneeded_packs":1,"condemned_packs":2,"spared_packs":3,"gone_packs":4,"#,
            r#""removed_packs":5,"removed_bytes":6}"#,
        ];
        assert_eq!(json(&unneeded), told.concat());
    }

    #[test]
    fn a_stats_summary_has_its_promised_fields() {
        let stats = VmStats {
            vm: Some(vm()),
            snapshots: 1,
            damaged_snapshots: 2,
            forgotten: 3,
            logical_bytes: 4,
            chunk_pack_bytes: 5,
            recipe_pack_bytes: 6,
            metadata_bytes: 7,
            packs: 8,
            dead_frames: 9,
            dead_bytes: 10,
            leak_estimate_bytes: 11,
            unfinished_sessions: 12,
            unresolved_chunks: 13,
            moved_chunks: 14,
        };
        let told = [
            r#"{"snapshots":1,"damaged_snapshots":2,"forgotten":3,"logical_bytes":4,"chunk_pack_bytes":5,"#,
            r#""recipe_pack_bytes":6,"metadata_bytes":7,"packs":8,"dead_frames":9,"dead_bytes":10,"#,
            r#""leak_estimate_bytes":11,"unfinished_sessions":12}"#,
        ];
        assert_eq!(json(&stats), told.concat());
        let popular = PopularStatus {
            fraction_millionths: 40_000,
            packs: 1,
            unchecked_packs: 2,
            condemned_packs: 3,
            spoiled_packs: 4,
            frames: 5,
            bytes: 6,
        };
        let told = [
            r#"{"pds_fraction":0.04,"packs":1,"unchecked_packs":2,"condemned_packs":3,"spoiled_packs":4,"chunks":5,"#,
            r#""bytes":6}"#,
        ];
        assert_eq!(json(&popular), told.concat());
        let holder = HolderInfo {
            name: "h1".to_owned(),
            address: "10.0.0.1:7500".to_owned(),
            holder: HolderId([1; 16]),
            newest_beat_number: 1,
            beat_age_ms: 2500,
            progress: 3,
        };
        assert_eq!(
            json(&holder),
            r#"{"name":"h1","address":"10.0.0.1:7500","beat_age_seconds":2.5,"read_bytes":3}"#
        );
        let key = ListedKey {
            id: "5c1d5f2b".to_owned(),
            role: Some(Role::Delete),
            is_password: false,
            is_own: true,
            is_genuine: None,
            created_ms: 4,
            fid: copal_volume::FileId(0),
        };
        let told = r#"{"id":"5c1d5f2b","role":"delete","opened_by":"file","is_own":true,"is_genuine":null,"created_ms":4}"#;
        assert_eq!(json(&key), told);
    }
}
