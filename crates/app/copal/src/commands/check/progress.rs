//! Progress of a check that reads the store twice: one total, and one estimate of the remaining time.
//!
//! The packs are read first, and every byte with a checksum last. In between, files and tables of the engine are
//! checked: of these, only the parts are read that are no packs. They count as nothing.
//!
//! Invariant: the progress never exceeds the announced total, and equals it at the end of the check.

use copal_backup::{Progress, Stage};
use parking_lot::Mutex;

/// Layers below the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckLayer {
    /// Files.
    Volumes,
    /// Tables and values of the engine.
    Engine,
    /// Every byte with a checksum.
    Objects,
}

/// Forwards progress, with the layers below included in the total.
pub(super) struct CheckProgress<'a> {
    to: &'a dyn Progress,
    /// Bytes in use, which the last layer reads about once; 0 if only structure is checked.
    store_bytes: u64,
    state: Mutex<WalkProgress>,
}

#[derive(Default)]
struct WalkProgress {
    /// Whether the total was announced, and no other stage since.
    is_announced: bool,
    /// Bytes of the packs.
    packs_bytes: u64,
    /// Bytes done of the total.
    done: u64,
    /// Start and end of the layer within the total.
    layer: (u64, u64),
}

impl CheckProgress<'_> {
    pub(super) fn new(to: &dyn Progress, read_data: bool, store_bytes: u64) -> CheckProgress<'_> {
        CheckProgress { to, store_bytes: if read_data { store_bytes } else { 0 }, state: Mutex::default() }
    }

    /// Starts a layer; the uncounted rest of the previous one counts as done.
    pub(super) fn below(&self, layer: CheckLayer) {
        if self.store_bytes == 0 {
            let what = match layer {
                CheckLayer::Volumes => "files",
                CheckLayer::Engine => "tables",
                CheckLayer::Objects => "checksums",
            };
            self.to.stage(Stage::Walk, what, 0);
            return;
        }
        let mut state = self.state.lock();
        if !state.is_announced {
            // In between, damage was traced to its snapshots.
            state.is_announced = true;
            (state.packs_bytes, state.done) = (0, 0);
            self.to.stage(Stage::ReadData, "store", self.store_bytes);
        }
        let start = state.packs_bytes;
        let bytes = if layer == CheckLayer::Objects { self.store_bytes } else { 0 };
        state.layer = (start, start + bytes);
        self.advance_to(&mut state, start);
    }

    /// Sets the bytes of the layer that are done.
    pub(super) fn reached(&self, bytes: u64) {
        let mut state = self.state.lock();
        let (start, end) = state.layer;
        // Nothing is written meanwhile, but layers count sums and padding differently.
        self.advance_to(&mut state, start.saturating_add(bytes).min(end));
    }

    /// Ends the last layer.
    pub(super) fn end(&self) {
        self.reached(u64::MAX);
    }

    fn advance_to(&self, state: &mut WalkProgress, done: u64) {
        if done > state.done {
            self.to.advance(done - state.done);
            state.done = done;
        }
    }
}

impl Progress for CheckProgress<'_> {
    fn stage(&self, stage: Stage, what: &str, total: u64) {
        let mut state = self.state.lock();
        *state = WalkProgress::default();
        if stage == Stage::ReadData && self.store_bytes > 0 {
            state.is_announced = true;
            state.packs_bytes = total;
            self.to.stage(stage, "store", total + self.store_bytes);
        } else {
            self.to.stage(stage, what, total);
        }
    }

    fn advance(&self, delta: u64) {
        self.state.lock().done += delta;
        self.to.advance(delta);
    }

    fn stored(&self, delta_bytes: u64) {
        self.to.stored(delta_bytes);
    }

    fn notice(&self, message: &str) {
        self.to.notice(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct StageRecorder(Mutex<(Vec<(Stage, u64)>, u64)>);

    impl Progress for StageRecorder {
        fn stage(&self, stage: Stage, _what: &str, total: u64) {
            let mut recorder = self.0.lock();
            recorder.0.push((stage, total));
            recorder.1 = 0;
        }
        fn advance(&self, delta: u64) {
            self.0.lock().1 += delta;
        }
    }

    /// Symptom: `check --read-data` of a large store stood at `walk store` for most of its time, without a
    /// total.
    /// Cause: only the first of the three reads was counted. Fix: one total for all of them.
    #[test]
    fn all_that_is_read_is_announced_once_and_done_in_the_end() {
        let recorder = StageRecorder::default();
        let walk = CheckProgress::new(&recorder, true, 100);
        walk.stage(Stage::Walk, "snapshots", 2);
        walk.advance(2);
        walk.stage(Stage::ReadData, "packs", 80);
        walk.advance(50);
        walk.advance(30);
        walk.below(CheckLayer::Volumes);
        walk.reached(70);
        walk.below(CheckLayer::Engine);
        walk.reached(60);
        assert_eq!(recorder.0.lock().1, 80);
        walk.below(CheckLayer::Objects);
        walk.reached(40);
        assert_eq!(recorder.0.lock().1, 120);
        walk.reached(140);
        walk.end();
        let recorder = recorder.0.into_inner();
        assert_eq!(recorder.0, [(Stage::Walk, 2), (Stage::ReadData, 180)]);
        assert_eq!(recorder.1, 180);
    }

    #[test]
    fn progress_of_other_stages_does_not_count_as_read_data() {
        let recorder = StageRecorder::default();
        let walk = CheckProgress::new(&recorder, true, 100);
        walk.stage(Stage::ReadData, "packs", 80);
        walk.stage(Stage::Walk, "snapshots that are hurt", 0);
        walk.below(CheckLayer::Volumes);
        walk.below(CheckLayer::Objects);
        walk.end();
        let recorder = recorder.0.into_inner();
        assert_eq!(recorder.0.last(), Some(&(Stage::ReadData, 100)));
        assert_eq!(recorder.1, 100);
        // With structure only, the total is unknown.
        let recorder = StageRecorder::default();
        let walk = CheckProgress::new(&recorder, false, 100);
        walk.stage(Stage::ReadData, "packs", 0);
        walk.below(CheckLayer::Volumes);
        walk.reached(70);
        walk.end();
        assert_eq!(recorder.0.into_inner().1, 0);
    }
}
