//! Requests to an agent, each with the type of its reply: JSON over the encrypted connection.
//!
//! Not here: the execution (`commands`).

use super::{job_agents::JobAgents, status::AgentStatus};
use crate::asker::FleetMember;
use crate::fleet::control;
use crate::fleet::control::CommandOutcome;
use crate::fleet::network::FleetNetwork;
use crate::plan::missing_agent::MissingAgent;
use crate::plan::scheme::DedupScheme;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;

/// Longest time of a command that executes nothing.
const CALL: Duration = Duration::from_secs(10);

/// A request, and the type of its reply.
pub(crate) trait AgentRequest: Into<AgentCommand> {
    type Reply: Serialize + DeserializeOwned;
}

macro_rules! requests {
    ($(
        $(#[$about:meta])*
        $kind:ident: $request:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* } -> $reply:ty;
    )*) => {
        /// Any of the requests.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(tag = "command", rename_all = "kebab-case")]
        pub(crate) enum AgentCommand {
            $($kind($request)),*
        }

        $(
            $(#[$about])*
            #[derive(Clone, Debug, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub(crate) struct $request {
                $($(#[$of_field])* pub(crate) $field: $type,)*
            }

            impl From<$request> for AgentCommand {
                fn from(request: $request) -> AgentCommand {
                    AgentCommand::$kind(request)
                }
            }

            impl AgentRequest for $request {
                type Reply = $reply;
            }
        )*
    };
}

requests! {
    /// Asks an agent for its name, version and job.
    Info: InfoRequest {} -> AgentInfo;

    /// Asks for the VMs that the agent would back up, and the number of rounds.
    Plan: PlanRequest {
        /// `auto`, or a number.
        rounds: String,
        /// Names of selected VMs of its plan; empty for all.
        only: Vec<String>,
    } -> PlanInfo;

    /// Begins a job; equal for all its hosts.
    Run: RunRequest {
        job: String,
        /// Name and address of each agent.
        members: Vec<(String, String)>,
        participants: u32,
        partition_bits: u8,
        /// As in [`PlanRequest`].
        rounds: String,
        /// Number of rounds, that of the host with the most.
        all_rounds: u32,
        timeout_ms: u64,
        scheme: DedupScheme,
        /// Names of the selected VMs of the plans; empty for all.
        only: Vec<String>,
        /// Names of the VMs of each member.
        plans: Vec<Vec<String>>,
        /// Agents that should take part but do not.
        missing: Vec<MissingAgent>,
        /// Position in the log of popular packs where the job began.
        popular_from: u64,
    } -> AcceptedReply;

    /// Asks for the progress of a job.
    Status: StatusRequest { job: String, } -> AgentStatus;

    /// Asks whether the job has stored all VMs of this agent.
    Stored: StoredRequest { job: String, } -> StoredInfo;

    /// Like [`StatusRequest`], for the newest job.
    Newest: NewestRequest {} -> AgentStatus;

    /// Asks for the agents of a job.
    Agents: AgentsRequest { job: String, } -> JobAgents;

    /// Ends a job.
    Cancel: CancelRequest { job: String, } -> AcceptedReply;
}

/// The name, version and job of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The job that it works on, as hex digits.
    pub job: Option<String>,
}

/// The VMs that an agent would back up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanInfo {
    /// Names of its VMs.
    pub vms: Vec<String>,
    /// Bytes to read.
    pub bytes: u64,
    /// Number of rounds.
    pub rounds: u32,
}

/// Whether an agent has stored its VMs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredInfo {
    /// All VMs are stored.
    pub(crate) stored: bool,
    /// Whether chunks that VMs stored for themselves may be popular now.
    pub(crate) gain: bool,
}

/// The reply to a request that is executed later, or has no result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AcceptedReply {}

/// Sends a request to an agent, and waits for the reply.
/// # Errors
/// A sentence: the agent cannot be reached, its reply lacks a field, or it refuses.
pub(crate) fn call<R: AgentRequest>(
    member: &FleetMember,
    network: &FleetNetwork,
    request: R,
) -> Result<R::Reply, String> {
    let command: AgentCommand = request.into();
    let called = control::call(&member.address, network, &command, CALL);
    match called.map_err(|error| format!("agent {}: {error}", member.name))? {
        CommandOutcome::Ok(reply) => Ok(reply),
        CommandOutcome::Error(reason) => Err(format!("agent {}: {reason}", member.name)),
    }
}

/// Asks an agent for its name, version and job.
/// # Errors
/// As [`call`].
pub(crate) fn info(member: &FleetMember, network: &FleetNetwork) -> Result<AgentInfo, String> {
    call(member, network, InfoRequest {})
}

/// As 32 hex digits.
pub(crate) fn hex(id: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*id).simple().to_string()
}

/// An id from 32 hex digits.
pub(crate) fn id_of(hex: &str) -> Option<[u8; 16]> {
    let id = uuid::Uuid::try_parse(hex).ok()?;
    (hex.len() == 32).then(|| id.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(request: impl AgentRequest) -> String {
        control::to_json(&request.into()).unwrap()
    }

    fn read(json: &str) -> Result<AgentCommand, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_are_sent_as_before_and_read_with_all_their_fields_or_not_at_all() {
        assert_eq!(sent(InfoRequest {}), r#"{"command":"info"}"#);
        assert_eq!(sent(NewestRequest {}), r#"{"command":"newest"}"#);
        let plan = r#"{"command":"plan","only":["web"],"rounds":"auto"}"#;
        assert_eq!(sent(PlanRequest { rounds: "auto".to_owned(), only: vec!["web".to_owned()] }), plan);
        let job = || "7".repeat(32);
        for (sent, word) in [
            (sent(StatusRequest { job: job() }), "status"),
            (sent(StoredRequest { job: job() }), "stored"),
            (sent(AgentsRequest { job: job() }), "agents"),
            (sent(CancelRequest { job: job() }), "cancel"),
        ] {
            assert_eq!(sent, format!(r#"{{"command":"{word}","job":"{}"}}"#, job()));
            assert!(read(&sent).is_ok(), "{sent}");
        }
        let run = RunRequest {
            job: job(),
            members: vec![("h1".to_owned(), "10.0.0.1:7500".to_owned())],
            participants: 1,
            partition_bits: 2,
            rounds: "3".to_owned(),
            all_rounds: 4,
            timeout_ms: 5,
            scheme: DedupScheme::DirtyBit,
            only: Vec::new(),
            plans: vec![vec!["web".to_owned()]],
            missing: Vec::new(),
            popular_from: 6,
        };
        let sent_parts = [
            r#"{"all_rounds":4,"command":"run","job":"77777777777777777777777777777777","#,
            r#""members":[["h1","10.0.0.1:7500"]],"missing":[],"only":[],"participants":1,"partition_bits":2,"#,
            r#""plans":[["web"]],"popular_from":6,"rounds":"3","scheme":"dirty-bit","timeout_ms":5}"#,
        ];
        assert_eq!(sent(run), sent_parts.concat());
        assert!(matches!(read(&sent_parts.concat()), Ok(AgentCommand::Run(_))));
        assert!(
            read(&sent_parts.concat().replace(r#","popular_from":6"#, ""))
                .unwrap_err()
                .contains("popular_from")
        );
        assert!(read(r#"{"command":"info","more":1}"#).unwrap_err().contains("more"));
        assert!(read(r#"{"command":"reboot"}"#).unwrap_err().contains("reboot"));
    }
}
