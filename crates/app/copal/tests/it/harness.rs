//! A scratch directory with a repository, and runs of `copal` on it.

use serde_json::Value;
use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Password of the encrypted repositories.
pub(crate) const PASSWORD: &str = "correct horse battery staple";

/// Longest wait for a condition.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} does not come about");
        std::thread::yield_now();
    }
}

/// A scratch directory and the repository in it.
pub(crate) struct House {
    dir: tempfile::TempDir,
    encrypted: bool,
    /// Location of the repository, if it is not in the scratch directory.
    elsewhere: Option<PathBuf>,
    /// The kernel releases a ring, and the device it holds, some time after its process.
    has_ring: bool,
}

/// One finished run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl House {
    /// Scratch space without a repository.
    pub(crate) fn empty() -> House {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::write(dir.path().join("password"), format!("{PASSWORD}\n")).unwrap();
        House { dir, encrypted: true, elsewhere: None, has_ring: true }
    }

    /// An encrypted repository.
    pub(crate) fn encrypted() -> House {
        let house = House::empty();
        house.good(["init", "--size", "64MiB"]);
        house
    }

    /// Scratch space for a repository without a password: it opens faster, which loops need.
    pub(crate) fn without_password() -> House {
        House { encrypted: false, ..House::empty() }
    }

    /// A repository without a password.
    pub(crate) fn plain() -> House {
        let house = House::without_password();
        house.good(["init", "--size", "64MiB"]);
        house
    }

    /// A repository whose layout is that of a fleet.
    pub(crate) fn fleet() -> House {
        let house = House::empty();
        house.good(["init", "--size", "64MiB", "--layout", "fleet"]);
        house
    }

    /// A repository of files, one per object.
    pub(crate) fn of_files() -> House {
        let house = House { encrypted: false, ..House::empty() };
        house.good(["init", "--backend", "hostfs"]);
        house
    }

    /// A repository at another location, to be created.
    pub(crate) fn elsewhere(path: &Path) -> House {
        House { encrypted: false, elsewhere: Some(path.to_owned()), ..House::empty() }
    }

    /// An encrypted repository at another location, to be created.
    pub(crate) fn at(path: &Path) -> House {
        House { elsewhere: Some(path.to_owned()), ..House::empty() }
    }

    /// For tests whose next command would conflict with the last one's ring.
    pub(crate) fn without_ring(self) -> House {
        House { has_ring: false, ..self }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A path as a command-line argument.
    pub(crate) fn word(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn repository(&self) -> PathBuf {
        let here = || self.path("repository");
        self.elsewhere.clone().unwrap_or_else(here)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.repository().join("store.copal")
    }

    /// `copal` with the repository, its password and no other settings of this environment.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
        for name in ["COPAL_PASSWORD", "COPAL_PASSWORD_FILE", "COPAL_LOG"] {
            command.env_remove(name);
        }
        command.env("COPAL_REPOSITORY", self.repository()).stdin(Stdio::null());
        // On any file system of the tests, such as a container's overlay or a RAM disk.
        command.args(["--allow-cow", "--allow-volatile"]);
        if !self.has_ring {
            command.arg("--no-io-uring");
        }
        if self.encrypted {
            command.env("COPAL_PASSWORD_FILE", self.path("password"));
        } else {
            command.arg("--insecure-no-password");
        }
        command.args(words);
        command
    }

    /// Runs to the end, with any exit code.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Run {
        Run::of(self.command(words).output().unwrap())
    }

    /// Runs and expects success.
    pub(crate) fn good<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Run {
        let run = self.run(words);
        assert_eq!(run.code, Some(0), "{run:?}");
        run
    }

    /// Runs with `--json`, expects success, returns the summary.
    pub(crate) fn summary<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Value {
        let mut command = self.command(["--json"]);
        command.args(words);
        let run = Run::of(command.output().unwrap());
        assert_eq!(run.code, Some(0), "{run:?}");
        run.summary()
    }

    /// Backs up one image and returns the summary.
    pub(crate) fn backup(&self, vm: &str, image: &Path) -> Value {
        self.summary(["backup", "--vm", vm, image.to_str().unwrap()])
    }

    /// Restores into a new file and returns its path.
    pub(crate) fn restore(&self, snapshot: &str, name: &str) -> PathBuf {
        let target = self.path(name);
        self.good(["restore", snapshot, "--target", target.to_str().unwrap()]);
        target
    }

    /// Ids of all snapshots, oldest first.
    pub(crate) fn snapshots(&self) -> Vec<String> {
        let summary = self.summary(["snapshots"]);
        let snapshots = summary["snapshots"].as_array().unwrap().iter();
        snapshots.map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Checks that structure and data are intact.
    pub(crate) fn check(&self) {
        let report = self.summary(["check", "--read-data"]);
        assert_eq!(report["clean"], true, "{report}");
    }
}

/// The id of the snapshot that a backup made.
pub(crate) fn id(summary: &Value) -> String {
    summary["snapshot"].as_str().unwrap_or_else(|| panic!("no snapshot in {summary}")).to_owned()
}

/// A number of the summary's counts.
pub(crate) fn count(summary: &Value, name: &str) -> u64 {
    summary["counts"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {summary}"))
}

/// Sentences of the libraries that belong to faults of some tests.
const EXPECTED: [&str; 7] = [
    "where nothing lay",
    "the last acknowledged writes of",
    "the newest tables of",
    "unreadable range of an exported disk",
    "give another --cache",
    "another copal uses the index",
    "the cache is made anew",
];

impl Run {
    pub(crate) fn of(output: Output) -> Run {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let run = Run { code: output.status.code(), stdout: output.stdout, stderr };
        run.scan();
        run
    }

    /// Fails the test after a panic, or an unexpected warning or error.
    fn scan(&self) {
        for line in self.stderr.lines() {
            let is_log = line.contains(" WARN ") || line.contains(" ERROR ");
            let is_expected = EXPECTED.iter().any(|words| line.contains(words));
            assert!(!line.contains("panicked at") && (!is_log || is_expected), "{self:?}");
        }
        assert_ne!(self.code, Some(101), "{self:?}");
    }

    /// Standard output as JSON lines; anything else there fails the test.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.stdout).unwrap();
        let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        text.lines().map(line).collect()
    }

    /// The summary, which is the last line.
    pub(crate) fn summary(&self) -> Value {
        let last = self.lines().pop().unwrap_or_else(|| panic!("no lines: {self:?}"));
        assert_eq!(last["message_type"], "summary", "{self:?}");
        last
    }

    /// The sentence on standard error: a single line.
    pub(crate) fn sentence(&self) -> &str {
        let line = self.stderr.trim_end();
        assert!(!line.contains('\n'), "more than a sentence: {line}");
        line.strip_prefix("copal: ").unwrap_or_else(|| panic!("no sentence: {self:?}"))
    }
}

/// A running command whose JSON lines are read as they arrive.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    /// Starts with `--json` and a pipe as standard input.
    pub(crate) fn start<S: AsRef<OsStr>>(house: &House, words: impl IntoIterator<Item = S>) -> Running {
        let mut command = house.command(["--json"]);
        command.args(words);
        Running::of(command)
    }

    /// Starts a command that prints JSON lines.
    pub(crate) fn of(mut command: Command) -> Running {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Running { child, lines }
    }

    /// Reads lines up to the first of this type; panics when the run ends before it.
    pub(crate) fn wait_for(&mut self, message_type: &str) -> Value {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                let mut stderr = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
                panic!("ended before {message_type}: {stderr}");
            }
            let value: Value = serde_json::from_str(&line).unwrap();
            if value["message_type"] == message_type {
                return value;
            }
        }
    }

    /// Whether the command has a file open.
    pub(crate) fn has_open(&self, file: &Path) -> bool {
        let file = file.canonicalize().unwrap();
        let Ok(open) = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())) else { return false };
        open.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == file))
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Closes standard input and waits for the end.
    pub(crate) fn end(mut self) -> Run {
        drop(self.child.stdin.take());
        let mut stdout = Vec::new();
        self.lines.read_to_end(&mut stdout).unwrap();
        let mut stderr = Vec::new();
        self.child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        Run::of(Output { status, stdout, stderr })
    }
}

impl Drop for Running {
    /// A test that failed leaves no process behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
