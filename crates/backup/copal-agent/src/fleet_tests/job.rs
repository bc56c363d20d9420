//! The beginning of a job with agents that take part, refuse, or have died since they sent their plans.

use super::{twin::Twin, *};
use crate::agent::requests::{AcceptedReply, AgentCommand};
use crate::agent::status::sample;
use crate::agent::{AgentInfo, AgentStatus, PlanInfo};
use crate::job::coordinator::{JobError, JobOptions, StartedJob, begin_on};
use crate::job::roster::JobRoster;
use crate::plan::scheme::DedupScheme;
use copal_backup::CancelFlag;
use parking_lot::Mutex;

/// An agent that executes all commands at once, except for one that it refuses; it records the commands.
#[derive(Default)]
struct Willing {
    commands: Mutex<Vec<String>>,
    refuses: Option<&'static str>,
}

impl CommandService for Willing {
    fn handle(&self, request: &[u8]) -> String {
        let word = serde_json::from_slice::<Value>(request).unwrap()["command"].as_str().unwrap().to_owned();
        let refuses = self.refuses == Some(word.as_str());
        self.commands.lock().push(word);
        match serde_json::from_slice(request).unwrap() {
            _ if refuses => control::refusal("not now"),
            AgentCommand::Info(_) => {
                ok(AgentInfo { name: "h1".to_owned(), version: "1".to_owned(), job: None })
            }
            AgentCommand::Status(_) => {
                let vms = vec![sample::done("web", 1)];
                ok(AgentStatus { done: true, vms, ..AgentStatus::default() })
            }
            _ => ok(AcceptedReply {}),
        }
    }
}

fn start(agent: Willing) -> (Server, Arc<Willing>) {
    let agent = Arc::new(agent);
    let options = ServerOptions::new("127.0.0.1:0", "h1", network());
    let stop = Arc::new(AtomicBool::new(false));
    let server = Server::start(options, Arc::new(Twin::default()), agent.clone(), stop);
    (server.unwrap(), agent)
}

fn begin(members: Vec<FleetMember>) -> Result<StartedJob, JobError> {
    let plan = |vm: &str| PlanInfo { vms: vec![vm.to_owned()], bytes: 0, rounds: 1 };
    let roster = JobRoster {
        plans: members.iter().map(|member| plan(&format!("vm of {}", member.name))).collect(),
        members,
        missing: Vec::new(),
    };
    let options = JobOptions {
        rounds: "auto".to_owned(),
        timeout: Duration::from_secs(1),
        scheme: DedupScheme::default(),
    };
    begin_on(&roster, &network(), &options, (1, 0), Vec::new())
}

/// Symptom: a host that died between the planning of a job and its beginning ended the job for all hosts.
/// Cause: each agent had to accept the job. Fix: an unreachable agent counts as lost, and the others
/// continue.
#[test]
fn a_host_that_died_after_its_plan_is_lost_and_the_others_continue() {
    let (server, agent) = start(Willing::default());
    for members in [vec![member("h1", &server), dead("h2")], vec![dead("h2"), member("h1", &server)]] {
        let begun = begin(members).unwrap();
        let report = begun.wait(&CancelFlag::new(), &mut |_| {});
        assert!(report.is_over() && !report.is_complete());
        let of = |name: &str| report.agents.iter().find(|agent| agent.name == name).unwrap();
        assert!(of("h1").lost.is_none() && of("h1").vms()[0].backup().is_some());
        let lost = of("h2");
        assert!(lost.lost.as_ref().unwrap().contains("agent h2"), "{report:?}");
        assert_eq!(lost.waiting, ["vm of h2"]);
    }
    assert!(!agent.commands.lock().iter().any(|command| command == "cancel"));
    let Err(error) = begin(vec![dead("h2")]) else { panic!("a job without agents began") };
    assert!(matches!(error, JobError::NoAgent { .. }), "{error}");
}

#[test]
fn a_reachable_host_that_refuses_ends_the_job() {
    let (first, agent) = start(Willing::default());
    let (second, _) = start(Willing { refuses: Some("run"), ..Willing::default() });
    let Err(error) = begin(vec![member("h1", &first), member("h2", &second)]) else { panic!("it began") };
    assert!(error.to_string().contains("not now"), "{error}");
    assert_eq!(agent.commands.lock().last().unwrap(), "cancel");
}
