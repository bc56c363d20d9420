//! A value that arrives later: `wait()` for threads, `Future` for any executor.
//!
//! A [`Completer`] delivers the value of its [`Completion`]. A state machine on completions (the object
//! store's group commit) registers its next step with [`Completion::on_complete`] and needs no thread.
//!
//! Invariants
//! - The value is delivered once, to one of: `wait`, `try_take`, the future, or the hook.
//! - Dropping a completion detaches: the operation continues, keeps its buffers, and its value is dropped.
//! - A hook runs outside every lock of this module, on the thread that delivers the value.
//! - A delivering thread never waits for a completion, since it could be the one to deliver it. Such a wait
//!   panics instead of hanging.
//! - Dropping a completer without delivery is a bug of its owner. The waiter panics instead of waiting for
//!   ever, and a hook is dropped, so a chain of `map`s ends the same way.

use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A device without a thread (fault device, emulated device). Waiting threads run its events.
pub trait CompletionDriver: Send + Sync {
    /// Runs the next pending event; `false` when there is none.
    fn drive(&self) -> bool;
}

/// Poll interval of a waiter on a driven device: another thread may have queued an event and left. Only tests
/// have driven devices.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

thread_local! {
    static DELIVERS: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one that delivers completions.
pub(crate) fn enter_delivering_thread() {
    DELIVERS.set(true);
}

/// Whether this thread delivers completions.
pub(crate) fn is_delivering_thread() -> bool {
    DELIVERS.get()
}

type Hook<T> = Box<dyn FnOnce(T) + Send>;

enum SlotState<T> {
    Pending { hook: Option<Hook<T>>, waker: Option<Waker> },
    Ready(T),
    Taken,
    Abandoned,
}

struct CompletionSlot<T> {
    state: Mutex<SlotState<T>>,
    changed: Condvar,
    driver: Option<Arc<dyn CompletionDriver>>,
}

/// A value that arrives later. Dropping it detaches the operation.
#[must_use = "dropping a completion detaches its operation; wait for it or register a hook"]
pub struct Completion<T> {
    source: ValueSource<T>,
}

enum ValueSource<T> {
    Ready(Option<T>),
    Waiting(Arc<CompletionSlot<T>>),
}

/// The delivering end of a [`Completion`].
pub struct Completer<T> {
    slot: Option<Arc<CompletionSlot<T>>>,
}

// A completion moves its value out and never pins it.
impl<T> Unpin for Completion<T> {}

impl<T> Completion<T> {
    /// A completion that already has its value.
    pub fn ready(value: T) -> Completion<T> {
        Completion { source: ValueSource::Ready(Some(value)) }
    }

    /// A completion and its completer. With a `driver`, a waiting thread runs the driver's events.
    pub fn pair(driver: Option<Arc<dyn CompletionDriver>>) -> (Completer<T>, Completion<T>) {
        let state = Mutex::new(SlotState::Pending { hook: None, waker: None });
        let slot = Arc::new(CompletionSlot { state, changed: Condvar::new(), driver });
        let completer = Completer { slot: Some(Arc::clone(&slot)) };
        (completer, Completion { source: ValueSource::Waiting(slot) })
    }

    /// Blocks until the value arrives. On a driven device this runs its events.
    ///
    /// # Panics
    /// When the value was taken before, or its completer was dropped without delivery.
    pub fn wait(mut self) -> T {
        loop {
            if let Some(value) = self.try_take() {
                return value;
            }
            let ValueSource::Waiting(slot) = &self.source else {
                panic!("the value of this completion was taken before");
            };
            slot.block();
        }
    }

    /// The value if it has arrived. Runs no events and never blocks.
    pub fn try_take(&mut self) -> Option<T> {
        match &mut self.source {
            ValueSource::Ready(value) => value.take(),
            ValueSource::Waiting(slot) => slot.take(),
        }
    }

    /// Whether the value has arrived and was not taken.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match &self.source {
            ValueSource::Ready(value) => value.is_some(),
            ValueSource::Waiting(slot) => matches!(*slot.state.lock(), SlotState::Ready(_)),
        }
    }
}

impl<T: Send + 'static> Completion<T> {
    /// Calls `hook` with the value: at once on this thread if it has arrived, otherwise on the delivering
    /// thread (a device's own).
    /// The caller must hold no lock that `hook` takes. `hook` must neither block nor wait for another
    /// completion; it may submit.
    ///
    /// # Panics
    /// When the value was taken before.
    pub fn on_complete(self, hook: impl FnOnce(T) + Send + 'static) {
        match self.source {
            ValueSource::Ready(Some(value)) => hook(value),
            ValueSource::Ready(None) => panic!("the value of this completion was taken before"),
            ValueSource::Waiting(slot) => slot.hang(hook),
        }
    }

    /// A completion of `change` applied to the value; `change` runs like a hook.
    pub fn map<U: Send + 'static>(self, change: impl FnOnce(T) -> U + Send + 'static) -> Completion<U> {
        match self.source {
            ValueSource::Ready(Some(value)) => Completion::ready(change(value)),
            ValueSource::Ready(None) => panic!("the value of this completion was taken before"),
            ValueSource::Waiting(slot) => {
                let (completer, mapped) = Completion::pair(slot.driver.clone());
                slot.hang(move |value| completer.complete(change(value)));
                mapped
            }
        }
    }

    /// All values in the order of `parts`, once the last has arrived.
    pub fn join(parts: Vec<Completion<T>>) -> Completion<Vec<T>> {
        let driver = parts.iter().find_map(|part| match &part.source {
            ValueSource::Ready(_) => None,
            ValueSource::Waiting(slot) => Some(slot.driver.clone()),
        });
        let Some(driver) = driver else {
            return Completion::ready(parts.into_iter().map(Completion::wait).collect());
        };
        let (completer, joined) = Completion::pair(driver);
        let missing = parts.len();
        let gather = Arc::new(Mutex::new(CompletionGather {
            values: (0..missing).map(|_| None).collect(),
            missing,
            completer: Some(completer),
        }));
        for (index, part) in parts.into_iter().enumerate() {
            let gather = Arc::clone(&gather);
            part.on_complete(move |value| CompletionGather::put(&gather, index, value));
        }
        joined
    }
}

struct CompletionGather<T> {
    values: Vec<Option<T>>,
    missing: usize,
    completer: Option<Completer<Vec<T>>>,
}

impl<T> CompletionGather<T> {
    fn put(gather: &Mutex<CompletionGather<T>>, index: usize, value: T) {
        let mut inside = gather.lock();
        inside.values[index] = Some(value);
        inside.missing -= 1;
        if inside.missing > 0 {
            return;
        }
        let all = std::mem::take(&mut inside.values).into_iter().flatten().collect();
        let completer = inside.completer.take();
        drop(inside);
        if let Some(completer) = completer {
            completer.complete(all);
        }
    }
}

impl<T> CompletionSlot<T> {
    fn take(&self) -> Option<T> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Ready(value) => Some(value),
            SlotState::Taken => panic!("the value of this completion was taken before"),
            SlotState::Abandoned => panic!("an operation was dropped before it completed"),
            pending @ SlotState::Pending { .. } => {
                *state = pending;
                None
            }
        }
    }

    /// Returns when the state may have changed.
    fn block(&self) {
        let driven = match &self.driver {
            Some(driver) if driver.drive() => return,
            driver => driver.is_some(),
        };
        assert!(
            driven || !is_delivering_thread(),
            "a completion's hook waits for another completion, which this very thread may have to deliver"
        );
        let mut state = self.state.lock();
        if !matches!(*state, SlotState::Pending { .. }) {
            return;
        }
        if driven {
            self.changed.wait_for(&mut state, LOOK_AGAIN);
        } else {
            self.changed.wait(&mut state);
        }
    }

    fn hang(&self, hook: impl FnOnce(T) + Send + 'static)
    where
        T: 'static,
    {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Pending { waker, .. } => {
                *state = SlotState::Pending { hook: Some(Box::new(hook)), waker }
            }
            SlotState::Ready(value) => {
                drop(state);
                hook(value);
            }
            SlotState::Taken => panic!("the value of this completion was taken before"),
            SlotState::Abandoned => {}
        }
    }
}

impl<T> Completer<T> {
    /// Delivers `value`; runs a registered hook on this thread.
    pub fn complete(mut self, value: T) {
        let Some(slot) = self.slot.take() else { return };
        let mut state = slot.state.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Pending { hook: Some(hook), .. } => {
                drop(state);
                hook(value);
            }
            SlotState::Pending { hook: None, waker } => {
                *state = SlotState::Ready(value);
                drop(state);
                slot.changed.notify_all();
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            settled => *state = settled,
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let mut state = slot.state.lock();
        if let SlotState::Pending { hook, waker } = std::mem::replace(&mut *state, SlotState::Abandoned) {
            drop(state);
            slot.changed.notify_all();
            if let Some(waker) = waker {
                waker.wake();
            }
            drop(hook);
        }
    }
}

impl<T> Future for Completion<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        loop {
            if let Some(value) = self.try_take() {
                return Poll::Ready(value);
            }
            let ValueSource::Waiting(slot) = &self.source else {
                panic!("the value of this completion was taken before");
            };
            if slot.driver.as_ref().is_some_and(|driver| driver.drive()) {
                continue;
            }
            if let SlotState::Pending { waker, .. } = &mut *slot.state.lock() {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
    }
}

impl<T> std::fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion").field("ready", &self.is_ready()).finish()
    }
}

impl<T> std::fmt::Debug for Completer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
