//! One progress for a check that reads the store four times, layer by layer: one total, one time that is
//! left.
//!
//! Packs are read as packs, then every file, then every table and value of the engine, then every byte that
//! stands under a checksum.
//!
//! Invariant: what is done never exceeds what was announced, and equals it when the check has looked at
//! everything.

use copal_backup::{Progress, Stage};
use parking_lot::Mutex;

/// Layers below the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckLayer {
    /// Files.
    Volumes,
    /// Tables and values of the engine.
    Engine,
    /// Every byte under a checksum.
    Objects,
}

/// How many they are.
const BELOW: u64 = 3;

/// Passes progress on, with the layers below in the total.
pub(super) struct CheckProgress<'a> {
    to: &'a dyn Progress,
    /// Bytes in use, which each layer below reads about once; 0 when only structure is looked at.
    store_bytes: u64,
    state: Mutex<WalkProgress>,
}

#[derive(Default)]
struct WalkProgress {
    /// The total was announced, and no other stage since.
    is_announced: bool,
    /// Bytes of the packs.
    packs_bytes: u64,
    /// Done of the total.
    done: u64,
    /// Where the layer began and ends within the total.
    layer: (u64, u64),
}

impl CheckProgress<'_> {
    pub(super) fn new(to: &dyn Progress, read_data: bool, store_bytes: u64) -> CheckProgress<'_> {
        CheckProgress { to, store_bytes: if read_data { store_bytes } else { 0 }, state: Mutex::default() }
    }

    /// A layer begins; whatever the one before has not counted is done.
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
            // Damage was traced to its snapshots in between.
            state.is_announced = true;
            (state.packs_bytes, state.done) = (0, 0);
            self.to.stage(Stage::ReadData, "store", BELOW * self.store_bytes);
        }
        let layers = match layer {
            CheckLayer::Volumes => 0,
            CheckLayer::Engine => 1,
            CheckLayer::Objects => 2,
        };
        let start = state.packs_bytes + layers * self.store_bytes;
        state.layer = (start, start + self.store_bytes);
        self.advance_to(&mut state, start);
    }

    /// So many bytes of the layer are done.
    pub(super) fn reached(&self, bytes: u64) {
        let mut state = self.state.lock();
        let (start, end) = state.layer;
        // Meanwhile nothing is written, yet sums and padding are not counted alike everywhere.
        self.advance_to(&mut state, start.saturating_add(bytes).min(end));
    }

    /// The last layer is done.
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
            self.to.stage(stage, "store", total + BELOW * self.store_bytes);
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
    struct Told(Mutex<(Vec<(Stage, u64)>, u64)>);

    impl Progress for Told {
        fn stage(&self, stage: Stage, _what: &str, total: u64) {
            let mut told = self.0.lock();
            told.0.push((stage, total));
            told.1 = 0;
        }
        fn advance(&self, delta: u64) {
            self.0.lock().1 += delta;
        }
    }

    /// Symptom: `check --read-data` of a large store stood at `walk store` for most of its time, without a
    /// total.
    /// Cause: only the first of the three readings was counted. Fix: one total for all of them.
    #[test]
    fn all_that_is_read_is_announced_once_and_done_in_the_end() {
        let told = Told::default();
        let walk = CheckProgress::new(&told, true, 100);
        walk.stage(Stage::Walk, "snapshots", 2);
        walk.advance(2);
        walk.stage(Stage::ReadData, "packs", 80);
        walk.advance(50);
        walk.advance(30);
        walk.below(CheckLayer::Volumes);
        walk.reached(70);
        assert_eq!(told.0.lock().1, 150);
        walk.below(CheckLayer::Engine);
        assert_eq!(told.0.lock().1, 180);
        walk.reached(60);
        assert_eq!(told.0.lock().1, 240);
        walk.below(CheckLayer::Objects);
        assert_eq!(told.0.lock().1, 280);
        walk.reached(40);
        walk.reached(140);
        walk.end();
        let told = told.0.into_inner();
        assert_eq!(told.0, [(Stage::Walk, 2), (Stage::ReadData, 380)]);
        assert_eq!(told.1, 380);
    }

    #[test]
    fn what_comes_in_between_is_no_part_of_it() {
        let told = Told::default();
        let walk = CheckProgress::new(&told, true, 100);
        walk.stage(Stage::ReadData, "packs", 80);
        walk.stage(Stage::Walk, "snapshots that are hurt", 0);
        walk.below(CheckLayer::Volumes);
        walk.below(CheckLayer::Objects);
        walk.end();
        let told = told.0.into_inner();
        assert_eq!(told.0.last(), Some(&(Stage::ReadData, 300)));
        assert_eq!(told.1, 300);
        // Structure only: nothing is known of how much there is.
        let told = Told::default();
        let walk = CheckProgress::new(&told, false, 100);
        walk.stage(Stage::ReadData, "packs", 0);
        walk.below(CheckLayer::Volumes);
        walk.reached(70);
        walk.end();
        assert_eq!(told.0.into_inner().1, 0);
    }
}
