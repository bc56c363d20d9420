//! Memory cap of an engine's process, page cache included, and the kernel's count of its reads of a block
//! device.
//!
//! Version 1 of cgroups (`memory` and `blkio` below /sys/fs/cgroup) or version 2 (`memory.max`, `io.stat`).
//! Version 1 counts I/O only of groups with a limit, so this sets one above the speed of every device.
//! Version 1 charges buffered writes to the group that writes them back, which belongs to no engine. Written
//! bytes therefore come from `/proc/<pid>/io`, which charges the writer when it dirties a page. Needs root;
//! without it the suite refuses to run, since a comparison without a cap means nothing.

use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
};

const ROOT: &str = "/sys/fs/cgroup";

/// Device reads, and bytes in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
}

impl std::ops::Sub for Traffic {
    type Output = Traffic;
    fn sub(self, earlier: Traffic) -> Traffic {
        Traffic {
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
        }
    }
}

/// Control group of one process. The drop removes it, and must come after the end of the process.
pub(crate) struct MemoryCap {
    memory: PathBuf,
    /// Directory of version 1; version 2 has one directory for both.
    blkio: Option<PathBuf>,
}

impl MemoryCap {
    /// Makes a control group without a cap; `device` (major:minor) is the counted device.
    pub(crate) fn make(name: &str, device: &str) -> Result<MemoryCap> {
        let name = format!("copal-bench-{}-{name}", std::process::id());
        if Path::new(ROOT).join("memory/memory.limit_in_bytes").exists() {
            let memory_cap = MemoryCap {
                memory: Path::new(ROOT).join("memory").join(&name),
                blkio: Some(Path::new(ROOT).join("blkio").join(&name)),
            };
            make_directory(&memory_cap.memory)?;
            if let Some(blkio) = &memory_cap.blkio {
                make_directory(blkio)?;
                write(&blkio.join("blkio.throttle.read_iops_device"), &format!("{device} 2000000000"))?;
            }
            return Ok(memory_cap);
        }
        if Path::new(ROOT).join("cgroup.controllers").exists() {
            // Children get the controllers that their parent delegates. Without delegation the files below
            // are missing, and the error names them.
            let _ = fs::write(Path::new(ROOT).join("cgroup.subtree_control"), "+memory +io");
            let memory = Path::new(ROOT).join(&name);
            make_directory(&memory)?;
            return Ok(MemoryCap { memory, blkio: None });
        }
        bail!("no memory controller below {ROOT}; the suites need root and cgroups")
    }

    /// Moves the process into the group.
    pub(crate) fn enter(&self, pid: u32) -> Result<()> {
        for directory in [Some(&self.memory), self.blkio.as_ref()].into_iter().flatten() {
            write(&directory.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Caps all memory of the group; `None`: no cap.
    pub(crate) fn set(&self, bytes: Option<u64>) -> Result<()> {
        let (file, none) =
            if self.blkio.is_some() { ("memory.limit_in_bytes", "-1") } else { ("memory.max", "max") };
        let text = bytes.map_or_else(|| none.to_owned(), |bytes| bytes.to_string());
        write(&self.memory.join(file), &text)
    }

    /// Peak memory since the last call.
    pub(crate) fn take_peak(&self) -> Result<u64> {
        let file = if self.blkio.is_some() { "memory.max_usage_in_bytes" } else { "memory.peak" };
        let path = self.memory.join(file);
        let peak = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        // Older kernels of version 2 cannot reset the peak; it is then that of the whole life of the process.
        let _ = fs::write(&path, "0");
        peak.trim().parse().context("the peak is not a number")
    }

    /// Current anonymous memory, without page cache.
    pub(crate) fn anonymous(&self) -> Result<u64> {
        let path = self.memory.join("memory.stat");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let name = if self.blkio.is_some() { "rss " } else { "anon " };
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse().ok()).context("memory.stat without anonymous memory")
    }

    /// I/O since the start of the process.
    pub(crate) fn traffic(&self, pid: u32) -> Result<Traffic> {
        let own = fs::read_to_string(format!("/proc/{pid}/io")).context("reading the engine's I/O")?;
        let own = |name: &str| -> u64 {
            let line = own.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        let (reads, read_bytes) = match &self.blkio {
            Some(blkio) => {
                let sum = |file: &str| -> Result<u64> {
                    let text = fs::read_to_string(blkio.join(file))?;
                    Ok(sum_of_reads(&text))
                };
                (sum("blkio.throttle.io_serviced")?, sum("blkio.throttle.io_service_bytes")?)
            }
            None => {
                let text = fs::read_to_string(self.memory.join("io.stat")).context("reading io.stat")?;
                (sum_of_field(&text, "rios="), sum_of_field(&text, "rbytes="))
            }
        };
        Ok(Traffic {
            reads,
            read_bytes,
            write_bytes: own("write_bytes:").saturating_sub(own("cancelled_write_bytes:")),
        })
    }
}

impl Drop for MemoryCap {
    fn drop(&mut self) {
        for directory in [Some(&self.memory), self.blkio.as_ref()].into_iter().flatten() {
            // The process has ended; a group left behind is empty and costs nothing.
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Writes dirty pages below the directory and drops its page cache. Cached pages of an earlier process are
/// charged to no group, and would answer reads without I/O.
pub(crate) fn forget_pages(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            forget_pages(&entry.path())?;
        } else if kind.is_file() {
            let file = fs::File::open(entry.path())?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                .with_context(|| format!("dropping the pages of {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Parses lines of version 1: `major:minor Read count`.
fn sum_of_reads(text: &str) -> u64 {
    let mut sum = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(_), Some("Read"), Some(count)) = (words.next(), words.next(), words.next()) {
            sum += count.parse::<u64>().unwrap_or(0);
        }
    }
    sum
}

/// Parses lines of version 2: `major:minor rbytes=1 wbytes=2 rios=3 ...`.
fn sum_of_field(text: &str, name: &str) -> u64 {
    text.split_whitespace()
        .filter_map(|word| word.strip_prefix(name))
        .filter_map(|value| value.parse::<u64>().ok())
        .sum()
}

fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir(path)
        .with_context(|| format!("making the control group {}; the suites need root", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {text} to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{sum_of_field, sum_of_reads};

    #[test]
    fn reads_of_all_devices_are_summed_without_other_counts() {
        let text = "254:0 Read 5120\n254:0 Write 40\n254:0 Total 5160\n7:0 Read 3\nTotal 5163\n";
        assert_eq!(sum_of_reads(text), 5123);
        let text = "254:0 rbytes=4096 wbytes=1 rios=2 wios=9\n7:0 rbytes=512 rios=1\n";
        assert_eq!(sum_of_field(text, "rios="), 3);
        assert_eq!(sum_of_field(text, "rbytes="), 4608);
    }
}
