//! Facts about the machine of a measurement; without them its numbers mean nothing.

use serde::Serialize;
use std::{fs, path::Path, process::Command};

/// Facts that a reader needs to judge a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub processor: String,
    /// Processors this process may use.
    pub cores: usize,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// File system under the scratch directory.
    pub file_system: String,
    /// Load averages at the begin of the suite: other work on the machine.
    pub load: String,
}

impl Machine {
    /// Reads the facts of this machine; unknown ones are empty or 0.
    pub fn here(scratch: &Path) -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let after_colon = |text: &str, key: &str| {
            text.lines()
                .find(|line| line.starts_with(key))
                .and_then(|line| line.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_default()
        };
        let kilobytes = after_colon(&meminfo, "MemTotal");
        Machine {
            processor: after_colon(&cpuinfo, "model name"),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            memory_bytes: kilobytes.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            file_system: first_line(Command::new("stat").args(["-f", "-c", "%T"]).arg(scratch)),
            load: fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned(),
        }
    }
}

/// Commit of the measured code, with `+` after changes of files; empty outside a repository.
pub fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| first_line(Command::new("git").arg("-C").arg(root).args(arguments));
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let mut commit = git(&["rev-parse", "--short=12", "HEAD"]);
    if !changed.is_empty() {
        commit.push('+');
    }
    commit
}

/// First line of a program's output; empty when it fails.
pub fn first_line(command: &mut Command) -> String {
    command
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned))
        .unwrap_or_default()
}
