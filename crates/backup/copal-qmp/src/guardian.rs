//! A small process that says the last commands of a procedure when the process that began it is killed.
//!
//! It inherits the connection, since a server takes one client at a time, and the reading end of a pipe. When the pipe ends
//! without a word, its parent has ended without one: the guardian sends its commands, waits for the answer and ends. It is a
//! shell, so that a process with many threads need not fork.
//!
//! Invariants
//! - It inherits nothing else: no lock, no password, and no signal of a terminal ends it.
//! - Its parent waits for it, so that of one that did nothing nothing is left.
//!
//! Not here: the mark in QEMU for the case that the guardian is killed as well (`copal-live`).

use crate::client::Client;
use serde_json::{Value, json};
use std::{
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, Stdio},
};

/// Standard input is the pipe, standard output the connection. `$1`: lines to send; `$2`: part of the last answer. If
/// QEMU does not answer, the guardian closes the connection after half a minute.
const SCRIPT: &str = r#"trap '' HUP INT QUIT TERM
read -r word
[ "$word" = released ] && exit
printf '%s\n' "$1"
(sleep 30; kill -9 $$) >/dev/null 2>&1 &
while read -r line <&1; do
  case $line in *"$2"*) break ;; esac
done
kill -9 $!"#;
const RELEASED: &[u8] = b"released\n";
/// The id of the last command.
const ID: &str = "copal-guardian";

/// A process that acts when this one is killed. Dropping it releases it.
#[derive(Debug)]
pub struct Guardian {
    child: Child,
}

impl Guardian {
    /// Starts the process: some milliseconds. It is to send these commands.
    /// # Errors
    /// The system starts no process.
    pub fn start(client: &Client, commands: &[(&str, Value)]) -> io::Result<Guardian> {
        Guardian::over(client.duplicate()?, commands)
    }

    fn over(connection: UnixStream, commands: &[(&str, Value)]) -> io::Result<Guardian> {
        let lines = commands.iter().enumerate().map(|(at, (command, arguments))| {
            let mut line = json!({ "execute": command, "arguments": arguments });
            // The answer to the last one ends the wait.
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
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(OwnedFd::from(connection))
            .stderr(Stdio::null())
            .process_group(0);
        Ok(Guardian {
            child: command.spawn()?,
        })
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.child.stdin.take() {
            // One that has ended already needs no word.
            let _ = pipe.write_all(RELEASED);
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};

    /// Symptom: a backup that was killed between `stop` and `cont` left its guest stopped, until somebody noticed.
    /// Cause: nobody else knew, and the socket let nobody else in.
    /// Fix: a process that has the connection, too, says `cont` when its parent has ended.
    #[test]
    fn it_speaks_when_its_parent_is_gone_and_is_silent_when_it_is_released() {
        let commands = [("cont", json!({})), ("object-del", json!({ "id": "it's" }))];
        for is_killed in [true, false] {
            let (connection, mut stream) = UnixStream::pair().unwrap();
            let mut guardian = Guardian::over(connection, &commands).unwrap();
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
                // Other answers and events are no end of it.
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
}
