//! Repairs of leaks after jobs.

use crate::world::{Fleet, Running};
use copal_agent::{
    agent::RepairOutcome,
    job::{coordinator, job_report::JobReport},
};
use copal_backup::{CancelFlag, Silent};
use copal_testkit::Random;
use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

/// It only ends a test that hangs.
const HANG: Duration = Duration::from_secs(60);

fn start(fleet: &Fleet, share_percent: u8) -> Running {
    let plan = fleet.plan_of_disks("h1", &["web".to_owned()]);
    fleet.start_as("h1", plan, Arc::clone(&fleet.repository), |options| {
        options.leak_share_percent = Some(share_percent);
    })
}

/// Runs a job after which agents have finished their work between jobs: that work ends when the next job
/// begins.
fn job(fleet: &Fleet, repairs: usize) -> JobReport {
    let begun = coordinator::begin(&fleet.repository, &fleet.options("auto")).unwrap();
    let report = begun.wait(&CancelFlag::new(), &mut |_| ());
    assert!(report.is_complete(), "{report:?}");
    let end = Instant::now() + HANG;
    loop {
        let report = begun.look();
        if report.agents[0].status.as_ref().map(|status| status.repairs.len()) == Some(repairs) {
            return report;
        }
        assert!(Instant::now() < end, "no repair: {report:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Leaves a VM with a leak, by estimate: of two snapshots that share half, the first is deleted by vectors.
fn leak(fleet: &Fleet) {
    let mut bytes = vec![0; 4 << 20];
    for seed in [1, 2] {
        Random::new(seed).fill(&mut bytes[2 << 20..]);
        fs::write(fleet.disk("web"), &bytes).unwrap();
        job(fleet, 0);
    }
    let first = fleet.repository.list(None).unwrap().snapshots[0].id;
    fleet.repository.forget(&[first]).unwrap();
    fleet.repository.delete(&Silent, &CancelFlag::new()).unwrap();
}

/// Symptom: a VM whose leak estimate was above a tenth of its bytes leaked further until an operator ran
/// `repair leak`.
/// Fix: its agent repairs it after a job, if its key may delete.
#[test]
fn an_agent_repairs_the_leak_of_its_vm_behind_a_job_when_it_is_large_enough() {
    let fleet = Fleet::new();
    let leaked = || fleet.repository.vm_stats("web").unwrap().leak_estimate_bytes;
    {
        // A small leak is not repaired.
        let _agent = start(&fleet, 10);
        leak(&fleet);
        assert!(leaked() > 0);
        job(&fleet, 0);
        assert!(leaked() > 0);
    }
    let _agent = start(&fleet, 0);
    let report = job(&fleet, 1);
    let repair = &report.agents[0].status.as_ref().unwrap().repairs[0];
    assert!(repair.vm == "web" && matches!(repair.outcome, RepairOutcome::Freed(_)), "{repair:?}");
    assert_eq!(leaked(), 0);
    // Nothing is left to repair, and later jobs are unchanged.
    job(&fleet, 0);
}
