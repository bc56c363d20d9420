//! The beginning of a job while hosts die or refuse.

use super::*;
use crate::agent::requests::{AcceptedReply, AgentCommand};
use crate::agent::{AgentInfo, AgentStatus, PlanInfo};
use crate::job::coordinator::{JobError, JobOptions, begin_on};
use crate::job::roster::JobRoster;
use crate::plan::scheme::DedupScheme;
use twin::Twin;

/// An agent that takes part in each job, or refuses.
struct Obeys {
    is_willing: bool,
    cancelled: AtomicBool,
}

impl CommandService for Obeys {
    fn handle(&self, request: &[u8]) -> String {
        match serde_json::from_slice(request).unwrap() {
            AgentCommand::Info(_) => {
                ok(AgentInfo { name: "h".to_owned(), version: "1".to_owned(), job: None })
            }
            AgentCommand::Run(_) if !self.is_willing => control::refusal("it works on another job"),
            AgentCommand::Cancel(_) => {
                self.cancelled.store(true, Ordering::Release);
                ok(AcceptedReply {})
            }
            AgentCommand::Status(_) => ok(AgentStatus::default()),
            _ => ok(AcceptedReply {}),
        }
    }
}

fn agent(name: &str, is_willing: bool) -> (Server, Arc<Obeys>) {
    let obeys = Arc::new(Obeys { is_willing, cancelled: AtomicBool::new(false) });
    let options = ServerOptions::new("127.0.0.1:0", name, network());
    let stop = Arc::new(AtomicBool::new(false));
    let server = Server::start(options, Arc::new(Twin::default()), Arc::clone(&obeys) as _, stop).unwrap();
    (server, obeys)
}

fn begin(members: Vec<FleetMember>) -> Result<crate::job::coordinator::StartedJob, JobError> {
    let plan =
        |member: &FleetMember| PlanInfo { vms: vec![format!("vm of {}", member.name)], bytes: 0, rounds: 1 };
    let roster = JobRoster { plans: members.iter().map(plan).collect(), members, missing: Vec::new() };
    let options = JobOptions { rounds: "auto".to_owned(), timeout: HANG, scheme: DedupScheme::Collaborative };
    begin_on(&roster, &network(), &options, (1, 0), Vec::new())
}

/// Symptom: a host that died after it had sent its plan ended the job of all, and no test noticed a
/// regression.
/// Fix: this test; the host is lost from the beginning, with its VMs, and the others continue.
#[test]
fn a_host_that_dies_between_plan_and_run_is_lost_and_the_others_go_on() {
    let ((first, obeys), (third, _)) = (agent("h1", true), agent("h3", true));
    let begun = begin(vec![member("h1", &first), dead("h2"), member("h3", &third)]).unwrap();
    let report = begun.look();
    let lost: Vec<bool> = report.agents.iter().map(|agent| agent.lost.is_some()).collect();
    assert_eq!(lost, [false, true, false], "{report:?}");
    assert_eq!(
        (report.agents[1].vms(), &report.agents[1].waiting[..]),
        (&[][..], &["vm of h2".to_owned()][..])
    );
    assert!(!report.is_complete());
    assert!(!obeys.cancelled.load(Ordering::Acquire));
}

#[test]
fn a_host_that_says_no_ends_the_job_on_those_that_have_begun() {
    let ((first, begun), (second, refuses)) = (agent("h1", true), agent("h2", false));
    let refused = begin(vec![member("h1", &first), member("h2", &second)]).err();
    assert!(
        matches!(&refused, Some(JobError::Refused(reason)) if reason.contains("another job")),
        "{refused:?}"
    );
    assert!(begun.cancelled.load(Ordering::Acquire) && !refuses.cancelled.load(Ordering::Acquire));
}

#[test]
fn a_job_of_dead_hosts_only_does_not_begin() {
    let refused = begin(vec![dead("h1"), dead("h2")]).err();
    assert!(matches!(&refused, Some(JobError::NoAgent { reasons }) if reasons.contains("h2")), "{refused:?}");
}
