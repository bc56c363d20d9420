//! An owner of partitions that dies in the middle of a job.

use crate::world::Fleet;
use copal_agent::{
    agent::{VmBytes, VmState, VmStatus},
    job::{
        coordinator,
        job_report::{AgentReport, JobReport},
    },
};
use copal_testkit::Random;
use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

/// It only ends a test that hangs.
const HANG: Duration = Duration::from_secs(120);

fn look_until(
    begun: &coordinator::StartedJob,
    what: &str,
    come: impl Fn(&[AgentReport]) -> bool,
) -> JobReport {
    let end = Instant::now() + HANG;
    loop {
        let report = begun.look();
        if come(&report.agents) {
            return report;
        }
        assert!(Instant::now() < end, "{what} did not come: {report:?}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Agents h1 and h2 have two VMs each, of which half is the same; h3 has none and owns a third of the
/// partitions. It dies after the first VMs have asked it, and before it can have answered. Its stand-ins
/// answer, in this round and the next.
#[test]
fn the_stand_in_answers_for_an_owner_that_goes_in_the_middle_of_a_job() {
    let fleet = Fleet::with_fraction(1_000_000);
    let vms = |first: usize| [first, first + 1].map(|number| format!("vm{number}"));
    for number in 0..4 {
        let mut bytes = vec![0; 4 << 20];
        Random::new(1).fill(&mut bytes[..2 << 20]);
        Random::new(10 + number).fill(&mut bytes[2 << 20..]);
        fs::write(fleet.disk(&format!("vm{number}")), bytes).unwrap();
    }
    let open = || Arc::clone(&fleet.repository);
    let _agents = [("h1", 0), ("h2", 2)].map(|(name, first)| {
        let plan = fleet.plan_of_disks(name, &vms(first));
        fleet.start_as(name, plan, open(), |options| options.read_limit = Some(2 << 20))
    });
    let gone = fleet.start_with("h3", fleet.plan_of_disks("h3", &[]), open());
    let begun = coordinator::begin(&fleet.repository, &fleet.options("auto")).unwrap();
    let has_asked =
        |agent: &AgentReport| agent.status.as_ref().is_some_and(|status| status.message_bytes > 2000);
    let asked = look_until(&begun, "questions", |agents| agents[..2].iter().all(has_asked));
    let is_waiting = |vm: &VmStatus| matches!(vm.state, VmState::Running);
    assert!(asked.agents[..2].iter().all(|agent| agent.vms().iter().all(is_waiting)), "{asked:?}");
    drop(gone);

    let is_done = |agent: &AgentReport| agent.status.as_ref().is_some_and(|status| status.done);
    let report = look_until(&begun, "the end", |agents| agents[..2].iter().all(is_done));
    let vms: Vec<&VmStatus> = report.agents[..2].iter().flat_map(AgentReport::vms).collect();
    assert_eq!(vms.len(), 4, "{report:?}");
    let sum = |bytes: fn(&VmBytes) -> u64| {
        vms.iter().filter_map(|vm| vm.backup()).map(|backup| bytes(&backup.bytes)).sum::<u64>()
    };
    for vm in &vms {
        assert_eq!(vm.backup().map(|backup| backup.unresolved), Some(0), "{vm:?}");
    }
    // Each of the four refers to the common half, which is stored once.
    assert!(sum(|bytes| bytes.pds_dup) > 7 << 20 && sum(|bytes| bytes.pds_new) < 3 << 20, "{report:?}");
}
