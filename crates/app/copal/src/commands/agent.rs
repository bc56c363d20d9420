//! `copal agent`: the daemon on a host of VMs.

pub(super) mod local;

use super::{CommandContext, close, cluster, job, new_store};
use crate::{
    arguments::AgentArgs as Words,
    failure::{Failure, Outcome, exit},
    human,
    output::write_out,
    pins::ExportPins,
    place::RepositoryPlace,
    repository,
};
use copal_agent::agent::{self, Agent, AgentError, AgentOptions, RepairOutcome};
use copal_backup::{Repository, VmStats};
use copal_node::{Access, NewStore};
use copal_object::BackendKind;
use serde_json::json;
use std::{
    collections::HashSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Poll interval of the end of the process.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(context: &CommandContext<'_>, words: &Words) -> Outcome<()> {
    let Some(state) = &words.state else {
        return Err(Failure::usage("no directory for the agent's files was named: give --state DIR"));
    };
    cluster::check_advertised(words.advertise.as_deref().unwrap_or(&words.listen))?;
    context.memory()?;
    let several = check_names(context, words)?;
    super::descriptors::raise_limit();
    let place = RepositoryPlace::find(&context.arguments.common)?;
    if !place.is_shared() && !words.once && words.every.is_none() {
        return Err(Failure::usage(
            "only one process can open a repository in a directory, so this one must start the jobs: give --once for one job, or --every 24h for one each day",
        ));
    }
    let cache = state.join("cache");
    let choice = words.backend.choice(BackendKind::Cow);
    let plan = |named: &Path| new_store::plan(context, named, choice, NewStore::default());
    let common = context.arguments.common.of_agent();
    let opened = repository::open_with_cache(&common, &cache, words.backend, &plan, &context.patience())?;
    let stop = Arc::new(AtomicBool::new(false));
    let outcome = start_all(context, words, several, state, opened.shared(), &stop).map(|agents| {
        for agent in &agents {
            let (name, address) = (agent.name(), agent.address());
            match context.output.is_json() {
                true => {
                    context.output.message("ready", json!({ "name": name, "address": address.to_string() }))
                }
                false => write_out(&format!("ready {name} {address}\n")),
            }
        }
        let answering = local::answer(&place, opened.shared());
        let outcome = jobs(context, words, opened.shared());
        drop(answering);
        stop.store(true, Ordering::Release);
        agents.into_iter().for_each(Agent::wait);
        outcome
    });
    close(opened, outcome.and_then(|outcome| outcome))
}

/// Runs jobs as requested, until the command is to end.
fn jobs(context: &CommandContext<'_>, words: &Words, repository: &Repository) -> Outcome<()> {
    if words.once {
        let done = job::once(context, repository, &words.job);
        repair_leaks(context, words, repository)?;
        return done;
    }
    if let Some(every) = words.every {
        while !context.is_ended() {
            let began = Instant::now();
            // The next job may succeed.
            if let Err(failure) = job::once(context, repository, &words.job) {
                context.output.failure(&failure);
            }
            repair_leaks(context, words, repository)?;
            while !context.is_ended() && began.elapsed() < every {
                context.pause(POLL_INTERVAL);
            }
        }
    }
    context.wait_for_end(POLL_INTERVAL);
    Ok(())
}

/// Repairs VMs of a local repository that leak too much: after a job, when no agent of this process works.
fn repair_leaks(context: &CommandContext<'_>, words: &Words, repository: &Repository) -> Outcome<()> {
    let place = RepositoryPlace::find(&context.arguments.common)?;
    let in_cluster = place.is_shared();
    if in_cluster || ExportPins::look(&place).refusal_to_free(repository)?.is_some() {
        return Ok(());
    }
    let plans =
        words.plan.iter().filter_map(|file| copal_agent::plan::plan_file::BackupPlan::read(file).ok());
    let vms: Vec<String> = plans.flat_map(|plan| plan.vms).map(|vm| vm.vm).collect();
    let limits = (VmStats::LEAK_SHARE_PERCENT, context.memory()?.work);
    let names = vms.iter().map(String::as_str);
    for repair in agent::repair_leaks(repository, names, limits, &context.cancel) {
        let said = match &repair.outcome {
            RepairOutcome::Freed(bytes) => {
                format!("the leak of {} was repaired: {} freed", repair.vm, human::bytes(*bytes))
            }
            RepairOutcome::Postponed(reason) => {
                format!("the leak of {} is repaired after the next job: {reason}", repair.vm)
            }
        };
        context.output.notice(&said);
    }
    Ok(())
}

/// Returns whether there are several agents; each needs its own plan and name.
fn check_names(context: &CommandContext<'_>, words: &Words) -> Outcome<bool> {
    let mut seen = HashSet::new();
    for name in &words.name {
        if name.is_empty()
            || name.len() > 64
            || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        {
            return Err(Failure::usage(format!(
                "--name {name:?} cannot be the name of an agent: 1 to 64 letters, digits, dots, hyphens and underscores"
            )));
        }
        if !seen.insert(name) {
            return Err(Failure::usage(format!("two agents are named {name}; give each its own name")));
        }
    }
    if words.plan.len() != words.name.len() {
        return Err(Failure::usage(format!(
            "{} agents have {} plan files; give one --plan for each --name, in the same order",
            words.name.len(),
            words.plan.len()
        )));
    }
    let several = words.name.len() > 1;
    if several && words.advertise.is_some() {
        return Err(Failure::usage(
            "several agents listen at separate ports, so one --advertise cannot name all of them; run one agent in each process",
        ));
    }
    if several && RepositoryPlace::find(&context.arguments.common)?.is_shared() {
        return Err(Failure::usage(
            "several agents in one process are for a repository in a directory; with copal:// run one on each host",
        ));
    }
    let mut owners = std::collections::HashMap::new();
    for (name, file) in words.name.iter().zip(&words.plan) {
        let plan = copal_agent::plan::plan_file::BackupPlan::read(file)
            .map_err(|error| Failure::usage(error.to_string()))?;
        for vm in plan.vms {
            if let Some(other) = owners.insert(vm.vm.clone(), name) {
                return Err(Failure::usage(format!(
                    "VM {} is in the plans of {other} and {name}; take it out of one of them",
                    vm.vm
                )));
            }
        }
    }
    Ok(several)
}

fn start_all(
    context: &CommandContext<'_>,
    words: &Words,
    several: bool,
    state: &Path,
    repository: &Arc<Repository>,
    stop: &Arc<AtomicBool>,
) -> Outcome<Vec<Agent>> {
    let limit = |bytes: u64| (bytes > 0).then_some(bytes);
    let in_cluster = RepositoryPlace::find(&context.arguments.common)?.is_shared();
    let mut agents = Vec::new();
    for (name, plan) in words.name.iter().zip(&words.plan) {
        let options = AgentOptions {
            name: name.clone(),
            state: if several { state.join(name) } else { state.to_owned() },
            listen: words.listen.clone(),
            advertise: words.advertise.clone(),
            plan: Some(plan.clone()),
            memory_bytes: context.arguments.common.memory_bytes(),
            read_limit: limit(words.limit_read),
            upload_limit: limit(words.limit_upload),
            // On a local repository several agents share one process: the command repairs leaks when none of
            // them works.
            leak_share_percent: in_cluster.then_some(VmStats::LEAK_SHARE_PERCENT),
        };
        match Agent::start(Arc::clone(repository), &options, Arc::clone(stop)) {
            Ok(agent) => agents.push(agent),
            Err(error) => {
                stop.store(true, Ordering::Release);
                agents.into_iter().for_each(Agent::wait);
                return Err(of_agent(error));
            }
        }
    }
    Ok(agents)
}

pub(super) fn of_agent(error: AgentError) -> Failure {
    let sentence = error.to_string();
    match error {
        AgentError::Repository(error) => error.into(),
        AgentError::Solo => Failure::new(exit::DENIED, "denied", sentence),
        AgentError::Memory(_) | AgentError::Plan(_) | AgentError::NameTaken { .. } => {
            Failure::usage(sentence)
        }
        _ => Failure::plain("agent", sentence),
    }
}

/// `copal agent ls`.
pub(super) fn list(context: &CommandContext<'_>) -> Outcome<()> {
    let (mut live, listed) = match local::ask(context, &local::AgentQuestion::Agents)? {
        Some(local::AgentAnswer::Agents(agents)) => (agents, Vec::new()),
        _ => {
            let opened = context.open(Access::Read)?;
            let repository = opened.repository();
            let found = repository.holders().and_then(|holders| Ok((holders, repository.listed_agents()?)));
            let (mut holders, listed) = close(opened, found.map_err(Failure::from))?;
            // A holder without an address is a single backup, which `sessions ls` shows.
            holders.retain(|holder| !holder.address.is_empty());
            let addresses =
                holders.into_iter().map(|holder| (holder.name, holder.address, holder.beat_age_ms));
            (addresses.collect(), listed)
        }
    };
    live.sort_by(|a, b| (&a.0, a.2).cmp(&(&b.0, b.2)));
    let silent = listed.into_iter().filter(|agent| live.iter().all(|(name, ..)| *name != agent.name));
    let silent: Vec<_> = silent.collect();
    let live_fields = live.iter().map(|(name, address, age_ms)| {
        json!({ "name": name, "address": address, "beat_age_seconds": *age_ms as f64 / 1e3 })
    });
    let silent_fields = silent.iter().map(|agent| json!({ "name": agent.name, "vms": agent.vms }));
    let fields = json!({
        "command": "agent ls",
        "agents": live_fields.collect::<Vec<_>>(),
        "silent": silent_fields.collect::<Vec<_>>(),
    });
    context.output.answer(fields, || {
        let mut rows: Vec<Vec<String>> = live
            .iter()
            .map(|(name, address, age_ms)| vec![name.clone(), address.clone(), human::age(age_ms / 1000)])
            .collect();
        rows.extend(
            silent
                .iter()
                .map(|agent| vec![agent.name.clone(), "-".to_owned(), "none since its end".to_owned()]),
        );
        match rows.is_empty() {
            true => "no agent is known\n".to_owned(),
            false => human::table(&["Agent", "Address", "Last heartbeat"], &rows),
        }
    });
    Ok(())
}

/// `copal agent rm`.
pub(super) fn retire(context: &CommandContext<'_>, name: &str) -> Outcome<()> {
    let opened = context.open(Access::Write)?;
    let retired = opened.repository().retire_agent(name).map_err(Failure::from);
    if !close(opened, retired)? {
        return Err(Failure::plain(
            "agent",
            format!("no agent {name} is listed in this repository; `copal agent ls` shows those that are"),
        ));
    }
    let fields = json!({ "command": "agent rm", "agent": name });
    context.output.answer(fields, || {
        format!("jobs no longer wait for the agent {name}; if it starts again, it is listed again\n")
    });
    Ok(())
}
