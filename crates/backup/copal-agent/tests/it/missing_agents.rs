//! Agents that take no part in a job, and agents that return.

use crate::world::{Fleet, Running};
use copal_agent::{
    job::{
        coordinator::{self, JobError, JobOptions},
        job_report::JobReport,
    },
    plan::scheme::DedupScheme,
};
use copal_backup::{BackupRequest, CancelFlag, DiskSource, Holder, ListedAgent, Progress, Stage, Unlock};
use copal_disk::source::file::FileSource;
use std::{fs, sync::Mutex};

/// Symptom: a host that could not be reached dropped out of the nightly job, which was complete, with exit
/// code 0.
/// Cause: a job included only the agents with a recent heartbeat.
/// Fix: an agent is listed with its VMs until it is removed; a listed agent that takes no part is missing.
#[test]
fn an_agent_that_does_not_answer_is_missing_until_it_is_back_or_retired() {
    let fleet = Fleet::new();
    let _first = fleet.start("h1", &["web"]);
    let second = fleet.start("h2", &["db", "mail"]);
    assert!(fleet.job().is_complete());
    // It ends cleanly, like before maintenance of its host: it is expected nevertheless.
    drop(second);
    let report = fleet.job();
    assert!(!report.is_complete(), "{report:?}");
    let [missing] = &report.missing[..] else {
        panic!("{report:?}");
    };
    assert_eq!((&*missing.name, &missing.vms[..]), ("h2", &["db".to_owned(), "mail".to_owned()][..]));
    assert!(missing.reason.contains("copal agent rm h2"), "{missing}");
    assert!(report.agents[0].vms()[0].backup().is_some(), "the others go on");
    // Later queries give the same answer.
    let found = coordinator::find(&fleet.repository, None).unwrap().look();
    assert_eq!((found.job, &found.missing), (report.job, &report.missing));

    // At another address.
    let second = fleet.start("h2", &["db", "mail"]);
    assert!(fleet.job().is_complete());
    // One of its VMs moves to the other host; the other one is missing.
    drop(second);
    fleet.plan("h1", &["web", "db"]);
    let report = fleet.job();
    assert_eq!(report.missing[0].vms, ["mail"], "{report:?}");
    assert!(fleet.repository.retire_agent("h2").unwrap());
    assert!(fleet.job().is_complete());
    assert!(!fleet.repository.retire_agent("h2").unwrap());
}

/// Symptom: for two minutes after an agent was killed and removed, each job failed because of it. Cause: its
/// last heartbeats were young, so it was queried, and its silence counted. Fix: an unlisted agent that cannot
/// be reached is not missing.
#[test]
fn an_agent_that_was_killed_and_retired_is_not_missed() {
    let fleet = Fleet::new();
    let _first = fleet.start("h1", &["web"]);
    let holder = Holder { name: "h2".to_owned(), address: "127.0.0.1:1".to_owned() };
    let killed = fleet.repository.beat(&holder).unwrap();
    let listed = ListedAgent {
        name: "h2".to_owned(),
        holder: killed.holder(),
        vms: vec!["db".to_owned()],
        more_vms: 0,
    };
    fleet.repository.list_agent(&listed).unwrap();
    assert_eq!(fleet.job().missing.len(), 1);
    assert!(fleet.repository.retire_agent("h2").unwrap());
    let report = fleet.job();
    assert!(report.is_complete(), "{report:?}");
}

/// A plan that cannot be read concerns one host: the others are backed up.
#[test]
fn an_agent_whose_plan_is_broken_is_missing_and_one_without_vms_is_a_member() {
    let fleet = Fleet::new();
    let _agents = [fleet.start("h1", &["web"]), fleet.start("h2", &["db"]), fleet.start("h3", &[])];
    let report = fleet.job();
    assert!(report.is_complete() && report.agents.len() == 3, "{report:?}");
    fs::write(fleet.directory.path().join("h2.plan"), "{").unwrap();
    let report = fleet.job();
    let [missing] = &report.missing[..] else {
        panic!("{report:?}");
    };
    assert_eq!((&*missing.name, &missing.vms[..]), ("h2", &["db".to_owned()][..]));
    assert!(missing.reason.contains("h2.plan"), "{missing}");
    assert!(!report.is_complete());
}

#[test]
fn without_any_agent_left_all_are_named() {
    let fleet = Fleet::new();
    drop([fleet.start("h1", &["web"]), fleet.start("h2", &["db"])]);
    let refused = coordinator::begin(&fleet.repository, &fleet.options("auto")).err();
    let sentence = refused.expect("no agent is left").to_string();
    for part in ["h1", "web", "h2", "db"] {
        assert!(sentence.contains(part), "{sentence}");
    }
}

/// Symptom: `--rounds 1` was silently ignored, and so was `--rounds 8`.
/// Cause: a host has as many rounds as its memory requires, and at most as many as it has parts.
/// Fix: too few are refused with the reason; if there are more, the others are empty.
#[test]
fn rounds_are_followed_or_refused_with_the_reason() {
    let fleet = Fleet::new();
    let names: Vec<String> = (0..20).map(|vm| format!("vm{vm}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let _agents = [fleet.start("h1", &names), fleet.start("h2", &["web"])];
    let refused = coordinator::begin(&fleet.repository, &fleet.options("1")).err();
    assert!(
        matches!(&refused, Some(JobError::TooFewRounds { asked: 1, agent, needed: 2 }) if agent == "h1"),
        "{refused:?}"
    );
    let report = fleet.job_in("5");
    assert!(report.is_complete() && report.rounds == 5, "{report:?}");
}

/// Symptom: a host that died between two stages of a job ended the job of all hosts, with an error.
/// Cause: the plan of each host was queried again before a stage, and silence was an error.
/// Fix: the host is lost, like one that dies in a stage; the stages of the others continue.
#[test]
fn a_host_that_dies_between_two_stages_is_lost_and_the_others_go_on() {
    let fleet = Fleet::new();
    let _first = fleet.start("h1", &["web", "mail"]);
    let mut second = Some(fleet.start("h2", &["db", "www"]));
    let tell = &mut |report: &JobReport| {
        if report.is_over() {
            drop(second.take());
        }
    };
    let options = JobOptions { scheme: DedupScheme::Synchronous, ..fleet.options("auto") };
    let report = coordinator::run_in_stages(&fleet.repository, &options, &CancelFlag::new(), tell).unwrap();
    let states = |agent: usize| -> Vec<(&str, bool)> {
        let vms = report.agents[agent].vms().iter();
        vms.map(|vm| (&vm.vm[..], vm.backup().is_some())).collect()
    };
    assert_eq!(states(0), [("web", true), ("mail", true)], "{report:?}");
    assert_eq!(
        (states(1), &report.agents[1].waiting[..]),
        (vec![("db", true)], &["www".to_owned()][..]),
        "{report:?}"
    );
    assert!(report.agents[0].lost.is_none() && report.agents[1].lost.is_some() && !report.is_complete());
}

/// Starts an agent once its VM is being read.
struct StartAt<'a> {
    fleet: &'a Fleet,
    started: Mutex<Option<Running>>,
}

impl Progress for StartAt<'_> {
    fn stage(&self, stage: Stage, _what: &str, _total: u64) {
        let mut started = self.started.lock().unwrap();
        if stage == Stage::Read && started.is_none() {
            assert_eq!(self.fleet.repository.sessions().unwrap().len(), 1);
            *started = Some(self.fleet.start("h1", &["web"]));
            assert!(self.fleet.repository.sessions().unwrap().is_empty());
        }
    }
}

/// Symptom: no test would have noticed an agent that leaves open sessions of its earlier run until their
/// timeout of ten minutes.
#[test]
fn an_agent_takes_over_the_sessions_of_its_name_when_it_starts() {
    let fleet = Fleet::on_several_servers();
    fleet.plan("h1", &["web"]);
    let earlier = fleet.open(&Unlock::Insecure);
    let source = FileSource::open(&fleet.disk("web")).unwrap();
    let mut request = BackupRequest::new("web", vec![DiskSource::new("sda", Box::new(source))]);
    request.holder = Holder { name: "h1".to_owned(), address: "h1.example:7600".to_owned() };
    let at = StartAt { fleet: &fleet, started: Mutex::default() };
    let ended = earlier.backup(request, &at, &CancelFlag::new()).unwrap_err();
    assert!(at.started.lock().unwrap().is_some());
    assert_eq!(ended.exit_code(), 11, "{ended}");
}
