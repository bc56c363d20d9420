//! `BlockTracer`: commands of one block device, from an instance of tracefs.
//!
//! A line of the result keeps the fields that a replay needs: kind, place and length of each command, and where it
//! ended. The device is always 7:0, and times are left out, because completions say the queue depth.

use anyhow::{Context, Result, ensure};
use std::{
    fmt::Write,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const TRACEFS: &str = "/sys/kernel/tracing";
const EVENTS: [&str; 3] = ["block_rq_issue", "block_rq_complete", "block_rq_requeue"];
/// Memory for events of each processor, in KiB.
const BUFFER_KIB: &str = "32768";

/// Recorder of one device. The drop ends it.
pub struct BlockTracer {
    instance: PathBuf,
}

impl BlockTracer {
    /// Reason why this machine records no trace; `None` if it does.
    pub fn obstacle() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("it needs root".to_owned());
        }
        let events = Path::new(TRACEFS).join("events/block/block_rq_issue");
        (!events.exists()).then(|| format!("{TRACEFS} has no block events; mount -t tracefs nodev {TRACEFS}"))
    }

    /// Prepares an instance for the commands of `device`. Nothing is recorded yet. A process has one at a time.
    /// # Errors
    /// See [`BlockTracer::obstacle`].
    pub fn of(device: &Path) -> Result<BlockTracer> {
        let number = fs::metadata(device)?.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let name = format!("copal-bench-{}", std::process::id());
        let tracer = BlockTracer { instance: Path::new(TRACEFS).join("instances").join(name) };
        fs::create_dir(&tracer.instance).context("making an instance of tracefs")?;
        tracer.set("tracing_on", "0")?;
        tracer.set("buffer_size_kb", BUFFER_KIB)?;
        for event in EVENTS {
            // The kernel's own number of a device.
            let device = u64::from(major) << 20 | u64::from(minor);
            tracer.set(&format!("events/block/{event}/filter"), &format!("dev == {device}"))?;
            tracer.set(&format!("events/block/{event}/enable"), "1")?;
        }
        Ok(tracer)
    }

    /// Forgets earlier commands and records from now on.
    /// # Errors
    /// Tracefs refuses.
    pub fn start(&self) -> Result<()> {
        self.set("trace", "")?;
        self.set("tracing_on", "1")
    }

    /// Ends the recording and returns its lines.
    /// # Errors
    /// The commands did not fit the buffer, or tracefs refuses.
    pub fn stop(&self) -> Result<String> {
        self.set("tracing_on", "0")?;
        let text = fs::read_to_string(self.instance.join("trace")).context("reading the trace")?;
        // "# entries-in-buffer/entries-written: 10/10   #P:2"
        let counts = text.lines().find_map(|line| line.split_once("entries-written: "));
        let counts = counts.and_then(|(_, rest)| rest.split_whitespace().next()?.split_once('/'));
        let (kept, written) = counts.context("the trace says no number of its events")?;
        ensure!(kept == written, "the buffer of the trace was too small: {kept} of {written} events");
        Ok(compact(&text))
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = self.instance.join(name);
        fs::write(&path, value).with_context(|| format!("writing {}", path.display()))
    }
}

impl Drop for BlockTracer {
    fn drop(&mut self) {
        // Removing an instance ends its events. After an error, the first error is the one to report.
        let _ = fs::remove_dir(&self.instance);
    }
}

/// The lines of a trace without the fields that no replay needs.
fn compact(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((_, event)) = line.split_once(": block_rq_") else { continue };
        let Some((name, rest)) = event.split_once(": ") else { continue };
        let Some((head, tail)) = rest.split_once(") ") else { continue };
        let flags = head.split_whitespace().nth(1).unwrap_or_default();
        let mut place = tail.split_whitespace();
        let (sector, count) = (place.next().unwrap_or("0"), place.nth(1).unwrap_or("0"));
        // Writing to a string succeeds.
        let _ = match name {
            "issue" => writeln!(lines, "0: block_rq_issue: 7,0 {flags} 0 () {sector} + {count}"),
            // Only their number counts.
            "complete" => writeln!(lines, "0: block_rq_complete: 7,0 R () 0 + 8"),
            _ => writeln!(lines, "0: block_rq_{name}: 7,0 {flags} () {sector} + {count}"),
        };
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_device::emulated::BlockTrace;

    #[test]
    fn a_compact_trace_replays_as_the_recorded_one() {
        let text = "# entries-in-buffer/entries-written: 5/5   #P:2\n\
            copal-9 [001] d..1. 12.000001: block_rq_issue: 7,3 R 8192 () 64 + 16 none,0,0 [copal]\n\
            copal-9 [001] d..1. 12.000002: block_rq_issue: 7,3 FF 0 () 0 + 0 none,0,0 [copal]\n\
            copal-9 [001] d..1. 12.000900: block_rq_complete: 7,3 R () 64 + 16 none,0,0 [0]\n\
            copal-9 [001] d..1. 12.000901: block_rq_issue: 7,3 WFS 4096 () 8 + 8 none,0,0 [copal]\n\
            copal-9 [001] d..1. 12.000902: block_rq_requeue: 7,3 WFS () 8 + 8 none,0,0 [0]\n";
        let compacted = compact(text);
        assert_eq!(compacted.lines().count(), 5, "{compacted}");
        let read = |text: &str, device: &str| {
            let trace = BlockTrace::read(text.as_bytes()).unwrap();
            trace.commands(device.parse().unwrap()).to_vec()
        };
        assert_eq!(read(&compacted, "7:0"), read(text, "7:3"));
        assert_eq!(read(text, "7:3").len(), 2, "the requeued command is issued again later");
    }
}
