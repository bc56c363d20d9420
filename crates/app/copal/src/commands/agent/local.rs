//! Queries to the agents of a local repository. Their process has the store open, so no other command can
//! open it. It answers over a socket beside the store: the list of agents, the progress of a job, and counts
//! of popular chunks.
//!
//! A query and its answer are one line of JSON each. The socket is accessible to this user alone.
//!
//! Not here: jobs in a cluster (`commands::job`).

use super::super::CommandContext;
use crate::{
    failure::{Failure, Outcome},
    pins,
    place::RepositoryPlace,
};
use copal_agent::job::{
    coordinator::{self, JobError},
    job_report::JobReport,
};
use copal_backup::{HolderInfo, Repository, popular::PopularStatus};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions, Permissions},
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            fs::{OpenOptionsExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

const SOCKET: &str = "agents.sock";
/// Longest query.
const MOST_ASKED_BYTES: u64 = 4096;
/// Longest answer.
const MOST_ANSWERED_BYTES: u64 = 64 << 20;
/// Longest pause within a query, or while an answer is read.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Poll interval of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A query.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AgentQuestion {
    /// The list of agents.
    Agents,
    /// The progress of this job, or of the newest.
    Job(Option<String>),
    /// Counts of popular chunks.
    Popular,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AgentAnswer {
    /// Name, address, and milliseconds since the last heartbeat, of each agent.
    Agents(Vec<(String, String, u64)>),
    Job(Box<JobReport>),
    /// Fraction in millionths, packs, unchecked, condemned and spoiled packs, frames, bytes.
    Popular([u64; 7]),
    Failed(String),
}

/// The thread that answers queries; it ends when this is dropped.
pub(super) struct AnswerThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
}

impl Drop for AnswerThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A directory by its descriptor, so that its path may be long: a socket's name has at most 107 bytes.
struct SocketDirectory(File);

impl SocketDirectory {
    fn of(place: &RepositoryPlace) -> Option<SocketDirectory> {
        let directory = pins::store_directory(place)?;
        let flags = (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC).bits();
        let opened = OpenOptions::new().read(true).custom_flags(flags as i32).open(directory);
        opened.ok().map(SocketDirectory)
    }

    fn socket(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string()).join(SOCKET)
    }
}

/// Answers queries about the agents of this process. `None`: the repository is in no directory, or no socket
/// can be created there.
pub(super) fn answer(place: &RepositoryPlace, repository: &Arc<Repository>) -> Option<AnswerThread> {
    let directory = SocketDirectory::of(place)?;
    let named = pins::store_directory(place)?.join(SOCKET);
    // This process has the store to itself: an existing socket belongs to a dead process.
    let _ = std::fs::remove_file(&named);
    let listener = UnixListener::bind(directory.socket()).inspect_err(|error| {
        tracing::warn!(%error, "no socket beside the store: `copal agent ls` and `copal job status` wait for these agents to end");
    });
    let listener = listener.ok()?;
    let _ = std::fs::set_permissions(&named, Permissions::from_mode(0o600));
    listener.set_nonblocking(true).ok()?;
    let stop = Arc::new(AtomicBool::new(false));
    let (stops, repository) = (Arc::clone(&stop), Arc::clone(repository));
    let thread = std::thread::Builder::new().name("agent-answers".to_owned()).spawn(move || {
        while !stops.load(Ordering::Acquire) {
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = serve(&stream, &repository) {
                        tracing::debug!(%error, "query not answered");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::park_timeout(POLL_INTERVAL)
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection accepted");
                    std::thread::park_timeout(POLL_INTERVAL);
                }
            }
        }
    });
    Some(AnswerThread { stop, thread: Some(thread.ok()?), socket: named })
}

fn serve(mut stream: &UnixStream, repository: &Repository) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut asked = String::new();
    BufReader::new(stream.take(MOST_ASKED_BYTES)).read_line(&mut asked)?;
    let answer = match serde_json::from_str(&asked) {
        Ok(question) => answer_to(&question, repository),
        Err(error) => AgentAnswer::Failed(format!(
            "the agents do not understand the query; use the same release of copal as they: {error}"
        )),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn answer_to(question: &AgentQuestion, repository: &Repository) -> AgentAnswer {
    let answered = match question {
        AgentQuestion::Agents => repository.holders().map(agents_of).map_err(|error| error.to_string()),
        AgentQuestion::Job(job) => report_of(repository, job.as_deref()).map_err(|error| error.to_string()),
        AgentQuestion::Popular => {
            repository.popular_status().map(popular_of).map_err(|error| error.to_string())
        }
    };
    answered.unwrap_or_else(AgentAnswer::Failed)
}

fn report_of(repository: &Repository, job: Option<&str>) -> Result<AgentAnswer, JobError> {
    let begun = coordinator::find(repository, job)?;
    let mut report = begun.look();
    begun.note_spoilers(repository, &mut report)?;
    Ok(AgentAnswer::Job(Box::new(report)))
}

fn agents_of(holders: Vec<HolderInfo>) -> AgentAnswer {
    let agents = holders.into_iter().filter(|holder| !holder.address.is_empty());
    AgentAnswer::Agents(agents.map(|holder| (holder.name, holder.address, holder.beat_age_ms)).collect())
}

fn popular_of(status: PopularStatus) -> AgentAnswer {
    AgentAnswer::Popular([
        status.fraction_millionths.into(),
        status.packs,
        status.unchecked_packs,
        status.condemned_packs,
        status.spoiled_packs,
        status.frames,
        status.bytes,
    ])
}

/// Queries the process of the agents, if the repository is in a directory and a process has it open. `None`:
/// there is no such process, and the repository may be opened. Blocks for at most a minute.
/// # Errors
/// Errors that the agents report.
pub(crate) fn ask(context: &CommandContext<'_>, question: &AgentQuestion) -> Outcome<Option<AgentAnswer>> {
    let place = RepositoryPlace::find(&context.arguments.common)?;
    let Some(directory) = SocketDirectory::of(&place) else {
        return Ok(None);
    };
    let Ok(stream) = UnixStream::connect(directory.socket()) else {
        return Ok(None);
    };
    let failed = |error: std::io::Error| {
        Failure::plain(
            "agent",
            format!("the agents of this repository do not answer: {error}; try again in a moment"),
        )
    };
    match exchange(&stream, question).map_err(failed)? {
        AgentAnswer::Failed(sentence) => Err(Failure::plain("agent", sentence)),
        answer => Ok(Some(answer)),
    }
}

fn exchange(mut stream: &UnixStream, question: &AgentQuestion) -> std::io::Result<AgentAnswer> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MOST_ANSWERED_BYTES)).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
