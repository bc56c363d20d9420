//! One file per command: arguments become a request, the reply becomes output.

mod accept;
mod agent;

mod backup;
mod bitmap;
mod check;
mod cluster;
mod copy;
mod descriptors;
mod device;
mod device_profile;
mod dump_lines;
mod export;
mod fields;
mod forget;
mod hold;
mod init;
mod inspect;
mod job;
mod key;
mod kv;
mod list;
mod new_store;
mod pds;
mod prune;
mod repair_store;
mod restore;
mod stats;
mod store_probe;
mod vm;

use crate::{
    arguments::{
        AgentCommand, CommonArgs, CopalArgs, CopalCommand, DeviceCommand, InspectCommand, JobCommand,
        PdsCommand, RepairCommand, SessionsCommand, StoreCommand, VmCommand,
    },
    failure::{Failure, Outcome},
    holder_text, human,
    meter::ProgressMeter,
    output::{CommandOutput, write_out},
    pins::ExportPins,
    place::{RepositoryPlace, remote},
    repository::{self, OpenRepository, RemoteView},
    signals,
};
use clap::CommandFactory;
use copal_backup::{CancelFlag, LostFrame, Snapshot};
use copal_node::{Access, MemoryShares, Patience};
use serde_json::json;
use std::time::Duration;

/// Least time that a writer waits for exports, which lock a store while they read.
const EXPORT_WAIT: Duration = Duration::from_secs(10);

/// Arguments and output of a command on a repository.
pub(crate) struct CommandContext<'a> {
    arguments: &'a CopalArgs,
    output: &'a CommandOutput,
    cancel: CancelFlag,
    /// Longest wait for a store in use.
    wait: Duration,
}

/// Runs the command of the arguments.
pub(crate) fn run(arguments: &CopalArgs, output: &CommandOutput) -> Outcome<()> {
    match &arguments.command {
        CopalCommand::Version => {
            version(output);
            return Ok(());
        }
        CopalCommand::Completions(completions) => {
            let mut script = Vec::new();
            clap_complete::generate(completions.shell, &mut CopalArgs::command(), "copal", &mut script);
            write_out(&String::from_utf8_lossy(&script));
            return Ok(());
        }
        CopalCommand::ResumeGuest(words) => {
            copal_live::resume_guest(&words.socket, &words.mark)?;
            return Ok(());
        }
        CopalCommand::ThawGuest(words) => {
            copal_live::thaw_guest(&words.socket)?;
            return Ok(());
        }
        _ => {}
    }
    remote::check_command(arguments)?;
    let wait = match &arguments.command {
        // There, `--wait` names a state of the cluster instead of a time.
        CopalCommand::Status(_) => Duration::ZERO,
        _ => arguments.common.wait_for_store()?,
    };
    let context = CommandContext { arguments, output, cancel: signals::catch()?, wait };
    let result = match &arguments.command {
        CopalCommand::Init(init) => init::run(&context, init),
        CopalCommand::Backup(backup) => backup::run(&context, backup),
        CopalCommand::Snapshots(snapshots) => list::snapshots(&context, snapshots),
        CopalCommand::Ls(ls) => list::ls(&context, ls),
        CopalCommand::Restore(restore) => restore::run(&context, restore),
        CopalCommand::Nbd(words) => export::nbd(&context, words),
        CopalCommand::Mount(words) => export::mount(&context, words),
        CopalCommand::Copy(copy) => copy::run(&context, copy),
        CopalCommand::Verify(verify) => check::verify(&context, verify),
        CopalCommand::Check(check) => check::check(&context, check),
        CopalCommand::Forget(forget) => forget::run(&context, forget),
        CopalCommand::Hold(hold) => hold::run(&context, hold),
        CopalCommand::Accept(accept) => accept::run(&context, accept),
        CopalCommand::Delete(delete) => prune::delete(&context, delete),
        CopalCommand::Prune(prune) => prune::prune(&context, prune),
        CopalCommand::Stats(words) => match &words.vm {
            Some(name) => vm::stats(&context, name),
            None => stats::stats(&context),
        },
        CopalCommand::Agent(words) => match &words.word {
            Some(AgentCommand::Ls) => agent::list(&context),
            Some(AgentCommand::Rm { name }) => agent::retire(&context, name),
            None => agent::run(&context, words),
        },
        CopalCommand::Job(JobCommand::Run(words)) => job::run(&context, words),
        CopalCommand::Job(JobCommand::Status(words)) => job::status(&context, words),
        CopalCommand::Pds(PdsCommand::Status) => pds::status(&context),
        CopalCommand::Pds(PdsCommand::Cleanup(words)) => pds::cleanup::run(&context, words),
        CopalCommand::Pds(PdsCommand::Prune(words)) => pds::prune::run(&context, words),
        CopalCommand::Sessions(SessionsCommand::Ls) => vm::sessions(&context),
        CopalCommand::Sessions(SessionsCommand::Fence(words)) => vm::fence(&context, words),
        CopalCommand::Bitmap(words) => bitmap::run(&context, words),
        CopalCommand::Key(words) => key::run(&context, words),
        CopalCommand::Vm(VmCommand::Ls) => vm::list(&context),
        CopalCommand::Vm(VmCommand::Rm(words)) => vm::remove(&context, words),
        CopalCommand::Master(words) => cluster::master(&context, words),
        CopalCommand::Data(words) => cluster::data(&context, words),
        CopalCommand::Serve(words) => cluster::serve(&context, words),
        CopalCommand::Status(words) => cluster::status(&context, words),
        CopalCommand::Fs(words) => cluster::fs(&context, words),
        CopalCommand::Client(words) => cluster::client(&context, words),
        CopalCommand::Node(words) => cluster::node(&context, words),
        CopalCommand::Disk(words) => cluster::disk(&context, words),
        CopalCommand::Group(words) => cluster::group(&context, words),
        CopalCommand::Rebalance(words) => cluster::rebalance(&context, words),
        CopalCommand::Events(words) => cluster::events(&context, words),
        CopalCommand::Doctor(words) => cluster::doctor(&context, words),
        CopalCommand::Meta(words) => cluster::meta(&context, words),
        CopalCommand::Device(DeviceCommand::Probe(words)) => device::probe(&context, words),
        CopalCommand::Device(DeviceCommand::Profile(words)) => device_profile::run(&context, words),
        CopalCommand::Device(DeviceCommand::Fsck(words)) => {
            inspect::run(&context, InspectCommand::Fsck(words))
        }
        CopalCommand::Device(DeviceCommand::Df(words)) => inspect::run(&context, InspectCommand::Df(words)),
        CopalCommand::Device(DeviceCommand::Dump(words)) => {
            inspect::run(&context, InspectCommand::Dump(words))
        }
        CopalCommand::Device(DeviceCommand::Scrub(words)) => {
            inspect::run(&context, InspectCommand::Scrub(words))
        }
        CopalCommand::Store(StoreCommand::Probe) => store_probe::run(&context),
        CopalCommand::Kv(words) => kv::run(&context, words),
        CopalCommand::Repair(RepairCommand::Index) => stats::repair_index(&context),
        CopalCommand::Repair(RepairCommand::Leak(words)) => vm::repair_leak(&context, words),
        CopalCommand::Repair(RepairCommand::Store(words)) => repair_store::run(&context, words),
        CopalCommand::Version
        | CopalCommand::Completions(_)
        | CopalCommand::ResumeGuest(_)
        | CopalCommand::ThawGuest(_) => Ok(()),
    };
    result.map_err(|failure| failure.or_interrupted(context.cancel.is_cancelled()))
}

impl CommandContext<'_> {
    /// Opens the repository. A writer waits at least a moment for exports, which lock a store only while they
    /// read from it.
    fn open(&self, access: Access) -> Outcome<OpenRepository> {
        self.open_for(access, RemoteView::Current)
    }

    /// Like [`CommandContext::open`]; in an object store with this view.
    fn open_for(&self, access: Access, view: RemoteView) -> Outcome<OpenRepository> {
        match access {
            Access::Read => repository::open(&self.arguments.common, access, view, &self.patience()),
            Access::Write => {
                let pins = ExportPins::look(&RepositoryPlace::find(&self.arguments.common)?);
                self.open_behind(access, view, &pins)
            }
        }
    }

    /// Opens the repository beside exports that may be reading from it: they close an idle store within
    /// moments.
    fn open_behind(&self, access: Access, view: RemoteView, pins: &ExportPins) -> Outcome<OpenRepository> {
        let limit = match !pins.may_be_reading() || access == Access::Read {
            true => self.wait,
            false => self.wait.max(EXPORT_WAIT),
        };
        repository::open(&self.arguments.common, access, view, &self.patience_of(limit))
    }

    /// Opens the repository again for work after the command's own, without recording look-ups.
    fn open_again(&self, access: Access) -> Outcome<OpenRepository> {
        let common = CommonArgs { record_gets: None, ..self.arguments.common.clone() };
        repository::open(&common, access, RemoteView::Current, &self.patience())
    }

    /// Longest wait for a store that another process has open, as given by `--wait`; Ctrl-C ends it.
    fn patience(&self) -> Patience {
        self.patience_of(self.wait)
    }

    fn patience_of(&self, limit: Duration) -> Patience {
        let cancel = self.cancel.clone();
        let output = *self.output;
        Patience::new(
            limit,
            move || cancel.is_cancelled(),
            move |path, holders| {
                let holder = match holder_text::as_text(holders) {
                    text if text.is_empty() => "another process".to_owned(),
                    text => text,
                };
                output.notice(&format!(
                    "waiting up to {} for {holder} to end, which is using {}",
                    human::age(limit.as_secs()),
                    path.display()
                ));
            },
        )
    }

    /// Removes damaged frames, which the command found with read access only, from the index, so that the
    /// next backup stores their chunks again. If the store cannot be written, `backup --full` finds them
    /// again.
    fn note_lost(&self, lost: &[LostFrame]) {
        if lost.is_empty() {
            return;
        }
        let noted = self.open_again(Access::Write).and_then(|opened| {
            let noted = opened.repository().note_lost(lost).map_err(Failure::from);
            close(opened, noted)
        });
        if let Err(failure) = noted {
            self.output
                .notice(&format!("the damage was not recorded, back up with --full: {}", failure.sentence));
        }
    }

    /// Whether the process was asked to end.
    fn is_ended(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the process is asked to end; polls at the interval `look`.
    fn wait_for_end(&self, look: Duration) {
        while !self.is_ended() {
            rest(look);
        }
    }

    /// Waits a moment.
    fn pause(&self, moment: Duration) {
        rest(moment);
    }

    fn memory(&self) -> Outcome<MemoryShares> {
        Ok(MemoryShares::of(self.arguments.common.memory_bytes())?)
    }

    fn meter(&self) -> ProgressMeter {
        ProgressMeter::start(*self.output, &self.cancel)
    }
}

/// Sleeps for a moment; a signal may end it early.
fn rest(moment: Duration) {
    std::thread::park_timeout(moment);
}

/// Closes the store after an operation, successful or not; the operation's failure comes first.
fn close<T>(opened: OpenRepository, outcome: Outcome<T>) -> Outcome<T> {
    let closed = opened.close();
    let value = outcome?;
    closed?;
    Ok(value)
}

/// Resolves snapshots that are to be removed, like [`resolve_each`].
fn resolve_all(opened: &OpenRepository, names: &[String], vm: Option<&str>) -> Outcome<Vec<Snapshot>> {
    if names.iter().any(|name| name == "latest") {
        return Err(Failure::usage("give ids here: after a removal `latest` names another snapshot"));
    }
    resolve_each(opened, names, vm)
}

/// Resolves snapshots by name, each once, in the given order; damaged ones too.
fn resolve_each(opened: &OpenRepository, names: &[String], vm: Option<&str>) -> Outcome<Vec<Snapshot>> {
    let mut found: Vec<Snapshot> = Vec::new();
    for name in names {
        let snapshot = opened.repository().resolve_damaged(name, vm)?;
        if found.iter().all(|other| other.id != snapshot.id) {
            found.push(snapshot);
        }
    }
    Ok(found)
}

fn version(output: &CommandOutput) {
    let version = env!("CARGO_PKG_VERSION");
    output.answer(json!({ "command": "version", "version": version }), || format!("copal {version}\n"));
}
