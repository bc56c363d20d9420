//! `copal serve --dev`: a cluster of processes on loopback.

use super::CommandContext;
use crate::{
    arguments::ServeArgs,
    failure::{Failure, Outcome, exit},
    place::PROFILE,
};
use clap::ValueEnum;
use copal_client::{ClientProfile, administration::requests};
use serde_json::{Value, json};
use std::{
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// Longest time for a process to become ready.
const TO_START: Duration = Duration::from_secs(60);
/// Longest time for a process to end after the request; then it is killed.
const TO_END: Duration = Duration::from_secs(8);
/// Poll interval of ended processes.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

struct ChildProcess {
    name: String,
    directory: PathBuf,
    command: String,
    address: String,
    http: Option<String>,
    child: Child,
    has_ended: bool,
}

pub(crate) fn run(context: &CommandContext<'_>, words: &ServeArgs) -> Outcome<()> {
    if words.masters > 1 && words.meta.is_none() {
        return Err(Failure::usage(
            "several masters share a database; give --meta mysql://USER@HOST:PORT/DATABASE, or one master",
        ));
    }
    let _lock = super::take(&words.dir)?;
    let program = std::env::current_exe().map_err(super::start_failure)?;
    let serving = ServeRun { context, words, program };
    let mut processes = Vec::new();
    let started = serving.start_all(&mut processes);
    let ended = started.and_then(|()| serving.watch(&mut processes));
    stop_all(&mut processes);
    ended
}

struct ServeRun<'a> {
    context: &'a CommandContext<'a>,
    words: &'a ServeArgs,
    program: PathBuf,
}

impl ServeRun<'_> {
    fn start_all(&self, processes: &mut Vec<ChildProcess>) -> Outcome<()> {
        let dir = self.words.dir.canonicalize().map_err(super::start_failure)?;
        let profile = dir.join("client.json");
        for number in 1..=self.words.masters {
            let master = self.start_master(&dir, number)?;
            self.tell(&master);
            processes.push(master);
        }
        let url = match processes.first() {
            Some(first) => format!("copal://{}/vms{PROFILE}{}", first.address, profile.display()),
            None => return Ok(()),
        };
        for number in 1..=self.words.servers {
            if self.context.is_ended() {
                return Ok(());
            }
            let server = self.start_server(&dir, &profile, number)?;
            self.tell(&server);
            processes.push(server);
        }
        let shown: Vec<Value> = processes.iter().map(as_json).collect();
        let output = self.context.output;
        output.message(
            "ready",
            json!({ "url": url, "profile": profile.display().to_string(), "processes": shown }),
        );
        output.line(&format!("ready: export COPAL_CLUSTER={}", profile.display()));
        output.line(&format!("address for repositories: {url}"));
        Ok(())
    }

    fn start_master(&self, dir: &Path, number: u16) -> Outcome<ChildProcess> {
        const FURTHER_PORTS: u16 = 70;
        let (name, port) = match number {
            1 => ("master".to_owned(), self.words.port),
            _ => (format!("master{number}"), self.words.port + FURTHER_PORTS + number - 2),
        };
        let directory = dir.join(&name);
        let is_new = !directory.join("master.json").exists();
        let address = format!("127.0.0.1:{port}");
        let mut typed: Vec<OsString> = vec!["master".into(), "--dir".into(), directory.clone().into()];
        let again = typed.clone();
        if let Some(after) = self.words.times.permanent_after {
            typed.extend(["--permanent-after".into(), format!("{}s", after.as_secs()).into()]);
        }
        let mut token = None;
        if is_new {
            typed.extend(["--listen".into(), address.into()]);
            if let Some(meta) = &self.words.meta {
                typed.extend(["--meta".into(), meta.into()]);
            }
            if let Some(file) = &self.words.meta_password_file {
                typed.extend(["--meta-password-file".into(), file.into()]);
            }
            if number == 1 {
                let first = self.words.first_servers.unwrap_or(self.words.servers);
                typed.extend(["--new".into(), "--first-servers".into(), first.to_string().into()]);
            } else {
                // Through a pipe: every user can read the arguments of a process.
                typed.extend(["--join".into(), "-".into()]);
                token = Some(token_of(&dir.join("client.json"), true)?);
            }
        }
        let process = self.start(&name, directory.clone(), typed, &again, token)?;
        // The usual place of the profile; the master's own is the same.
        let profile = ClientProfile::read(&directory.join("client.json")).map_err(super::start_failure)?;
        profile.write(&dir.join("client.json")).map_err(super::start_failure)?;
        Ok(process)
    }

    fn start_server(&self, dir: &Path, profile: &Path, number: u16) -> Outcome<ChildProcess> {
        let name = format!("data{number}");
        let directory = dir.join(&name);
        let mut typed: Vec<OsString> = vec!["data".into(), "--dir".into(), directory.clone().into()];
        let again = typed.clone();
        if let Some(memory) = self.context.arguments.common.memory {
            typed.extend(["--memory".into(), memory.to_string().into()]);
        }
        let has_joined = copal_server::ServerHome::read(&directory).is_ok_and(|home| home.has_joined());
        if has_joined {
            return self.start(&name, directory, typed, &again, None);
        }
        let token = token_of(profile, false)?;
        let listen = format!("127.0.0.1:{}", self.words.port + number);
        // Through a pipe: every user can read the arguments of a process.
        for word in ["--name", &name, "--listen", &listen, "--join", "-"] {
            typed.push(word.into());
        }
        if let Some(limit) = self.words.limit {
            typed.extend(["--limit".into(), limit.to_string().into()]);
        }
        if let Some(backend) = self.words.backend.backend.and_then(|word| word.to_possible_value()) {
            typed.extend(["--backend".into(), backend.get_name().into()]);
        }
        if let Some(rate) = self.words.recovery_rate {
            typed.extend(["--recovery-rate".into(), rate.to_string().into()]);
        }
        self.start(&name, directory, typed, &again, Some(token))
    }

    /// Starts a process, and waits until it reports that it is ready.
    fn start(
        &self,
        name: &str,
        directory: PathBuf,
        typed: Vec<OsString>,
        again: &[OsString],
        input: Option<String>,
    ) -> Outcome<ChildProcess> {
        let mut command = Command::new(&self.program);
        let parent = std::process::id().to_string();
        command.args(&typed).args(["--json", "--end-with-parent", &parent]);
        // The processes, not this one, open files on memory file systems.
        if self.context.arguments.common.allow_volatile {
            command.arg("--allow-volatile");
        }
        if self.context.arguments.common.allow_cow {
            command.arg("--allow-cow");
        }
        command.env_remove("COPAL_PASSWORD");
        let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
        let mut child = command.stdin(stdin).stdout(Stdio::piped()).spawn().map_err(super::start_failure)?;
        if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
            // A process that ends at once is noticed below.
            let _ = pipe.write_all(input.as_bytes());
        }
        let (tell, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            let reader = thread::Builder::new().name("output".to_owned()).spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    // The receiver is gone once the process is ready; the pipe must still be emptied.
                    let _ = tell.send(line);
                }
            });
            if let Err(error) = reader {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                return Err(super::start_failure(error));
            }
        }
        let mut process = ChildProcess {
            name: name.to_owned(),
            directory,
            command: format!("copal {}", again.join(OsStr::new(" ")).display()),
            address: String::new(),
            http: None,
            child,
            has_ended: false,
        };
        let end = Instant::now() + TO_START;
        loop {
            match lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) => {
                    let line: Value = serde_json::from_str(&line).unwrap_or_default();
                    match line["message_type"].as_str() {
                        Some("ready") => {
                            process.address = line["address"].as_str().unwrap_or_default().to_owned();
                            process.http = line["http"].as_str().map(str::to_owned);
                            return Ok(process);
                        }
                        Some("exit_error") => {
                            let why = line["message"].as_str().unwrap_or_default();
                            return Err(Failure::plain("start", format!("{name} did not start: {why}")));
                        }
                        _ => {}
                    }
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < end && !self.context.is_ended() => {}
                Err(_) => {
                    stop_all(std::slice::from_mut(&mut process));
                    return Err(Failure::plain("start", format!("{name} did not become ready")));
                }
            }
        }
    }

    fn tell(&self, process: &ChildProcess) {
        self.context.output.line(&format!(
            "{}  process {}, {}{}, {}; again: {}",
            process.name,
            process.child.id(),
            process.address,
            super::monitored(process.http.as_deref()),
            process.directory.display(),
            process.command
        ));
    }

    /// Reports processes that end, until this process is asked to end, or none is left.
    fn watch(&self, processes: &mut [ChildProcess]) -> Outcome<()> {
        while !self.context.is_ended() {
            for process in processes.iter_mut().filter(|process| !process.has_ended) {
                let Ok(Some(status)) = process.child.try_wait() else {
                    continue;
                };
                process.has_ended = true;
                let (name, pid) = (&process.name, process.child.id());
                let fields = json!({ "name": name, "pid": pid, "status": status.to_string(), "again": process.command });
                self.context.output.message("ended", fields);
                self.context
                    .output
                    .line(&format!("{name} (process {pid}) ended: {status}; again: {}", process.command));
            }
            if processes.iter().all(|process| process.has_ended) {
                return Err(Failure::new(exit::FAILURE, "ended", "all processes of the cluster have ended"));
            }
            self.context.pause(POLL_INTERVAL);
        }
        Ok(())
    }
}

/// Creates a token for a joining server or master.
fn token_of(profile: &Path, master: bool) -> Outcome<String> {
    let profile = ClientProfile::read(profile).map_err(super::start_failure)?;
    let store = crate::cluster::connect_with(&profile)?;
    Ok(crate::cluster::administer(&store, &requests::DrawToken { master })?.token)
}

fn as_json(process: &ChildProcess) -> Value {
    json!({
        "name": process.name,
        "pid": process.child.id(),
        "address": process.address,
        "http": process.http,
        "directory": process.directory.display().to_string(),
        "command": process.command,
    })
}

/// Asks all processes to end, the master last, and waits for them.
fn stop_all(processes: &mut [ChildProcess]) {
    let end = Instant::now() + TO_END;
    for process in processes.iter_mut().rev() {
        if let Some(pid) = rustix::process::Pid::from_raw(process.child.id() as i32)
            && !process.has_ended
        {
            // A process that has ended meanwhile is reaped below.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
    for process in processes.iter_mut().filter(|process| !process.has_ended) {
        while Instant::now() < end && matches!(process.child.try_wait(), Ok(None)) {
            crate::commands::rest(POLL_INTERVAL);
        }
        let _ = process.child.kill();
        let _ = process.child.wait();
        process.has_ended = true;
    }
}
