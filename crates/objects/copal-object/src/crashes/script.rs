//! Random histories: actions on a store, and lives that end by kills and power losses.

use super::{
    check::{check, outcome},
    model::{AckPromise, LineFrame, PromisedCommit, StoreModel},
    stores::{
        SimWorld, empty_store, fault_device, nearly_full_store, open, store_in_segments,
        store_with_long_records, store_with_long_tables, tuning,
    },
    streams,
};
use crate::{
    Ack, BackendKind, FramePos, Lsn, Store, StoreError,
    flaw::BrokenRule,
    open::OpenOverrides,
    state::{cleaner::CleanerTrigger, inline_pages::InlineLimits},
};
use copal_device::{
    Completion,
    crash::{self, StateLimits},
};
pub(super) use copal_testkit::Random;

/// Parameters of one history.
pub(super) struct HistoryPlan {
    pub(super) seed: u64,
    pub(super) broken: BrokenRule,
    pub(super) states: usize,
    /// Long lives of ordered commits and few completions: the journal fills while a checkpoint is in
    /// progress.
    pub(super) busy: bool,
    /// `Cow` or `Log`.
    pub(super) backend: BackendKind,
}

const PAGE_BYTES: usize = 4096;

/// Pages of a chunk that is discarded.
const DISCARD_PAGES: u64 = 1;

/// A pending acknowledgement.
pub(super) enum AwaitedAck {
    Commit(u64, Ack, Completion<Result<Lsn, StoreError>>),
    Frame(LineFrame, Ack, Completion<Result<FramePos, StoreError>>),
}

pub(super) struct HistoryRunner<'a> {
    pub(super) plan: &'a HistoryPlan,
    pub(super) random: Random,
    pub(super) model: StoreModel,
    pub(super) world: SimWorld,
    pub(super) store: Store,
    pub(super) awaited: Vec<AwaitedAck>,
    eager: bool,
    mount_by_checkpoint: bool,
    /// Free space is discarded; the device is no file then.
    pub(super) discards: bool,
    pub(super) next_stream: u64,
    /// Object of the next commit beside a frame; each is used once.
    pub(super) next_beside: u64,
    /// Events before this one are outside the model.
    pub(super) start: usize,
}

/// Number of tried states.
#[derive(Default)]
pub(super) struct TriedStates {
    pub(super) all: usize,
    /// Those of lives in which the cleaner moved pages.
    pub(super) cleaned: usize,
}

/// In two of five histories small commits have their data in records. A store that is nearly full has no room there.
fn has_inline_data(plan: &HistoryPlan) -> bool {
    plan.backend == BackendKind::Cow && plan.seed % 5 < 2
}

/// Pages are placed soon, or by checkpoints alone.
fn inline_limits(plan: &HistoryPlan) -> InlineLimits {
    let placing_bytes = if plan.seed.is_multiple_of(5) { 2 * PAGE_BYTES } else { 1 << 20 };
    match has_inline_data(plan) {
        true => InlineLimits { data_bytes: 64 << 10, placing_bytes },
        false => InlineLimits::default(),
    }
}

/// Runs one history and enumerates its end. Returns the first violation.
pub(super) fn run(plan: &HistoryPlan) -> Result<TriedStates, String> {
    let mut random = Random::new(plan.seed.wrapping_mul(0x1234_5677).wrapping_add(77));
    let eager = random.one_in(2);
    let mount_by_checkpoint = random.one_in(8);
    let full = random.one_in(4);
    let image = match plan.backend {
        BackendKind::Log => store_in_segments(),
        _ if full => nearly_full_store(),
        _ if plan.seed % 3 == 1 => store_with_long_tables(),
        _ if has_inline_data(plan) => store_with_long_records(),
        _ => empty_store(),
    };
    let discards = plan.seed % 4 == 2;
    let device = fault_device(image, random.below(1 << 40), !discards);
    let tuning = OpenOverrides {
        discard_pages: discards.then_some(DISCARD_PAGES),
        inline: Some(inline_limits(plan)),
        ..tuning(plan.broken, eager, mount_by_checkpoint, random.below(1 << 40))
    };
    let store = open(device.clone(), tuning).map_err(|error| format!("first open: {error}"))?;
    let mut runner = HistoryRunner::new(plan, random, SimWorld::Device(device), store);
    (runner.eager, runner.mount_by_checkpoint, runner.discards) = (eager, mount_by_checkpoint, discards);
    let lives = 1 + runner.random.below(4);
    for life in 0..lives {
        let last = life + 1 == lives;
        let actions = if plan.busy { 60 } else { 3 + runner.random.below(14) };
        for _ in 0..actions {
            runner.action();
        }
        if last {
            break;
        }
        if runner.random.one_in(3) {
            runner.kill()?;
        } else {
            runner.power_loss()?;
        }
    }
    runner.enumerate()
}

impl<'a> HistoryRunner<'a> {
    pub(super) fn new(
        plan: &'a HistoryPlan,
        random: Random,
        world: SimWorld,
        store: Store,
    ) -> HistoryRunner<'a> {
        HistoryRunner {
            plan,
            random,
            model: StoreModel::new(),
            start: world.step(),
            world,
            store,
            awaited: Vec::new(),
            eager: false,
            mount_by_checkpoint: false,
            discards: false,
            next_stream: 100,
            next_beside: 10_000,
        }
    }
}

impl HistoryRunner<'_> {
    /// For a store in which the history goes on.
    pub(super) fn tuning(&mut self) -> OpenOverrides {
        let seed = self.random.below(1 << 40);
        OpenOverrides {
            discard_pages: self.discards.then_some(DISCARD_PAGES),
            inline: Some(inline_limits(self.plan)),
            ..tuning(self.plan.broken, self.eager, self.mount_by_checkpoint, seed)
        }
    }

    /// For a store that is compared with the model: nothing is committed there.
    pub(super) fn checked_tuning(&mut self) -> OpenOverrides {
        OpenOverrides { cleaner_trigger: CleanerTrigger::Never, ..self.tuning() }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let first = self.random.below(1 << 32);
        let byte = |i: u64| (first.wrapping_mul(i / 7 + 3).wrapping_add(i * 13) >> 3) as u8;
        let mut bytes: Vec<u8> = (0..len as u64).map(byte).collect();
        if first.is_multiple_of(2) {
            sum_pages(&mut bytes);
        }
        bytes
    }

    pub(super) fn ack(&mut self) -> Ack {
        if self.plan.busy && !self.random.one_in(8) {
            return Ack::Ordered;
        }
        match self.random.below(5) {
            0 | 1 => Ack::Ordered,
            2 => Ack::Written,
            _ => Ack::Durable,
        }
    }

    /// Records the acknowledgements so far.
    pub(super) fn poll(&mut self) {
        let step = self.world.step();
        let mut left = Vec::new();
        for mut awaited in std::mem::take(&mut self.awaited) {
            let (done, what, ack) = match &mut awaited {
                AwaitedAck::Commit(lsn, ack, completion) => {
                    let done = completion.try_take().map(|result| result.map(drop));
                    (done, PromisedCommit::Commit { lsn: *lsn }, *ack)
                }
                AwaitedAck::Frame(frame, ack, completion) => {
                    let done = completion.try_take().map(|result| result.map(drop));
                    (done, PromisedCommit::Frame(*frame), *ack)
                }
            };
            match done {
                Some(Ok(())) if ack != Ack::Ordered => {
                    self.model.promises.push(AckPromise { step, what, durable: ack == Ack::Durable });
                }
                Some(_) => {}
                None => left.push(awaited),
            }
        }
        self.awaited = left;
    }

    pub(super) fn drive(&mut self, events: u64) {
        for _ in 0..events {
            let more = self.world.drive();
            self.poll();
            if !more {
                break;
            }
        }
    }

    pub(super) fn action(&mut self) {
        if self.plan.busy {
            self.transaction();
            self.poll();
            let events = self.random.below(4);
            self.drive(events);
            return;
        }
        match self.random.below(12) {
            0..=4 => self.transaction(),
            5 | 6 => streams::frame(self),
            7 => self.publish(),
            8 => {
                let durable = self.random.one_in(2);
                if durable {
                    let events = 1 + self.random.below(30);
                    self.drive(events);
                }
            }
            9 if self.plan.seed % 4 == 3 && self.random.one_in(2) => {
                self.store.write_clean_mark().expect("an idle store is marked");
                assert!(!self.store.write_clean_mark().expect("twice"), "a marked store needs no mark");
            }
            10 if self.random.one_in(3) => match self.store.shrink() {
                Ok(_) | Err(StoreError::NoSpace { .. } | StoreError::Unsupported { .. }) => {}
                Err(error) => panic!("the store does not shrink: {error}"),
            },
            9 => {
                let last = self.store.inner.state.lock().commit.last_lsn();
                let (lsn, ack) = (last, Ack::Durable);
                let completion = self.store.sync(Lsn(last)).map(move |result| result.map(|()| Lsn(last)));
                self.awaited.push(AwaitedAck::Commit(lsn, ack, completion));
            }
            _ => {
                let events = self.random.below(6);
                self.drive(events);
            }
        }
        self.poll();
        if self.random.one_in(3) {
            let events = self.random.below(4);
            self.drive(events);
        }
    }

    /// Drops the waiters of a dead process.
    pub(super) fn forget_awaited(&mut self) {
        self.awaited.clear();
    }

    /// The process dies; the device keeps its content.
    fn kill(&mut self) -> Result<(), String> {
        self.poll();
        let step = self.world.step();
        self.forget_awaited();
        let device = self.world.device().reopen();
        let tuning = self.tuning();
        let store = open(device.clone(), tuning).map_err(|error| format!("after a kill: {error}"))?;
        let history = device.history();
        // Power is lost while the next process recovers: data that the kill left was not durable yet
        // (OBJ-11).
        for cut in crash::cuts(&history).filter(|cut| cut.step() >= step) {
            let states = cut.states(&StateLimits { exhaustive: 6, samples: 16, seed: 3 });
            let all = states.count_all();
            for _ in 0..all.min(10) {
                let index = self.random.below(all);
                let Some(state) = states.get(index) else { break };
                let tuning = self.checked_tuning();
                let survivor = open(state.device(), tuning)
                    .map_err(|error| format!("power loss after a kill: {error}; {}", state.describe()))?;
                let found = outcome(&survivor);
                check(&survivor, &found, &self.model, step, true).map_err(|violation| {
                    format!("power loss after a kill: {violation}; {}", state.describe())
                })?;
            }
        }
        self.world = SimWorld::Device(device);
        self.continue_with(store, step, false)
    }

    /// Power is lost; the device is left in one of its possible states.
    fn power_loss(&mut self) -> Result<(), String> {
        self.poll();
        let history = self.world.device().history();
        let step = history.len();
        let limits = StateLimits { exhaustive: 8, samples: 64, seed: self.random.below(1 << 40) };
        let states = crash::states(&history, step, &limits);
        let index = self.random.below(states.count_all());
        let state = states.get(index).ok_or("no such state")?;
        self.awaited.clear();
        let device = fault_device(state.image().clone(), self.random.below(1 << 40), !self.discards);
        let tuning = self.tuning();
        let store = open(device.clone(), tuning)
            .map_err(|error| format!("after a power loss: {error}; {}", state.describe()))?;
        self.world = SimWorld::Device(device);
        self.continue_with(store, step, true)
    }

    pub(super) fn continue_with(
        &mut self,
        store: Store,
        step: usize,
        durable_only: bool,
    ) -> Result<(), String> {
        self.store = store;
        let outcome = outcome(&self.store);
        check(&self.store, &outcome, &self.model, step, durable_only)?;
        self.model.recovered_to(outcome.lsn, &outcome.ends);
        self.start = self.world.step();
        Ok(())
    }
}

// Symptom: after a power loss a page of another version passed for the acknowledged one (OBJ-1), if both ended with
// their own CRC32C, as blocks of databases and file systems do. Cause: the stored sum was a CRC32C of the page, which is
// the same for all such pages. Fix: sums over a hash of each page.
/// Ends each whole page with its CRC32C.
fn sum_pages(bytes: &mut [u8]) {
    for page in bytes.chunks_exact_mut(PAGE_BYTES) {
        let (content, sum) = page.split_at_mut(PAGE_BYTES - 4);
        sum.copy_from_slice(&copal_codec::crc32c(0, content).to_le_bytes());
    }
}
