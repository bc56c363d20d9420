//! The store under the tests of a fleet: embedded, or an object store.
//!
//! - Where `COPAL_REMOTE_URL` names an object store, such as `s3://BUCKET/PREFIX?endpoint=URL`, each store is a prefix
//!   of its own below that address. Credentials come from the environment.
//! - [`the_cases_of_a_fleet_hold_over_an_object_server`] runs cases again in a process with such an address, over a
//!   server in this process. With `COPAL_FLEET_CASES=all` these are all that know no clock and no embedded store, and they
//!   run over the server of `COPAL_REMOTE_URL`, if there is one.

use crate::mortal_store::MortalStore;
use crate::world::{embedded_store, embedded_store_at, files};
use copal_remote::{RemoteOptions, RemoteStore, RemoteUrl};
use copal_testkit::ObjectServer;
use copal_volume::{Clock, VolumeStore};
use std::{
    env,
    process::{Command, Stdio},
    sync::Arc,
};

/// A store that the hosts of a fleet share; each host has a client of its own.
pub(crate) type FleetStore = MortalStore;

const ADDRESS: &str = "COPAL_REMOTE_URL";

/// Whether this process runs its cases over an object store.
pub(crate) fn is_elsewhere() -> bool {
    env::var_os(ADDRESS).is_some()
}

/// An empty store.
pub(crate) fn fleet_store() -> FleetStore {
    fleet_store_or(embedded_store)
}

/// The same, with the clock of the test where the store is embedded.
pub(crate) fn fleet_store_at(clock: Arc<dyn Clock>) -> FleetStore {
    fleet_store_or(|| embedded_store_at(clock))
}

/// An empty object store, or a store that `make` makes.
pub(crate) fn fleet_store_or<S: VolumeStore + Clone + 'static>(make: impl FnOnce() -> S) -> FleetStore {
    match env::var(ADDRESS) {
        Err(_) => {
            let made = make();
            MortalStore::shared(move || Arc::new(made.clone()))
        }
        Ok(address) => {
            let (base, query) = address.split_once('?').unwrap_or((&address, ""));
            let of_this = format!("{base}/{}?{query}", uuid::Uuid::new_v4().simple());
            let url = RemoteUrl::parse(&of_this).unwrap().expect("an address of an object store");
            MortalStore::shared(move || Arc::new(RemoteStore::new(&url, &RemoteOptions::default()).unwrap()))
        }
    }
}

/// Another store with the same volumes and files.
pub(crate) fn copy_fleet(store: &FleetStore) -> FleetStore {
    let copy = fleet_store();
    for (volume, _) in store.list_volumes("", None, 1000).unwrap() {
        copy.create_volume("", &volume, &Default::default()).unwrap();
    }
    for (volume, name, body) in files(store) {
        let vid = copy.open_volume(&volume).unwrap();
        copy.put(vid, &name, body.into(), &Default::default()).unwrap();
    }
    copy
}

/// Runs a case again in a process that has credentials, unless this one has. Returns whether it did.
pub(crate) fn again_with_keys(case: &str) -> bool {
    if env::var_os("AWS_ACCESS_KEY_ID").is_some() {
        return false;
    }
    let run = with_keys().args(["--exact", case, "--nocapture"]).output().unwrap();
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{printed}{}", String::from_utf8_lossy(&run.stderr));
    assert!(printed.contains("1 passed"), "there is no case {case}");
    true
}

/// This program, with credentials.
fn with_keys() -> Command {
    let mut again = Command::new(env::current_exe().unwrap());
    again
        .envs([("AWS_ACCESS_KEY_ID", "ak"), ("AWS_SECRET_ACCESS_KEY", "sk")])
        .env_remove("AWS_PROFILE")
        .env_remove("AWS_SESSION_TOKEN")
        .stdin(Stdio::null());
    again
}

/// Cases that run over an object server in each run of the suite.
const CASES: [&str; 18] = [
    "beginnings::of_hosts_that_begin_at_once_one_makes_the_repository",
    "beginnings::an_init_continues_one_that_was_killed",
    "fleet::two_vms_with_equal_data_share_nothing",
    "fleet::a_prune_frees_the_forgotten_snapshots_of_every_vm",
    "fleet::a_dead_chunk_is_stored_anew_when_it_comes_back",
    "leases::a_session_that_was_taken_for_dead_publishes_nothing",
    "leases::a_restarted_agent_ends_the_sessions_of_its_earlier_run",
    "leases::a_fenced_and_swept_backup_reports_that_it_was_fenced",
    "leases::a_backup_uses_the_running_heartbeats_of_its_process",
    "popular::vms_of_one_job_store_shared_chunks_once",
    "popular::unchecked_packs_are_not_referred_to",
    "popular_gc::unneeded_packs_are_removed_and_needed_ones_stay",
    "popular_gc::the_packs_of_moved_chunks_stay",
    "popular_gc::a_running_backup_is_waited_for",
    "popular_gc::a_base_that_is_forgotten_between_record_and_count_is_counted",
    "consolidate::a_clean_up_makes_shared_chunks_popular",
    "concurrent_consolidate::a_clean_up_gives_way_to_a_backup_of_its_vm",
    "concurrent_consolidate::a_restore_finds_frames_that_another_host_rewrote_or_moved_meanwhile",
];
/// Modules all of whose cases run on demand.
const MODULES: [&str; 6] =
    ["beginnings::", "fleet::", "leases::", "popular::", "popular_gc::", "consolidate::"];
/// Cases that set the clock of an embedded store, or rely on the lock of one machine.
const EMBEDDED_ONLY: [&str; 2] = [
    "leases::a_backup_is_refused_with_the_holders_name_and_may_run_ten_minutes_after_its_silence",
    "leases::on_one_machine_there_are_no_heartbeats_and_no_waits",
];

#[test]
fn the_cases_of_a_fleet_hold_over_an_object_server() {
    let is_all = env::var("COPAL_FLEET_CASES").is_ok_and(|cases| cases == "all");
    if is_elsewhere() {
        if is_all {
            run_cases(Command::new(env::current_exe().unwrap()), true);
        }
        return;
    }
    let server = ObjectServer::start();
    server.create_bucket("b");
    let mut again = with_keys();
    again.env(ADDRESS, format!("s3://b/fleet?endpoint={}&region=us-east-1", server.url()));
    run_cases(again, is_all);
    assert_eq!(server.open_uploads("b"), 0);
}

/// Runs cases in a process of this program.
fn run_cases(mut program: Command, is_all: bool) {
    match is_all {
        true => program.args(MODULES).args(EMBEDDED_ONLY.iter().flat_map(|case| ["--skip", case])),
        false => program.arg("--exact").args(CASES),
    };
    let run = program.output().unwrap();
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{printed}{}", String::from_utf8_lossy(&run.stderr));
    let passed =
        printed.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    assert!(passed >= Some(CASES.len()), "cases of the list are missing: {printed}");
}
