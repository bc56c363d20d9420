//! A process whose memory the kernel limits.
//!
//! A memory cgroup of its own where one can be made (version 1 or 2, usually as root); page cache counts in
//! it. The process joins it at its start, so all memory it ever touches is counted.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// Memory controllers: file names of a group's limit, its peak, and its count of killed processes.
const CONTROLLERS: [Controller; 2] = [
    Controller {
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        peak: "memory.max_usage_in_bytes",
    },
    Controller { root: "/sys/fs/cgroup", limit: "memory.max", peak: "memory.peak" },
];

struct Controller {
    root: &'static str,
    limit: &'static str,
    peak: &'static str,
}

/// A memory cgroup; removed on drop.
pub(crate) struct Cap {
    dir: PathBuf,
    peak: &'static str,
}

impl Cap {
    /// A group limited to `bytes`; `None` where none can be made.
    pub(crate) fn new(bytes: u64) -> Option<Cap> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("copal-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        CONTROLLERS.iter().find_map(|controller| {
            let dir = Path::new(controller.root).join(&name);
            fs::create_dir(&dir).ok()?;
            let cap = Cap { dir, peak: controller.peak };
            fs::write(cap.dir.join(controller.limit), bytes.to_string()).ok()?;
            // Prevents swapping, if there is swap.
            let _no_swap_no_limit = fs::write(cap.dir.join("memory.swap.max"), "0");
            Some(cap)
        })
    }

    /// Peak bytes of the group, page cache included.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join(self.peak)).ok()?;
        text.trim().parse().ok()
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        let _left_behind_if_busy = fs::remove_dir(&self.dir);
    }
}

/// Runs one test of this binary in a process of its own, under `cap` if given.
pub(crate) fn run_alone(test: &str, cap: Option<&Cap>, variables: &[(&str, &str)]) -> Output {
    let binary = std::env::current_exe().unwrap();
    let enter = match cap {
        Some(cap) => format!("echo $$ > '{}' && ", cap.dir.join("cgroup.procs").display()),
        None => String::new(),
    };
    let script = format!("{enter}exec \"$0\" --exact '{test}' --nocapture --test-threads=1");
    Command::new("sh").args(["-c", &script]).arg(binary).envs(variables.iter().copied()).output().unwrap()
}
