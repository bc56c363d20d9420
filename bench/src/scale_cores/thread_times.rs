//! A program under the meter, and the processor time of its threads by name: its stages.
//!
//! The times are read from `/proc` while the program runs. A thread that ends loses its time since the last
//! look; this rest is a stage of its own.

use anyhow::Result;
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    process::Command,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};
use xtask::metered::{self, Run};

/// Interval of the looks.
const INTERVAL: Duration = Duration::from_millis(4);
/// Stage of the time that no look found.
pub(super) const LOST: &str = "(ended threads)";

/// A finished program.
pub(super) struct StagedRun {
    pub(super) run: Run,
    /// Processor time in seconds by stage.
    pub(super) stages: BTreeMap<String, f64>,
}

/// Runs a command that becomes the measured program without another process in between.
pub(super) fn run(command: &mut Command) -> Result<StagedRun> {
    let (end, ended) = mpsc::channel::<()>();
    let mut looks = None;
    let run = metered::run_watched(command, |process| {
        looks = Some(thread::spawn(move || {
            let mut threads = HashMap::new();
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                look(process, &mut threads);
            }
            threads
        }));
    });
    drop(end);
    let threads = looks.map(|looks| looks.join().unwrap_or_default()).unwrap_or_default();
    let run = run?;
    let mut stages = BTreeMap::new();
    for (name, seconds) in threads.into_values() {
        *stages.entry(name).or_insert(0.0) += seconds;
    }
    let found: f64 = stages.values().sum();
    stages.insert(LOST.to_owned(), (run.cpu.as_secs_f64() - found).max(0.0));
    Ok(StagedRun { run, stages })
}

/// Whether a stage is a pool, which has more threads on more cores.
pub(super) fn is_pool(stage: &str) -> bool {
    stage.starts_with("decode") || matches!(stage, "backup-N" | "compute" | "copal-io-N")
}

/// Updates stage and time of each thread.
fn look(process: u32, threads: &mut HashMap<u32, (String, f64)>) {
    // The process may have ended.
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { return };
    for entry in entries.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(times) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
        let Some(nanos) = times.split(' ').next().and_then(|word| word.parse::<f64>().ok()) else { continue };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let stage = if number == process { "main".to_owned() } else { stage_of(name.trim()) };
        threads.insert(number, (stage, nanos / 1e9));
    }
}

/// Threads of a pool have one name but for their numbers.
fn stage_of(name: &str) -> String {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    if stem.len() < name.len() && stem.ends_with('-') { format!("{stem}N") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::{is_pool, run, stage_of};
    use std::process::Command;

    #[test]
    fn numbered_threads_are_one_stage() {
        assert_eq!(stage_of("backup-12"), "backup-N");
        assert_eq!(stage_of("copal-io-0"), "copal-io-N");
        assert_eq!(stage_of("pack"), "pack");
        assert!(is_pool("backup-N") && is_pool("decode") && is_pool("compute") && !is_pool("main"));
    }

    #[test]
    fn the_stages_have_all_processor_time_of_the_program() {
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let done = run(Command::new("sh").args(["-c", script])).unwrap();
        let (cpu, stages) = (done.run.cpu.as_secs_f64(), done.stages.values().sum::<f64>());
        assert!(done.stages["main"] > 0.0, "{:?}", done.stages);
        assert!(stages >= cpu * 0.99, "{stages} of {cpu}");
    }
}
