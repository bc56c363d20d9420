//! Conformance suite of the stores of the master, run over each.
//!
//! Not here: leases that end and masters that pause, which only a shared store has (`tables::mysql::tests`).

mod cluster;
mod names;

use crate::tables::meta_store::{
    LeaseHolder, LeaseOutcome, MetaError, MetaStore, PoolConfig, ServerRow, ServerState,
};
use std::path::PathBuf;

/// A private store that can be opened repeatedly.
pub(crate) trait Subject {
    /// Opens the store.
    fn open(&self) -> Result<Box<dyn MetaStore>, MetaError>;
}

const CASES: [fn(&dyn Subject); 18] = [
    cluster::founded_once,
    cluster::only_a_leader_changes,
    cluster::one_master_leads,
    cluster::each_leadership_has_a_term_of_its_own,
    cluster::servers_come_back_and_versions_grow,
    cluster::disks_are_given_once,
    cluster::members_of_groups_come_back_in_order,
    cluster::missed_members_are_kept,
    cluster::settings_are_kept_and_go,
    cluster::tasks_of_groups_are_kept_until_they_end,
    cluster::raised_counters_are_above_all_given_values,
    cluster::tokens_are_good_once_until_they_end,
    cluster::events_are_numbered_and_paged,
    names::a_name_is_one_volumes,
    names::lists_are_ordered_by_bytes_and_paged,
    names::removal_is_marked_undone_and_done,
    names::a_volume_moves_with_those_below_it,
    names::quotas_go_with_their_volume,
];

/// Runs all cases, each on a new store.
pub(crate) fn run(mut fresh: impl FnMut() -> Box<dyn Subject>) {
    for case in CASES {
        case(&*fresh());
    }
}

pub(crate) const POOL: PoolConfig = PoolConfig { replicas: 3, min_ack: 2, groups: 8 };

pub(crate) fn holder(number: u8) -> LeaseHolder {
    LeaseHolder([number; 24])
}

/// A store with a cluster and a leader.
pub(crate) fn founded(subject: &dyn Subject) -> Box<dyn MetaStore> {
    let mut store = subject.open().unwrap();
    store.create_cluster([7; 16], POOL).unwrap();
    assert!(matches!(store.lead(holder(1)).unwrap(), LeaseOutcome::Mine { .. }));
    store
}

/// The same store, closed and opened by another start of a master after the lease has ended.
pub(crate) fn reopened(subject: &dyn Subject, before: Box<dyn MetaStore>) -> Box<dyn MetaStore> {
    drop(before);
    let mut store = subject.open().unwrap();
    assert!(matches!(store.lead(holder(1)).unwrap(), LeaseOutcome::Mine { .. }));
    store
}

pub(crate) fn server(number: u8) -> ServerRow {
    ServerRow {
        disk: 0,
        name: format!("data{number}"),
        address: format!("127.0.0.1:740{number}"),
        server_uuid: [number; 16],
        disk_uuid: [number + 100; 16],
        state: ServerState::Normal,
        version: 0,
        incarnation: copal_volume::group::Incarnation(1),
        is_draining: false,
        failed_since_ms: 0,
        capacity_bytes: u64::from(u32::MAX) * 1000,
        zone: format!("zone {number}"),
        rack: String::new(),
    }
}

struct InFile {
    _scratch: tempfile::TempDir,
    path: PathBuf,
}

impl Subject for InFile {
    fn open(&self) -> Result<Box<dyn MetaStore>, MetaError> {
        Ok(Box::new(crate::SqliteStore::open(&self.path)?))
    }
}

#[test]
fn sqlite_is_a_store_of_the_master() {
    run(|| {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("master.db");
        Box::new(InFile { _scratch: scratch, path })
    });
}
