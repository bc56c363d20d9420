//! A process whose memory the kernel limits.
//!
//! A memory cgroup of its own where one can be made (version 1 or 2, usually as root); page cache counts in
//! it. The process joins it at its start, so all memory it ever touches is counted.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// Memory controllers: file names of a group's limit, its peak, and its count of killed processes.
const CONTROLLERS: [MemoryController; 2] = [
    MemoryController {
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        peak: "memory.max_usage_in_bytes",
    },
    MemoryController { root: "/sys/fs/cgroup", limit: "memory.max", peak: "memory.peak" },
];

struct MemoryController {
    root: &'static str,
    limit: &'static str,
    peak: &'static str,
}

/// A memory cgroup; removed on drop.
pub struct MemoryCap {
    dir: PathBuf,
    peak: &'static str,
}

impl MemoryCap {
    /// A group limited to `bytes`; `None` where none can be made.
    #[must_use]
    pub fn new(bytes: u64) -> Option<MemoryCap> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("copal-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        CONTROLLERS.iter().find_map(|controller| {
            let dir = Path::new(controller.root).join(&name);
            fs::create_dir(&dir).ok()?;
            let cap = MemoryCap { dir, peak: controller.peak };
            fs::write(cap.dir.join(controller.limit), bytes.to_string()).ok()?;
            // Prevents swapping, if there is swap.
            let _no_swap_no_limit = fs::write(cap.dir.join("memory.swap.max"), "0");
            Some(cap)
        })
    }

    /// The same command, whose process enters the group before it does anything else.
    #[must_use]
    pub fn around(&self, command: &Command) -> Command {
        let group = self.dir.join("cgroup.procs");
        let script = format!("echo $$ > '{}' && exec \"$0\" \"$@\"", group.display());
        let mut inside = Command::new("sh");
        inside.args(["-c", &script]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            inside.current_dir(directory);
        }
        inside
    }

    /// Peak bytes of the group, page cache included.
    #[must_use]
    pub fn peak_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join(self.peak)).ok()?;
        text.trim().parse().ok()
    }
}

impl Drop for MemoryCap {
    fn drop(&mut self) {
        let _left_behind_if_busy = fs::remove_dir(&self.dir);
    }
}
