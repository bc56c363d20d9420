//! Guardian: a small process that sends the last commands of a procedure if its parent is killed.
//!
//! It inherits the connection, since a server serves one client at a time, and the reading end of a pipe. If
//! the pipe ends without the release word, the parent was killed. The guardian then sends its commands, waits
//! for the reply and ends. If the connection ends before the reply, it executes another program, which may
//! connect again. It is a shell, so that a process with many threads need not fork.
//!
//! Invariants
//! - It inherits no lock and no password, and terminal signals do not end it.
//! - Its parent waits for it on release, so no process is left over.
//!
//! Not here: the program for a lost connection (`copal`), the mark in QEMU in case the guardian is killed too
//! (`pause`).

use crate::qmp::client::QmpClient;
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, Stdio},
};

/// Standard input is the pipe, standard output the connection. `$1` are the lines to send, `$2` is part of
/// the last reply, and the rest is the program for a lost connection. If QEMU does not answer, the guardian
/// closes the connection after 30 seconds. Writing to a closed connection must not end it, hence the trap for
/// PIPE.
const SCRIPT: &str = r#"trap '' HUP INT QUIT TERM PIPE
read -r word
[ "$word" = released ] && exit
printf '%s\n' "$1"
(sleep 30; kill -9 $$) >/dev/null 2>&1 &
while read -r line <&1; do
  case $line in *"$2"*) exec kill -9 $! ;; esac
done
kill -9 $!
shift 2
[ $# -gt 0 ] && exec "$@" >/dev/null"#;
const RELEASED: &[u8] = b"released\n";
/// The id of the last command.
const ID: &str = "copal-guardian";

/// A process that acts if this one is killed; released on drop.
#[derive(Debug)]
pub(crate) struct GuardianProcess {
    child: Child,
}

impl GuardianProcess {
    /// Starts the process, which takes some milliseconds. It sends these commands if this process is killed.
    /// If the connection ends before the reply, it executes the command line `fallback`, unless that is
    /// empty.
    /// # Errors
    /// The system cannot start a process.
    pub(crate) fn start(
        client: &QmpClient,
        commands: &[(&str, Value)],
        fallback: &[OsString],
    ) -> io::Result<GuardianProcess> {
        GuardianProcess::over(client.duplicate()?, commands, fallback)
    }

    fn over(
        connection: UnixStream,
        commands: &[(&str, Value)],
        fallback: &[OsString],
    ) -> io::Result<GuardianProcess> {
        let lines = commands.iter().enumerate().map(|(at, (command, arguments))| {
            let mut line = json!({ "execute": command, "arguments": arguments });
            // The reply to the last command ends the wait.
            if at + 1 == commands.len() {
                line["id"] = ID.into();
            }
            line.to_string()
        });
        let lines: Vec<String> = lines.collect();
        let mut command = Command::new("/bin/sh");
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .args(["-c", SCRIPT, ID, &lines.join("\n"), ID])
            .args(fallback)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(OwnedFd::from(connection))
            .stderr(Stdio::null())
            .process_group(0);
        Ok(GuardianProcess { child: command.spawn()? })
    }
}

impl Drop for GuardianProcess {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.child.stdin.take() {
            // A guardian that has ended already needs no release.
            let _ = pipe.write_all(RELEASED);
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader, Read},
        net::Shutdown,
        time::{Duration, Instant},
    };

    /// Symptom: a backup that was killed between `stop` and `cont` left its guest stopped for an unlimited
    /// time.
    /// Cause: no other process knew, and the socket accepted no other client.
    /// Fix: a process that shares the connection sends `cont` when its parent has ended.
    #[test]
    fn a_guardian_sends_its_commands_only_if_its_parent_was_killed() {
        let commands = [("cont", json!({})), ("object-del", json!({ "id": "it's" }))];
        for is_killed in [true, false] {
            let (connection, mut stream) = UnixStream::pair().unwrap();
            let mut guardian = GuardianProcess::over(connection, &commands, &[]).unwrap();
            if is_killed {
                drop(guardian.child.stdin.take());
            }
            let dropped = std::thread::Builder::new().spawn(move || drop(guardian)).unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut next = || {
                let mut line = String::new();
                lines.read_line(&mut line).unwrap();
                serde_json::from_str::<Value>(&line).unwrap()
            };
            if is_killed {
                let (first, last) = (next(), next());
                assert_eq!((&first["execute"], first.get("id")), (&json!("cont"), None));
                assert_eq!(last["arguments"], json!({ "id": "it's" }));
                // Other replies and events do not end the wait.
                for answer in [json!({ "event": "RESUME" }), json!({ "return": {} })] {
                    writeln!(stream, "{answer}").unwrap();
                }
                writeln!(stream, "{}", json!({ "return": {}, "id": last["id"] })).unwrap();
            }
            dropped.join().unwrap();
            let mut rest = Vec::new();
            lines.read_to_end(&mut rest).unwrap();
            assert!(rest.is_empty(), "{rest:?}");
        }
    }

    /// Symptom: a guest behind a proxy stayed stopped when its backup was killed and its connection had ended
    /// too.
    /// Cause: the guardian only had that connection. Fix: it executes a program that connects again.
    #[test]
    fn a_guardian_executes_another_program_if_the_connection_ends_before_the_reply() {
        let scratch = tempfile::tempdir().unwrap();
        // Whether the server replies; whether the connection exists when the commands are sent.
        for (at, (is_answered, is_there)) in
            [(true, true), (false, true), (false, false)].into_iter().enumerate()
        {
            let said = scratch.path().join(at.to_string());
            let script = "printf '%s' \"$1\" > \"$0\"; echo output without a reader";
            let mut fallback: Vec<OsString> = ["/bin/sh", "-c", script].map(OsString::from).into();
            fallback.extend([said.clone().into_os_string(), "it's a path".into()]);
            let (connection, stream) = UnixStream::pair().unwrap();
            let mut guardian = GuardianProcess::over(connection, &[("cont", json!({}))], &fallback).unwrap();
            let mut stream = is_there.then_some(stream);
            drop(guardian.child.stdin.take());
            if let Some(stream) = &mut stream {
                let mut line = String::new();
                BufReader::new(&mut *stream).read_line(&mut line).unwrap();
                if is_answered {
                    writeln!(stream, "{}", json!({ "return": {}, "id": ID })).unwrap();
                }
            }
            if let Some(stream) = stream.as_ref().filter(|_| !is_answered) {
                stream.shutdown(Shutdown::Write).unwrap();
            }
            // Waits for the process.
            drop(guardian);
            // A server for one client at a time must be free for the next connection.
            let mut rest = Vec::new();
            stream.map(|mut stream| stream.read_to_end(&mut rest).unwrap());
            assert!(rest.is_empty(), "{rest:?}");
            let said = std::fs::read_to_string(said).ok();
            assert_eq!(said.as_deref(), (!is_answered).then_some("it's a path"));
        }
    }

    /// Symptom: no test detected that a terminal signal ended the guardian, or that it had its parent's
    /// environment.
    #[test]
    fn a_guardian_ignores_terminal_signals_and_inherits_no_environment() {
        const IGNORED: [u32; 5] = [1, 2, 3, 13, 15];
        let (connection, _stream) = UnixStream::pair().unwrap();
        let guardian = GuardianProcess::over(connection, &[("cont", json!({}))], &[]).unwrap();
        let about = |file| std::fs::read(format!("/proc/{}/{file}", guardian.child.id())).unwrap();
        let ignores_all = || {
            let status = String::from_utf8(about("status")).unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
            let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
            IGNORED.iter().all(|signal| mask >> (signal - 1) & 1 == 1)
        };
        // Only ends a test that hangs.
        let end = Instant::now() + Duration::from_secs(20);
        while !ignores_all() {
            assert!(Instant::now() < end, "a signal is not ignored");
            std::thread::yield_now();
        }
        assert_eq!(about("environ"), b"PATH=/usr/bin:/bin\0");
        let stat = String::from_utf8(about("stat")).unwrap();
        let group = stat.rsplit(") ").next().unwrap().split(' ').nth(2).unwrap();
        assert_eq!(group, guardian.child.id().to_string(), "a group of its own");
    }
}
