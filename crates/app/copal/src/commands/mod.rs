//! One file per command: what was typed becomes a request, the answer becomes words.

mod accept;
mod agent;

mod backup;
mod bitmap;
mod check;
mod cluster;
mod export;
mod fields;
mod forget;
mod hold;
mod init;
mod job;
mod key;
mod kv;
mod list;
mod pds;
mod prune;
mod repair_store;
mod restore;
mod stats;
mod vm;

use crate::{
    arguments::{AgentWord, Arguments, Command, Common, JobWord, PdsWord, Repair, SessionsWord, VmWord},
    failure::{Failure, Outcome, exit},
    holder_text, human,
    meter::Meter,
    output::{Output, write_out},
    pins::Pins,
    place::Place,
    repository::{self, Opened},
    signals,
};
use clap::CommandFactory;
use copal_backup::{CancelFlag, LostFrame, Snapshot};
use copal_node::{Access, MemoryShares, Patience};
use serde_json::json;
use std::time::Duration;

/// How long a writer waits at least for exports, which keep a store while they read.
const DOORS: Duration = Duration::from_secs(10);

/// What a command that works on a repository gets.
pub(crate) struct Context<'a> {
    arguments: &'a Arguments,
    output: &'a Output,
    cancel: CancelFlag,
    /// How long to wait for a store that somebody else has.
    wait: Duration,
}

/// Runs the command that was typed.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Outcome<()> {
    match &arguments.command {
        Command::Version => {
            version(output);
            return Ok(());
        }
        Command::Completions(completions) => {
            let mut script = Vec::new();
            clap_complete::generate(completions.shell, &mut Arguments::command(), "copal", &mut script);
            write_out(&String::from_utf8_lossy(&script));
            return Ok(());
        }
        Command::ResumeGuest(words) => {
            copal_live::resume_guest(&words.socket, &words.mark)?;
            return Ok(());
        }
        Command::ThawGuest(words) => {
            copal_live::thaw_guest(&words.socket)?;
            return Ok(());
        }
        _ => {}
    }
    let wait = match &arguments.command {
        // There it says for what, not how long.
        Command::Status(_) => Duration::ZERO,
        _ => arguments.common.wait_for_store()?,
    };
    let context = Context { arguments, output, cancel: signals::catch()?, wait };
    let result = match &arguments.command {
        Command::Init(init) => init::run(&context, init),
        Command::Backup(backup) => backup::run(&context, backup),
        Command::Snapshots(snapshots) => list::snapshots(&context, snapshots),
        Command::Ls(ls) => list::ls(&context, ls),
        Command::Restore(restore) => restore::run(&context, restore),
        Command::Nbd(words) => export::nbd(&context, words),
        Command::Mount(words) => export::mount(&context, words),
        Command::Verify(verify) => check::verify(&context, verify),
        Command::Check(check) => check::check(&context, check),
        Command::Forget(forget) => forget::run(&context, forget),
        Command::Hold(hold) => hold::run(&context, hold),
        Command::Accept(accept) => accept::run(&context, accept),
        Command::Delete(delete) => prune::delete(&context, delete),
        Command::Prune(prune) => prune::prune(&context, prune),
        Command::Stats(words) => match &words.vm {
            Some(name) => vm::stats(&context, name),
            None => stats::stats(&context),
        },
        Command::Agent(words) => match &words.word {
            Some(AgentWord::Ls) => agent::list(&context),
            Some(AgentWord::Rm { name }) => agent::retire(&context, name),
            None => agent::run(&context, words),
        },
        Command::Job(JobWord::Run(words)) => job::run(&context, words),
        Command::Job(JobWord::Status(words)) => job::status(&context, words),
        Command::Pds(PdsWord::Status) => pds::status(&context),
        Command::Pds(PdsWord::Cleanup(words)) => pds::cleanup::run(&context, words),
        Command::Pds(PdsWord::Prune(words)) => pds::prune::run(&context, words),
        Command::Sessions(SessionsWord::Ls) => vm::sessions(&context),
        Command::Sessions(SessionsWord::Fence(words)) => vm::fence(&context, words),
        Command::Bitmap(words) => bitmap::run(&context, words),
        Command::Key(words) => key::run(&context, words),
        Command::Vm(VmWord::Ls) => vm::list(&context),
        Command::Vm(VmWord::Rm(words)) => vm::remove(&context, words),
        Command::Master(words) => cluster::master(&context, words),
        Command::Data(words) => cluster::data(&context, words),
        Command::Serve(words) => cluster::serve(&context, words),
        Command::Status(words) => cluster::status(&context, words),
        Command::Fs(words) => cluster::fs(&context, words),
        Command::Client(words) => cluster::client(&context, words),
        Command::Node(words) => cluster::node(&context, words),
        Command::Disk(words) => cluster::disk(&context, words),
        Command::Group(words) => cluster::group(&context, words),
        Command::Rebalance(words) => cluster::rebalance(&context, words),
        Command::Events(words) => cluster::events(&context, words),
        Command::Doctor(words) => cluster::doctor(&context, words),
        Command::Meta(words) => cluster::meta(&context, words),
        Command::Kv(words) => kv::run(&context, words),
        Command::Repair(Repair::Index) => stats::repair_index(&context),
        Command::Repair(Repair::Leak(words)) => vm::repair_leak(&context, words),
        Command::Repair(Repair::Store(words)) => repair_store::run(&context, words),
        Command::Version | Command::Completions(_) | Command::ResumeGuest(_) | Command::ThawGuest(_) => {
            Ok(())
        }
    };
    result.map_err(|failure| failure.or_interrupted(context.cancel.is_cancelled()))
}

impl Context<'_> {
    /// A writer waits a moment for exports, which keep a store only while they read from it.
    fn open(&self, access: Access) -> Outcome<Opened> {
        match access {
            Access::Read => repository::open(&self.arguments.common, access, &self.patience()),
            Access::Write => {
                let pins = Pins::look(&Place::find(&self.arguments.common)?);
                self.open_behind(access, &pins)
            }
        }
    }

    /// Opens the repository beside exports that may be reading from it: they close an idle store within moments.
    fn open_behind(&self, access: Access, pins: &Pins) -> Outcome<Opened> {
        let limit = match !pins.may_be_reading() || access == Access::Read {
            true => self.wait,
            false => self.wait.max(DOORS),
        };
        repository::open(&self.arguments.common, access, &self.patience_of(limit))
    }

    /// Opens the repository once more, for what a command does behind its own work: that is not recorded.
    fn open_again(&self, access: Access) -> Outcome<Opened> {
        let common = Common { record_gets: None, ..self.arguments.common.clone() };
        repository::open(&common, access, &self.patience())
    }

    /// How long this command waits for a store that somebody else has open: as long as `--wait` says; Ctrl-C
    /// ends it.
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
                let who = match holder_text::as_text(holders) {
                    who if who.is_empty() => "another process".to_owned(),
                    who => who,
                };
                output.notice(&format!(
                    "waiting up to {} for {who} to end, which is using {}",
                    human::age(limit.as_secs()),
                    path.display()
                ));
            },
        )
    }

    /// Damaged frames that a command met while it had the store open for reading leave the index, so that the
    /// next backup stores their chunks anew. Where the store cannot be written, `backup --full` finds them
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
            self.output.notice(&format!(
                "the store does not remember the damage, back up with --full: {}",
                failure.sentence
            ));
        }
    }

    /// Refuses a command on a repository in a cluster.
    fn needs_store(&self, command: &str, why: &str) -> Outcome<()> {
        match Place::find(&self.arguments.common)? {
            Place::Store(_) => Ok(()),
            Place::Cluster(_) => Err(Failure::new(
                exit::DENIED,
                "denied",
                format!("`copal {command}` does not work on copal://: {why}; nothing was changed"),
            )),
        }
    }

    /// Whether the process was told to end.
    fn is_ended(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the process is told to end, which is looked for every `look`.
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

    fn meter(&self) -> Meter {
        Meter::start(*self.output, &self.cancel)
    }
}

/// Lets a moment pass; a signal may end it early.
fn rest(moment: Duration) {
    std::thread::park_timeout(moment);
}

/// Closes the store after an operation, whatever became of it; its own failure comes first.
fn close<T>(opened: Opened, outcome: Outcome<T>) -> Outcome<T> {
    let closed = opened.close();
    let value = outcome?;
    closed?;
    Ok(value)
}

/// Several snapshots to be taken away, as [`resolve_each`].
fn resolve_all(opened: &Opened, names: &[String], vm: Option<&str>) -> Outcome<Vec<Snapshot>> {
    if names.iter().any(|name| name == "latest") {
        return Err(Failure::usage("give ids here: `latest` is another snapshot as soon as one is gone"));
    }
    resolve_each(opened, names, vm)
}

/// Several snapshots named by people, each once, in the order given; damaged ones too.
fn resolve_each(opened: &Opened, names: &[String], vm: Option<&str>) -> Outcome<Vec<Snapshot>> {
    let mut found: Vec<Snapshot> = Vec::new();
    for name in names {
        let snapshot = opened.repository().resolve_damaged(name, vm)?;
        if found.iter().all(|other| other.id != snapshot.id) {
            found.push(snapshot);
        }
    }
    Ok(found)
}

fn version(output: &Output) {
    let version = env!("CARGO_PKG_VERSION");
    output.answer(json!({ "command": "version", "version": version }), || format!("copal {version}\n"));
}
