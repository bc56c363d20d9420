//! JSON lines of the commands on repositories, compared with golden files: names, order and kinds of all fields.
//!
//! A file of `tests/golden/backup` lists commands in the order of a test's runs: arguments, exit code, lines.
//! Placeholders stand for values that differ between runs (`placeholders`). `COPAL_WRITE_GOLDEN=1` rewrites
//! the files: a changed line there is a changed promise.

mod engine;
mod fleet;
mod live;
mod ordered;
mod placeholders;
mod repository;

use crate::harness::{House, Run};
use ordered::Ordered;
use placeholders::Placeholders;
use serde_json::Value;
use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
};

/// The commands of one golden file.
struct Record {
    name: &'static str,
    placeholders: Placeholders,
    runs: Vec<Ordered>,
    /// Whether the first line of progress is kept: a line that only a slow machine prints is left out.
    has_progress: bool,
}

impl Record {
    fn new(name: &'static str, scratch: &Path) -> Record {
        let scratch = scratch.to_str().unwrap().trim_end_matches('/').to_owned();
        Record { name, placeholders: Placeholders::new(scratch), runs: Vec::new(), has_progress: false }
    }

    /// From now on only the kinds of numbers are compared, and only the first notice: they depend on the
    /// order of several processes.
    fn kinds_of_numbers(&mut self) {
        self.placeholders.all_numbers = true;
    }

    /// Runs a command on a repository; returns its last line.
    fn run<S: AsRef<str>>(&mut self, house: &House, words: impl IntoIterator<Item = S>) -> Value {
        let words: Vec<String> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let mut command = house.command(["--json"]);
        command.args(&words);
        self.command(command, &words.join(" "))
    }

    /// Runs a command that prints JSON lines; returns its last line.
    fn command(&mut self, mut command: Command, words: &str) -> Value {
        let run = Run::of(command.output().unwrap());
        self.note(words, &run);
        run.lines().pop().unwrap_or_default()
    }

    fn note(&mut self, words: &str, run: &Run) {
        let text = std::str::from_utf8(&run.stdout).unwrap();
        let mut lines: Vec<Ordered> = Vec::new();
        let mut types: HashSet<String> = HashSet::new();
        for line in text.lines() {
            let line: Ordered = serde_json::from_str(line).unwrap();
            let mut line = self.placeholders.line(&line);
            let Some(Ordered::Text(kind)) = line.field("message_type").cloned() else {
                panic!("no type: {line:?}")
            };
            if kind == "status" {
                hide_progress(&mut line);
            }
            let is_first = types.insert(kind.clone());
            let is_kept = match &kind[..] {
                "status" => is_first && self.has_progress,
                "verbose" => is_first || !self.placeholders.all_numbers,
                _ => true,
            };
            if is_kept && !lines.contains(&line) {
                lines.push(line);
            }
        }
        self.runs.push(Ordered::Fields(vec![
            ("copal".to_owned(), Ordered::Text(self.placeholders.text(words))),
            ("exit".to_owned(), Ordered::Integer(run.code.unwrap().to_string())),
            ("lines".to_owned(), Ordered::List(lines)),
        ]));
    }

    /// Compares the recorded runs with the golden file.
    fn compare(self) {
        let text = Ordered::List(self.runs).pretty(0) + "\n";
        let file = golden().join(format!("{}.json", self.name));
        if std::env::var_os("COPAL_WRITE_GOLDEN").is_some() {
            return std::fs::write(&file, text).unwrap();
        }
        let wanted = std::fs::read_to_string(&file).unwrap_or_default();
        let differs = text.lines().zip(wanted.lines()).position(|(is, was)| is != was);
        let at = differs.unwrap_or_else(|| text.lines().count().min(wanted.lines().count()));
        let from =
            |text: &str| text.lines().skip(at.saturating_sub(3)).take(7).collect::<Vec<_>>().join("\n");
        assert!(
            text == wanted,
            "{} line {}:\n--- is\n{}\n--- was\n{}",
            file.display(),
            at + 1,
            from(&text),
            from(&wanted)
        );
    }
}

/// The progress in a line depends on the machine.
fn hide_progress(line: &mut Ordered) {
    let Ordered::Fields(fields) = line else { return };
    for (name, value) in fields {
        match value {
            Ordered::Integer(_) if name != "v" => *value = Ordered::text("<integer>"),
            Ordered::Text(_) if ["stage", "what"].contains(&&name[..]) => *value = Ordered::text("<text>"),
            _ => {}
        }
    }
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/backup")
}

/// A command that runs until it is ended, and the lines it has printed.
struct Ongoing {
    child: Child,
    lines: BufReader<ChildStdout>,
    printed: String,
    words: String,
}

impl Ongoing {
    fn start(mut command: Command, words: &str) -> Ongoing {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Ongoing { child, lines, printed: String::new(), words: words.to_owned() }
    }

    fn of(house: &House, words: &[&str]) -> Ongoing {
        let mut command = house.command(["--json"]);
        command.args(words);
        Ongoing::start(command, &words.join(" "))
    }

    /// Reads lines up to the first of this type.
    fn until(&mut self, message_type: &str) -> Value {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                let mut stderr = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
                panic!("{} ended before {message_type}: {}{stderr}", self.words, self.printed);
            }
            self.printed.push_str(&line);
            let value: Value = serde_json::from_str(&line).unwrap();
            if value["message_type"] == message_type {
                return value;
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Closes its standard input, waits for its end and records its output.
    fn end(mut self, record: &mut Record) {
        drop(self.child.stdin.take());
        self.lines.read_to_string(&mut self.printed).unwrap();
        let mut stderr = Vec::new();
        self.child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        let run = Run::of(Output { status, stdout: self.printed.into_bytes(), stderr });
        record.note(&self.words, &run);
    }
}

/// The form of a line in a golden file.
fn shown(line: &str) -> String {
    let mut placeholders = Placeholders::new("/scratch".to_owned());
    placeholders.line(&serde_json::from_str(line).unwrap()).pretty(0)
}

#[test]
fn order_names_and_kinds_of_fields_are_seen_and_values_of_one_run_are_not() {
    let line =
        r#"{"bytes":7,"id":"00112233445566778899aabbccddeeff","path":"/scratch/disk.raw","seconds":0.5}"#;
    assert_eq!(
        shown(line),
        r#"{ "bytes": "<integer>", "id": "<id 1>", "path": "<scratch>/disk.raw", "seconds": "<fraction>" }"#
    );
    for (is, other) in [
        ("\"bytes\":7", "\"bytes\":8"),
        ("00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"),
        ("0.5", "1.5"),
    ] {
        assert_eq!(shown(&line.replace(is, other)), shown(line), "{other}");
    }
    let reordered =
        r#"{"id":"00112233445566778899aabbccddeeff","bytes":7,"path":"/scratch/disk.raw","seconds":0.5}"#;
    assert!(shown(reordered) != shown(line));
    for (is, other) in [
        ("bytes", "byte"),
        ("\"bytes\":7,", ""),
        (":7", ":7.0"),
        (":7", ":\"7\""),
        (":7", ":null"),
        ("0.5", "1"),
    ] {
        assert!(shown(&line.replacen(is, other, 1)) != shown(line), "{other}");
    }
}
