//! `copal pds cleanup`: stores chunks once that several VMs store separately.

use super::super::{CommandContext, close, fields::MeasuredFields, forget, prune};
use crate::{
    arguments::PdsCleanup,
    asker::{self, PART_BYTES},
    failure::{Failure, Outcome, exit},
    human,
    place::RepositoryPlace,
};
use copal_agent::agent::{Agent, AgentOptions, FleetClient};
use copal_backup::{
    CleanUpOptions, CleanUpSummary, Collaboration, Error, PruneOptions, Repository, Vm, peers::Writer,
};
use copal_node::Access;
use serde::Serialize;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Two passes: the last VMs of the first pass may share chunks with its first VMs.
const PASSES: usize = 2;

/// Results of all VMs.
#[derive(Default)]
struct CleanupResult {
    vms: Vec<CleanUpSummary>,
    /// Names of VMs that are being backed up.
    busy: Vec<String>,
    /// Bytes of removed packs.
    returned_bytes: u64,
    swept_bytes: u64,
}

pub(crate) fn run(context: &CommandContext<'_>, words: &PdsCleanup) -> Outcome<()> {
    let opened = context.open(Access::Write)?;
    let free = forget::refuse_to_free(context, &opened);
    let outcome = free.and_then(|()| with_agents(context, words, opened.shared()));
    let done = close(opened, outcome)?;
    tell(context, &done);
    Ok(())
}

/// Finds agents to ask. For a local repository this process starts its own, since no other can open it.
fn with_agents(
    context: &CommandContext<'_>,
    words: &PdsCleanup,
    repository: &Arc<Repository>,
) -> Outcome<CleanupResult> {
    let name = asker::own_name();
    let spool = asker::spool_directory()?;
    let stop = Arc::new(AtomicBool::new(false));
    let own = match RepositoryPlace::find(&context.arguments.common)? {
        RepositoryPlace::Cluster(_) | RepositoryPlace::Remote(_) => None,
        RepositoryPlace::Store(_) => Some(start_own(context, repository, spool.path(), &stop)?),
    };
    let outcome = FleetClient::connect(repository, &name, spool.path(), words.timeout)
        .map_err(Failure::from)
        .and_then(|client| {
            let client = client.ok_or_else(|| {
                Failure::new(
                    exit::TOO_FEW,
                    "no_agents",
                    "no agent can be reached, and only agents know the chunks of several VMs; start `copal agent` on the hosts",
                )
            })?;
            let others = Collaboration {
                peers: &client,
                spool_directory: spool.path().to_owned(),
                writer: Writer::of(&name),
                part_bytes: PART_BYTES,
            };
            clean_up(context, words, repository, &others)
        });
    stop.store(true, Ordering::Release);
    if let Some(own) = own {
        own.wait();
    }
    outcome
}

fn start_own(
    context: &CommandContext<'_>,
    repository: &Arc<Repository>,
    directory: &Path,
    stop: &Arc<AtomicBool>,
) -> Outcome<Agent> {
    let options = AgentOptions {
        advertise: None,
        name: "cleanup".to_owned(),
        state: directory.join("agent"),
        listen: "127.0.0.1:0".to_owned(),
        plan: None,
        memory_bytes: context.arguments.common.memory_bytes(),
        read_limit: None,
        upload_limit: None,
        leak_share_percent: None,
    };
    let started = Agent::start(Arc::clone(repository), &options, Arc::clone(stop));
    started.map_err(super::super::agent::of_agent)
}

fn clean_up(
    context: &CommandContext<'_>,
    words: &PdsCleanup,
    repository: &Repository,
    others: &Collaboration<'_>,
) -> Outcome<CleanupResult> {
    let wanted =
        |vm: &Vm| words.vm.as_ref().is_none_or(|only| *only == vm.name || *only == vm.uuid.to_string());
    let vms: Vec<Vm> = repository.vms()?.into_iter().filter(wanted).collect();
    if let (Some(name), true) = (&words.vm, vms.is_empty()) {
        return Err(Failure::plain("not_found", format!("no VM is named {name}; `copal vm ls` lists them")));
    }
    let mut done = CleanupResult::default();
    let meter = context.meter();
    for pass in 0..PASSES {
        let mut moved = 0;
        for vm in &vms {
            moved += one(context, repository, others, vm, pass, &meter, &mut done)?;
        }
        if moved == 0 || vms.len() == 1 {
            break;
        }
    }
    done.swept_bytes = repository.sweep_popular(&context.cancel)?.bytes;
    Ok(done)
}

/// Cleans up one VM; returns the number of moved chunks.
fn one(
    context: &CommandContext<'_>,
    repository: &Repository,
    others: &Collaboration<'_>,
    vm: &Vm,
    pass: usize,
    meter: &dyn copal_backup::Progress,
    done: &mut CleanupResult,
) -> Outcome<u64> {
    let memory_bytes = context.memory()?.work;
    let summary = match repository.clean_up_vm(
        &vm.name,
        others,
        CleanUpOptions::all(memory_bytes),
        meter,
        &context.cancel,
    ) {
        Err(Error::Busy { .. } | Error::SessionOpen { .. }) => {
            if pass == 0 {
                done.busy.push(vm.name.clone());
            }
            return Ok(0);
        }
        summary => summary?,
    };
    let moved = summary.moved;
    if moved > 0 {
        let options = PruneOptions { vm: Some(vm.uuid), memory_bytes, ..PruneOptions::default() };
        let pruned = repository.prune(&options, meter, &context.cancel)?;
        done.returned_bytes += prune::freed_bytes(&pruned);
    }
    let of_vm = |one: &&mut CleanUpSummary| one.vm == summary.vm;
    match done.vms.iter_mut().find(of_vm) {
        // For chunks without an answer or without space, the last pass counts.
        Some(first) => {
            (first.unanswered, first.refused, first.refused_bytes) = (0, 0, 0);
            first.add(&summary);
        }
        None => done.vms.push(summary),
    }
    Ok(moved)
}

/// Fields of the summary.
#[derive(Serialize)]
struct CleanupFields<'a> {
    vms: Vec<VmFields<'a>>,
    busy: &'a [String],
    #[serde(flatten)]
    all: &'a CleanUpSummary,
    read_bytes: u64,
    returned_bytes: u64,
    swept_bytes: u64,
}

#[derive(Serialize)]
struct VmFields<'a> {
    vm: Option<&'a str>,
    #[serde(flatten)]
    summary: &'a CleanUpSummary,
}

fn tell(context: &CommandContext<'_>, done: &CleanupResult) {
    let mut all = CleanUpSummary::default();
    done.vms.iter().for_each(|one| all.add(one));
    let vms = done.vms.iter().map(|summary| {
        let vm = summary.vm.as_ref().map(|vm| vm.name.as_str());
        VmFields { vm, summary }
    });
    let fields = CleanupFields {
        vms: vms.collect(),
        busy: &done.busy,
        all: &all,
        read_bytes: all.read_bytes,
        returned_bytes: done.returned_bytes,
        swept_bytes: done.swept_bytes,
    };
    context.output.summary(MeasuredFields::new("pds cleanup", fields), || {
        let mut text = format!(
            "asked about {} chunks: {} moved to popular ones, {} of them newly so; {} freed\n",
            all.asked,
            all.moved,
            all.stored_popular,
            human::bytes(all.freed_bytes),
        );
        if !done.busy.is_empty() {
            text.push_str(&format!(
                "skipped, being backed up: {}\n",
                done.busy.join(", ")
            ));
        }
        match all.refused {
            0 => {}
            refused => text.push_str(&format!(
                "{} ({}) of several VMs are still stored once per VM: --pds-fraction allows no more popular chunks\n",
                human::count(refused, "chunk"),
                human::bytes(all.refused_bytes),
            )),
        }
        match all.unanswered {
            0 => {}
            unanswered => text.push_str(&format!(
                "{unanswered} chunks had no answer; run the command again\n"
            )),
        }
        text
    });
}
