//! Displays the progress of an operation from its own thread.
//!
//! The operation adds to counters. The thread displays them: ten times a second as a bar, once a second as
//! JSON, every five seconds as plain lines.

use crate::{
    human,
    output::{CommandOutput, ProgressStyle, write_err},
};
use copal_backup::{CancelFlag, Progress, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};
use parking_lot::{Condvar, Mutex};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Receives progress, and displays it until it is dropped.
pub(crate) struct ProgressMeter {
    display: Arc<MeterDisplay>,
    shower: Option<JoinHandle<()>>,
}

struct MeterDisplay {
    output: CommandOutput,
    style: ProgressStyle,
    cancel: CancelFlag,
    done: AtomicU64,
    stored: AtomicU64,
    state: Mutex<StageProgress>,
    wake: Condvar,
    bar: Option<ProgressBar>,
}

struct StageProgress {
    stage: Option<Stage>,
    what: String,
    total: u64,
    stage_began: Instant,
    ended: bool,
    told_interrupted: bool,
}

fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Plan => "plan",
        Stage::Read => "read",
        Stage::Publish => "publish",
        Stage::Restore => "restore",
        Stage::Verify => "verify",
        Stage::Walk => "walk",
        Stage::ReadData => "read-data",
        Stage::Sweep => "sweep",
        Stage::Index => "index",
        _ => "work",
    }
}

/// Stages whose unit is bytes.
fn counts_bytes(stage: Stage) -> bool {
    !matches!(stage, Stage::Index | Stage::Walk)
}

impl ProgressMeter {
    pub(crate) fn start(output: CommandOutput, cancel: &CancelFlag) -> ProgressMeter {
        let style = output.progress_style();
        let bar = (style == ProgressStyle::Bar).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(BarStyle::default_spinner());
            bar
        });
        let state = StageProgress {
            stage: None,
            what: String::new(),
            total: 0,
            stage_began: Instant::now(),
            ended: false,
            told_interrupted: false,
        };
        let display = Arc::new(MeterDisplay {
            output,
            style,
            cancel: cancel.clone(),
            done: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            state: Mutex::new(state),
            wake: Condvar::new(),
            bar,
        });
        let shower = (style != ProgressStyle::None).then(|| {
            let display = Arc::clone(&display);
            let shower = std::thread::Builder::new().name("progress".to_owned());
            // Without a thread nothing is displayed, and the work continues.
            shower.spawn(move || display.show()).ok()
        });
        let shower = shower.flatten();
        ProgressMeter { display, shower }
    }
}

impl Drop for ProgressMeter {
    fn drop(&mut self) {
        self.display.state.lock().ended = true;
        self.display.wake.notify_all();
        if let Some(shower) = self.shower.take() {
            let _ = shower.join();
        }
        if let Some(bar) = &self.display.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for ProgressMeter {
    fn stage(&self, stage: Stage, what: &str, total: u64) {
        let mut state = self.display.state.lock();
        self.display.done.store(0, Ordering::Relaxed);
        state.stage = Some(stage);
        state.what = human::visible(what).into_owned();
        state.total = total;
        state.stage_began = Instant::now();
        if let Some(bar) = &self.display.bar {
            set_style(bar, stage, total);
        }
    }

    fn advance(&self, delta: u64) {
        self.display.done.fetch_add(delta, Ordering::Relaxed);
    }

    fn stored(&self, delta_bytes: u64) {
        self.display.stored.fetch_add(delta_bytes, Ordering::Relaxed);
    }

    fn notice(&self, message: &str) {
        match &self.display.bar {
            Some(bar) => bar.println(human::visible(message)),
            None => self.display.output.notice(message),
        }
    }
}

fn set_style(bar: &ProgressBar, stage: Stage, total: u64) {
    let template = match (total > 0, counts_bytes(stage)) {
        (true, true) => {
            "{msg} [{wide_bar}] {percent:>3}% {decimal_bytes}/{decimal_total_bytes}, {decimal_bytes_per_sec}, ETA {eta}{prefix}"
        }
        (true, false) => "{msg} [{wide_bar}] {pos}/{len}, ETA {eta}{prefix}",
        (false, true) => "{spinner} {msg} {decimal_bytes}, {decimal_bytes_per_sec}{prefix}",
        (false, false) => "{spinner} {msg} {pos}{prefix}",
    };
    // The templates are constants; an invalid one would only cost the bar its style.
    if let Ok(style) = BarStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    // Reset after the style is set: each step may draw, and the old stage's text does not fit the new one's
    // numbers.
    bar.reset();
    bar.set_length(total);
}

impl MeterDisplay {
    fn show(&self) {
        let step = match self.style {
            ProgressStyle::Bar => Duration::from_millis(100),
            ProgressStyle::Json => Duration::from_secs(1),
            _ => Duration::from_secs(5),
        };
        let mut next = Instant::now() + step;
        let mut state = self.state.lock();
        while !state.ended {
            // Wait in steps shorter than the display interval, so that an interruption is answered at once.
            let until = next.min(Instant::now() + Duration::from_millis(200));
            self.wake.wait_until(&mut state, until);
            if self.cancel.is_cancelled() && !state.told_interrupted {
                state.told_interrupted = true;
                self.tell("interrupted: stopping where the store is consistent; once more stops at once");
            }
            if Instant::now() >= next && !state.ended {
                self.show_once(&state);
                next = Instant::now() + step;
            }
        }
    }

    fn tell(&self, sentence: &str) {
        match &self.bar {
            Some(bar) => bar.println(sentence),
            None => self.output.notice(sentence),
        }
    }

    fn show_once(&self, state: &StageProgress) {
        let Some(stage) = state.stage else { return };
        let (done, stored) = (self.done.load(Ordering::Relaxed), self.stored.load(Ordering::Relaxed));
        let seconds = state.stage_began.elapsed().as_secs_f64();
        match self.style {
            ProgressStyle::None => {}
            ProgressStyle::Json => self.output.message(
                "status",
                json!({
                    "stage": stage_word(stage),
                    "what": state.what,
                    "done": done,
                    "total": state.total,
                    "stored_bytes": stored,
                    "seconds": (seconds * 1000.0).round() / 1000.0,
                }),
            ),
            ProgressStyle::Bar => {
                let Some(bar) = &self.bar else { return };
                bar.set_message(format!("{} {}", stage_word(stage), state.what));
                bar.set_prefix(saved(stage, done, stored));
                bar.set_position(done);
            }
            ProgressStyle::Lines => write_err(&format!("{}\n", line(stage, state, done, stored, seconds))),
        }
    }
}

fn line(stage: Stage, state: &StageProgress, done: u64, stored: u64, seconds: f64) -> String {
    let mut line = format!("{} {}: ", stage_word(stage), state.what);
    let count = |n: u64| {
        if counts_bytes(stage) { human::bytes(n) } else { n.to_string() }
    };
    line.push_str(&count(done));
    if state.total > 0 {
        line.push_str(&format!(
            " of {} ({:.0} %)",
            count(state.total),
            // A disk that is written during the backup may have more to read than was announced.
            (done as f64 * 100.0 / state.total as f64).min(100.0)
        ));
    }
    if seconds > 0.0 && done > 0 {
        let rate = done as f64 / seconds;
        line.push_str(&format!(", {}/s", count(rate as u64)));
        if state.total > done {
            line.push_str(&format!(", {} left", human::seconds((state.total - done) as f64 / rate)));
        }
    }
    line.push_str(&savings(stage, done, stored));
    line
}

/// Share that deduplication and compression have saved so far.
fn savings(stage: Stage, done: u64, stored: u64) -> String {
    if stage != Stage::Read || done == 0 {
        return String::new();
    }
    let stored_words = human::bytes(stored);
    format!(", stored {stored_words} ({})", saved(stage, done, stored).trim_start_matches(", "))
}

/// The same as a short share, since a bar has one line.
fn saved(stage: Stage, done: u64, stored: u64) -> String {
    if stage != Stage::Read || done == 0 {
        return String::new();
    }
    let saved = 100.0 - (stored as f64 * 100.0 / done as f64).min(100.0);
    format!(", {saved:.0} % saved")
}

#[cfg(test)]
mod tests {
    use super::{Stage, StageProgress, line, savings};
    use std::time::Instant;

    #[test]
    fn savings_are_the_bytes_read_but_not_stored() {
        assert_eq!(savings(Stage::Read, 100, 25), ", stored 25 B (75 % saved)");
        assert_eq!(savings(Stage::Read, 100, 130), ", stored 130 B (0 % saved)");
        assert_eq!(savings(Stage::Read, 0, 0), "");
    }

    /// Symptom: `103 %` of a disk that was written during the read.
    /// Cause: the total is announced before the read. Fix: the share is at most 100 %.
    #[test]
    fn the_share_is_100_percent_beyond_the_announced_total() {
        let state = StageProgress {
            stage: Some(Stage::Read),
            what: "web".to_owned(),
            total: 200,
            stage_began: Instant::now(),
            ended: false,
            told_interrupted: false,
        };
        let shown = |done| line(Stage::Read, &state, done, 50, 2.0);
        assert_eq!(
            shown(100),
            "read web: 100 B of 200 B (50 %), 50 B/s, 2.00 s left, stored 50 B (50 % saved)"
        );
        assert_eq!(shown(206), "read web: 206 B of 200 B (100 %), 103 B/s, stored 50 B (76 % saved)");
    }
}
