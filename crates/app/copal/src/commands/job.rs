//! `copal job`: one job that backs up all VMs of all hosts.

mod vms;

use super::{
    CommandContext,
    agent::local::{self, AgentAnswer, AgentQuestion},
    close,
};
use crate::{
    arguments::{JobOptions, JobRun, JobStatus, SchemeWord},
    asker,
    failure::{Failure, Outcome, exit},
    human,
    place::RepositoryPlace,
};
use copal_agent::{
    agent::{VmBytes, VmStatus},
    job::{
        coordinator::{self, JobError, StartedJob},
        job_report::{AgentReport, JobReport},
        settlement::{self, JobSettlement, SettleOptions},
    },
    plan::{missing_agent::MissingAgent, scheme::DedupScheme},
};
use copal_backup::Repository;
use copal_node::Access;
use serde_json::{Value, json};
use std::time::Duration;
use vms::VmFields;

/// Interval of progress queries to the agents of a local repository.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn run(context: &CommandContext<'_>, words: &JobRun) -> Outcome<()> {
    if matches!(RepositoryPlace::find(&context.arguments.common)?, RepositoryPlace::Store(_)) {
        return Err(Failure::usage(
            "the agents of a repository in a directory run its jobs themselves, since one process has it open: start `copal agent` with --once for one job, or with --every 24h for one a day; `copal job status` shows the progress",
        ));
    }
    let opened = context.open(Access::Read)?;
    let report = begin(context, opened.repository(), &words.options);
    match close(opened, report)? {
        Some(report) => tell(context, "job run", &report),
        None => Ok(()),
    }
}

/// Starts a job; returns its report if this command waits for it.
fn begin(
    context: &CommandContext<'_>,
    repository: &Repository,
    options: &JobOptions,
) -> Outcome<Option<JobReport>> {
    if options.scheme == SchemeWord::Synchronous {
        if context.arguments.common.wait.is_none() {
            return Err(Failure::usage(
                "--scheme synchronous takes --wait: between two stages this command waits for all hosts",
            ));
        }
        return in_stages(context, repository, options).map(Some);
    }
    let begun = coordinator::begin(repository, &options_of(options)).map_err(of_job)?;
    if context.arguments.common.wait.is_some() {
        let mut report = follow(context, repository, &begun)?;
        settle(context, repository, &mut report, options)?;
        return Ok(Some(report));
    }
    let agents: Vec<&str> = begun.agents().collect();
    let fields = json!({
        "command": "job run",
        "job": begun.job(),
        "k": begun.rounds(),
        "rounds": begun.rounds(),
        "agents": agents,
        "missing_agents": begun.missing(),
        "complete": false,
    });
    context.output.summary(fields, || {
        format!(
            "job {} has begun on {}: `copal job status --wait` shows its result\n",
            begun.job(),
            agents.join(", ")
        )
    });
    match begun.missing() {
        [] => Ok(None),
        missing => Err(Failure::plain(
            "job",
            format!("the job runs without some of its agents; missing: {}", missing_in_short(missing)),
        )),
    }
}

/// Runs a job to its end in the process of its agents.
pub(super) fn once(
    context: &CommandContext<'_>,
    repository: &Repository,
    options: &JobOptions,
) -> Outcome<()> {
    let report = match options.scheme {
        SchemeWord::Synchronous => in_stages(context, repository, options)?,
        SchemeWord::Collaborative | SchemeWord::DirtyBit => {
            let begun = coordinator::begin(repository, &options_of(options)).map_err(of_job)?;
            let mut report = follow(context, repository, &begun)?;
            settle(context, repository, &mut report, options)?;
            report
        }
    };
    tell(context, "agent", &report)
}

fn in_stages(
    context: &CommandContext<'_>,
    repository: &Repository,
    options: &JobOptions,
) -> Outcome<JobReport> {
    let mut reporter = JobReporter::default();
    let mut tell = |report: &JobReport| reporter.print(context, report);
    let ran = coordinator::run_in_stages(repository, &options_of(options), &context.cancel, &mut tell);
    ran.map_err(of_job)
}

/// Asks the process of the agents of a local repository, until the job has ended if this command waits for
/// it. `None`: there is no such process.
fn ask_local(context: &CommandContext<'_>, job: Option<&str>) -> Outcome<Option<JobReport>> {
    let mut reporter = JobReporter::default();
    let mut job = job.map(str::to_owned);
    loop {
        let Some(AgentAnswer::Job(report)) = local::ask(context, &AgentQuestion::Job(job))? else {
            return Ok(None);
        };
        if context.arguments.common.wait.is_none() || report.is_over() || context.cancel.is_cancelled() {
            return Ok(Some(*report));
        }
        reporter.print(context, &report);
        job = Some(report.job);
        context.pause(POLL_INTERVAL);
    }
}

pub(super) fn status(context: &CommandContext<'_>, words: &JobStatus) -> Outcome<()> {
    if let Some(report) = ask_local(context, words.job.as_deref())? {
        return tell(context, "job status", &report);
    }
    let opened = context.open(Access::Read)?;
    let repository = opened.repository();
    let found = coordinator::find(repository, words.job.as_deref()).map_err(of_job);
    let report = found.and_then(|begun| match context.arguments.common.wait {
        Some(_) => follow(context, repository, &begun),
        None => {
            let mut report = begun.look();
            begun.note_spoilers(repository, &mut report)?;
            Ok(report)
        }
    });
    tell(context, "job status", &close(opened, report)?)
}

fn options_of(words: &JobOptions) -> coordinator::JobOptions {
    coordinator::JobOptions {
        rounds: words.rounds.clone(),
        timeout: words.timeout,
        scheme: match words.scheme {
            SchemeWord::DirtyBit => DedupScheme::DirtyBit,
            SchemeWord::Synchronous => DedupScheme::Synchronous,
            SchemeWord::Collaborative => DedupScheme::Collaborative,
        },
    }
}

/// Prints the progress of a job, once for each step.
#[derive(Default)]
struct JobReporter {
    printed: String,
}

impl JobReporter {
    fn print(&mut self, context: &CommandContext<'_>, report: &JobReport) {
        let now = progress(report);
        if now != self.printed {
            context.output.notice(&now);
            self.printed = now;
        }
    }
}

/// Prints the progress of a job until it has ended and its popular packs are checked.
fn follow(context: &CommandContext<'_>, repository: &Repository, begun: &StartedJob) -> Outcome<JobReport> {
    let mut reporter = JobReporter::default();
    let mut report = begun.wait(&context.cancel, &mut |report| reporter.print(context, report));
    begun.wait_for_checks(repository, &mut report)?;
    Ok(report)
}

/// Settles the VMs that agents left, or counts the chunks that they store twice.
fn settle(
    context: &CommandContext<'_>,
    repository: &Repository,
    report: &mut JobReport,
    words: &JobOptions,
) -> Outcome<()> {
    let spool = asker::spool_directory()?;
    let name = asker::own_name();
    let options = SettleOptions {
        name: &name,
        spool: spool.path(),
        timeout: words.timeout,
        memory_bytes: context.memory()?.work,
    };
    let mut tell = |vm: &str, number: usize, all: usize| {
        context.output.notice(&format!("asking again about the chunks of {vm}, {number} of {all} VMs"));
    };
    settlement::settle(repository, report, &options, &context.cancel, &mut tell);
    Ok(())
}

/// The result of settling a job, in sentences.
fn settlement_text(settlement: &JobSettlement) -> String {
    let mut text = String::new();
    if settlement.moved > 0 {
        text.push_str(&format!(
            "  {} became popular during the job, and VMs gave up {} of their own: `copal delete` frees that\n",
            human::count(settlement.moved, "chunk"),
            human::bytes(settlement.freed_bytes),
        ));
    }
    if settlement.twice > 0 {
        text.push_str(&format!(
            "  {} ({}) are stored twice or more: `copal pds cleanup`, with a key that may delete, stores each once\n",
            human::count(settlement.twice, "chunk"),
            human::bytes(settlement.twice_bytes),
        ));
    }
    if !settlement.unsettled.is_empty() {
        let reason = settlement.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        text.push_str(&format!(
            "  chunks of {}{reason} may be stored twice: `copal pds cleanup`, with a key that may delete, stores each once\n",
            in_short(&settlement.unsettled, ", "),
        ));
    }
    if settlement.refused > 0 {
        text.push_str(&format!(
            "  {} of several VMs are still stored once per VM: --pds-fraction allows no more popular chunks\n",
            human::count(settlement.refused, "chunk"),
        ));
    }
    text
}

/// Prints the result of a job. A job in progress is no failure.
fn tell(context: &CommandContext<'_>, command: &str, report: &JobReport) -> Outcome<()> {
    let vms = VmFields::of_job(report);
    let backups = || vms.iter().filter_map(|vm| vm.backup);
    let settlement = JobSettlement::of(report);
    context.output.summary(fields(command, report, &vms, &settlement), || {
        let sum = |bytes: fn(&VmBytes) -> u64| backups().map(|backup| bytes(&backup.bytes)).sum::<u64>();
        let mut text = format!(
            "{} of {} VMs in {} rounds, {}\n  read {} and again {}, popular {}, new {}, stored {}\n",
            backups().count(),
            vms.len(),
            report.rounds,
            human::seconds(report.took.as_secs_f64()),
            human::bytes(sum(|bytes| bytes.read1)),
            human::bytes(sum(|bytes| bytes.read2)),
            human::bytes(sum(|bytes| bytes.pds_dup)),
            human::bytes(sum(|bytes| bytes.new)),
            human::bytes(sum(|bytes| bytes.stored)),
        );
        let doubtful = backups().filter(|backup| !backup.doubts.is_empty()).count();
        if doubtful > 0 {
            text.push_str(&format!(
                "  {} made despite a warning: `copal snapshots` marks it as doubtful\n",
                human::count(doubtful as u64, "snapshot")
            ));
        }
        let unresolved = unresolved(&vms);
        if unresolved > 0 {
            text.push_str(&format!(
                "  {unresolved} chunks had no answer in time: `copal pds cleanup` asks again\n"
            ));
        }
        text.push_str(&settlement_text(&settlement));
        text
    });
    verdict(report, &vms)
}

/// Fields of the summary.
fn fields(command: &str, report: &JobReport, vms: &[VmFields<'_>], settlement: &JobSettlement) -> Value {
    let agents = report.agents.iter().map(|agent| {
        let status = agent.status.as_ref();
        json!({
            "name": agent.name,
            "lost": agent.lost,
            "message_bytes": status.map(|status| status.message_bytes),
            "dropped_answers": status.map(|status| status.dropped_answers),
            "peak_memory_bytes": status.map(|status| status.peak_memory_bytes),
            "seconds": status.map(|status| status.seconds),
            "repairs": status.map(|status| &status.repairs),
        })
    });
    json!({
        "command": command,
        "job": report.job,
        "k": report.rounds,
        "rounds": report.rounds,
        "seconds": report.took.as_secs_f64(),
        "complete": report.is_complete(),
        "unresolved": unresolved(vms),
        "settled": {
            "chunks": settlement.moved,
            "bytes": settlement.moved_bytes,
            "stored_popular": settlement.stored_popular,
            "freed_bytes": settlement.freed_bytes,
        },
        "stored_twice": { "chunks": settlement.twice, "bytes": settlement.twice_bytes },
        "unsettled_vms": settlement.unsettled,
        "refused_by_fraction": settlement.refused,
        "agents": agents.collect::<Vec<_>>(),
        "missing_agents": report.missing,
        "spoilers": report.spoilers,
        "vms": vms,
    })
}

/// Chunks that were stored for one VM for lack of an answer in time.
fn unresolved(vms: &[VmFields<'_>]) -> u64 {
    vms.iter().filter_map(|vm| vm.backup).map(|backup| backup.unresolved).sum()
}

/// Exit code and sentence of a job: 20 if a host has stored wrong popular chunks, 1 if a VM has no snapshot.
fn verdict(report: &JobReport, vms: &[VmFields<'_>]) -> Outcome<()> {
    let failed: Vec<&VmFields<'_>> = vms.iter().filter(|vm| vm.has_failed()).collect();
    let lost = report.agents.iter().filter(|agent| agent.lost.is_some());
    let lost: Vec<&str> = lost.map(|agent| agent.name.as_str()).collect();
    if failed.is_empty() && lost.is_empty() && report.missing.is_empty() {
        return spoiled(report, None);
    }
    let mut sentence = format!("{} VMs have no new snapshot", failed.len());
    let named: Vec<String> = failed.iter().map(|vm| failed_vm(vm)).collect();
    if !named.is_empty() {
        sentence.push_str(&format!(": {}", in_short(&named, "; ")));
    }
    if !lost.is_empty() {
        sentence.push_str(&format!("; agents that do not answer any more: {}", in_short(&lost, ", ")));
    }
    if !report.missing.is_empty() {
        sentence.push_str(&format!("; missing: {}", missing_in_short(&report.missing)));
    }
    spoiled(report, Some(&sentence))?;
    Err(Failure::plain("job", format!("{sentence}; all others have")))
}

/// Reports hosts that stored wrong popular chunks: this outweighs a VM without a snapshot.
fn spoiled(report: &JobReport, also: Option<&str>) -> Outcome<()> {
    if report.spoilers.is_empty() {
        return Ok(());
    }
    let hosts: Vec<String> = report.spoilers.iter().map(ToString::to_string).collect();
    let also = also.map_or_else(String::new, |also| format!("; {also}"));
    Err(Failure::new(
        exit::DAMAGED,
        "damaged",
        format!(
            "popular packs of {} hold wrong chunks: its memory or disk is bad, or it is malicious; no VM of another host refers to them; remove the host from the fleet (`copal key rm`, `copal agent rm`), and check its own VMs with `copal check`{also}",
            hosts.join(", and of ")
        ),
    ))
}

/// A VM without a new snapshot, its agent, and the reason.
fn failed_vm(vm: &VmFields<'_>) -> String {
    match vm.failure {
        Some(failure) if !failure.error.is_empty() => {
            format!("{} of agent {}, {}", vm.vm, vm.agent, failure.error)
        }
        _ => format!("{} of agent {}", vm.vm, vm.agent),
    }
}

/// The first names of a long list; the JSON has all.
fn in_short<T: AsRef<str>>(names: &[T], between: &str) -> String {
    const SHOWN: usize = 20;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(between),
        more => format!("{}{between}and {more} more", shown.join(between)),
    }
}

fn missing_in_short(missing: &[MissingAgent]) -> String {
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    in_short(&missing, "; ")
}

fn progress(report: &JobReport) -> String {
    let vms = || report.agents.iter().flat_map(AgentReport::vms);
    let ended = vms().filter(|vm: &&VmStatus| vm.state.is_over()).count();
    let waiting: usize = report.agents.iter().map(|agent| agent.waiting.len()).sum();
    let round = report.agents.iter().filter_map(|agent| Some(agent.status.as_ref()?.round)).min();
    format!(
        "round {} of {}: {ended} of {} VMs have ended",
        (round.unwrap_or(0) + 1).min(u64::from(report.rounds)),
        report.rounds,
        vms().count() + waiting
    )
}

fn of_job(error: JobError) -> Failure {
    let sentence = error.to_string();
    match error {
        JobError::Repository(error) => error.into(),
        JobError::VmTwice { .. } | JobError::TooFewRounds { .. } | JobError::NoRounds { .. } => {
            Failure::usage(sentence)
        }
        _ => Failure::plain("job", sentence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_agent::{
        agent::{AgentStatus, VmBackup, VmProgress, VmState},
        job::job_report::SpoilingHost,
    };
    use copal_backup::SnapshotId;
    use std::time::Duration;

    fn vm(name: &str, state: VmState) -> VmStatus {
        VmStatus {
            vm: format!("vm of {name}"),
            progress: VmProgress { planned_bytes: 0, seconds: 0.0, refused: 0 },
            state,
            settled: None,
            settle_error: None,
        }
    }

    fn done() -> VmState {
        VmState::Done(Box::new(VmBackup {
            snapshot: SnapshotId([7; 16]),
            short_id: String::new(),
            uuid: String::new(),
            base: None,
            disks: Vec::new(),
            bytes: VmBytes::default(),
            chunks: 0,
            asked: 0,
            new_chunks: 0,
            unresolved: 0,
            warnings: Vec::new(),
            doubts: Vec::new(),
        }))
    }

    fn report(lost: Option<&str>, spoilers: Vec<SpoilingHost>) -> JobReport {
        let agent = |name: &str, state: VmState, lost: Option<&str>| AgentReport {
            name: name.into(),
            status: Some(AgentStatus { vms: vec![vm(name, state)], ..AgentStatus::default() }),
            waiting: Vec::new(),
            lost: lost.map(str::to_owned),
        };
        let second = if lost.is_some() { VmState::Waiting } else { done() };
        JobReport {
            job: "1".into(),
            rounds: 1,
            agents: vec![agent("h1", done(), None), agent("h2", second, lost)],
            missing: Vec::new(),
            spoilers,
            took: Duration::ZERO,
        }
    }

    fn verdict_of(report: &JobReport) -> Result<(), (u8, String)> {
        verdict(report, &VmFields::of_job(report)).map_err(|failure| (failure.exit_code, failure.sentence))
    }

    #[test]
    fn a_job_ends_with_the_code_of_the_worst_that_happened() {
        let spoiler =
            || vec![SpoilingHost { agent: Some("h2".into()), key: Some("5c1d5f2b".into()), packs: 3 }];
        assert_eq!(verdict_of(&report(None, Vec::new())), Ok(()));
        let (code, sentence) = verdict_of(&report(Some("it is gone"), Vec::new())).unwrap_err();
        assert_eq!(code, 1);
        assert!(sentence.contains("vm of h2") && sentence.contains("h2"), "{sentence}");
        for lost in [None, Some("it is gone")] {
            let (code, sentence) = verdict_of(&report(lost, spoiler())).unwrap_err();
            assert_eq!(code, 20);
            let host = "the host with the key 5c1d5f2b (agent h2)";
            assert!(sentence.contains(host), "{sentence}");
            assert_eq!(sentence.contains("vm of h2"), lost.is_some(), "{sentence}");
        }
    }
}
