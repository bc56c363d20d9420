//! `copal job`: all VMs of all hosts, backed up together.

use super::{Context, close};
use crate::{
    arguments::{JobOptions, JobRun, JobStatus, SchemeWord},
    failure::{Failure, Outcome},
    human,
};
use copal_agent::{
    coordinate::{self, AgentReport, Begun, JobError, JobReport},
    scheme::Scheme,
};
use copal_backup::Repository;
use copal_node::Access;
use serde_json::{Value, json};

pub(super) fn run(context: &Context<'_>, words: &JobRun) -> Outcome<()> {
    let opened = context.open(Access::Read)?;
    let report = begin(context, opened.repository(), &words.options);
    match close(opened, report)? {
        Some(report) => tell(context, "job run", &report),
        None => Ok(()),
    }
}

/// Begins a job; its report, if this command waits for it.
fn begin(context: &Context<'_>, repository: &Repository, options: &JobOptions) -> Outcome<Option<JobReport>> {
    if options.scheme == SchemeWord::Synchronous {
        if context.arguments.common.wait.is_none() {
            return Err(Failure::usage(
                "--scheme synchronous takes --wait: between two stages this command waits for all hosts",
            ));
        }
        return in_stages(context, repository, options).map(Some);
    }
    let begun = coordinate::begin(repository, &options_of(options)).map_err(of_job)?;
    if context.arguments.common.wait.is_some() {
        return Ok(Some(follow(context, &begun)));
    }
    let agents: Vec<&str> = begun.agents().collect();
    let fields = json!({
        "command": "job run",
        "job": begun.job(),
        "k": begun.rounds(),
        "rounds": begun.rounds(),
        "agents": agents,
        "complete": false,
    });
    context.output.summary(fields, || {
        format!(
            "job {} has begun on {}: `copal job status --wait` says what it did\n",
            begun.job(),
            agents.join(", ")
        )
    });
    Ok(None)
}

/// Runs a job to its end in the process of its agents.
pub(super) fn once(context: &Context<'_>, repository: &Repository, options: &JobOptions) -> Outcome<()> {
    let report = match options.scheme {
        SchemeWord::Synchronous => in_stages(context, repository, options)?,
        SchemeWord::Collaborative | SchemeWord::DirtyBit => {
            let begun = coordinate::begin(repository, &options_of(options)).map_err(of_job)?;
            follow(context, &begun)
        }
    };
    tell(context, "agent", &report)
}

fn in_stages(context: &Context<'_>, repository: &Repository, options: &JobOptions) -> Outcome<JobReport> {
    let mut teller = Teller::default();
    let mut tell = |report: &JobReport| teller.hear(context, report);
    let ran = coordinate::run_in_stages(repository, &options_of(options), &context.cancel, &mut tell);
    ran.map_err(of_job)
}

pub(super) fn status(context: &Context<'_>, words: &JobStatus) -> Outcome<()> {
    let opened = context.open(Access::Read)?;
    let found = coordinate::find(opened.repository(), words.job.as_deref()).map_err(of_job);
    let report = found.map(|begun| match context.arguments.common.wait {
        Some(_) => follow(context, &begun),
        None => begun.look(),
    });
    tell(context, "job status", &close(opened, report)?)
}

fn options_of(words: &JobOptions) -> coordinate::JobOptions {
    coordinate::JobOptions {
        rounds: words.rounds.clone(),
        timeout: words.timeout,
        scheme: match words.scheme {
            SchemeWord::DirtyBit => Scheme::DirtyBit,
            SchemeWord::Synchronous => Scheme::Synchronous,
            SchemeWord::Collaborative => Scheme::Collaborative,
        },
    }
}

/// Tells how far a job is, once for each step.
#[derive(Default)]
struct Teller {
    told: String,
}

impl Teller {
    fn hear(&mut self, context: &Context<'_>, report: &JobReport) {
        let now = progress(report);
        if now != self.told {
            context.output.notice(&now);
            self.told = now;
        }
    }
}

/// Says how far a job is until it has ended.
fn follow(context: &Context<'_>, begun: &Begun) -> JobReport {
    let mut teller = Teller::default();
    begun.wait(&context.cancel, &mut |report| teller.hear(context, report))
}

/// Says what a job did. One that goes on is no failure.
fn tell(context: &Context<'_>, command: &str, report: &JobReport) -> Outcome<()> {
    let vms: Vec<Value> = report.agents.iter().flat_map(of_agent).collect();
    let goes_on = |vm: &Value| vm["state"] == "waiting" || vm["state"] == "running";
    let done = vms.iter().filter(|vm| vm["state"] == "done").count();
    let failed = vms
        .iter()
        .filter(|vm| vm["state"] != "done" && !goes_on(vm))
        .count();
    let lost = report.agents.iter().filter(|agent| agent.lost.is_some()).count();
    let sum = |name: &str| {
        vms.iter()
            .filter_map(|vm| vm["bytes"][name].as_u64())
            .sum::<u64>()
    };
    let unresolved: u64 = vms.iter().filter_map(|vm| vm["unresolved"].as_u64()).sum();
    let agents = report.agents.iter().map(|agent| {
        json!({
            "name": agent.name,
            "lost": agent.lost,
            "message_bytes": agent.status["message_bytes"],
            "dropped_answers": agent.status["dropped_answers"],
            "peak_memory_bytes": agent.status["peak_memory_bytes"],
            "seconds": agent.status["seconds"],
        })
    });
    let fields = json!({
        "command": command,
        "job": report.job,
        "k": report.rounds,
        "rounds": report.rounds,
        "seconds": report.took.as_secs_f64(),
        "complete": report.is_complete(),
        "unresolved": unresolved,
        "agents": agents.collect::<Vec<_>>(),
        "vms": vms,
    });
    context.output.summary(fields, || {
        let mut text = format!(
            "{done} of {} VMs in {} rounds, {}\n  read {} and again {}, popular {}, new {}, stored {}\n",
            vms.len(),
            report.rounds,
            human::seconds(report.took.as_secs_f64()),
            human::bytes(sum("read1")),
            human::bytes(sum("read2")),
            human::bytes(sum("pds_dup")),
            human::bytes(sum("new")),
            human::bytes(sum("stored")),
        );
        if unresolved > 0 {
            text.push_str(&format!(
                "  {unresolved} chunks nobody answered for in time: `copal pds cleanup` asks again\n"
            ));
        }
        text
    });
    let said = vms.iter().find_map(|vm| {
        let reason = vm["error"].as_str()?;
        Some(format!(
            ", such as {}: {reason}",
            vm["vm"].as_str().unwrap_or("one")
        ))
    });
    match (failed, lost) {
        (0, 0) => Ok(()),
        (failed, lost) => Err(Failure::plain(
            "job",
            format!(
                "{failed} VMs have no new snapshot{}{}; the others have",
                said.unwrap_or_default(),
                match lost {
                    0 => String::new(),
                    lost => format!(", and {lost} agents do not answer any more"),
                }
            ),
        )),
    }
}

/// Its VMs, each with its agent.
fn of_agent(agent: &AgentReport) -> Vec<Value> {
    let named = |vm: &Value| {
        let mut vm = vm.clone();
        vm["agent"] = agent.name.clone().into();
        if agent.lost.is_some() && vm["state"] != "done" {
            vm["state"] = "unknown".into();
        }
        vm
    };
    agent.vms().iter().map(named).collect()
}

fn progress(report: &JobReport) -> String {
    let vms = || report.agents.iter().flat_map(AgentReport::vms);
    let ended = vms()
        .filter(|vm| vm["state"] == "done" || vm["state"] == "failed")
        .count();
    let round = report
        .agents
        .iter()
        .filter_map(|agent| agent.status["round"].as_u64())
        .min();
    format!(
        "round {} of {}: {ended} of {} VMs have ended",
        (round.unwrap_or(0) + 1).min(u64::from(report.rounds)),
        report.rounds,
        vms().count()
    )
}

fn of_job(error: JobError) -> Failure {
    let sentence = error.to_string();
    match error {
        JobError::Repository(error) => error.into(),
        JobError::VmTwice { .. } => Failure::usage(sentence),
        _ => Failure::plain("job", sentence),
    }
}
