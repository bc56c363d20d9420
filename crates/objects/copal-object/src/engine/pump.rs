//! The pump: submits and delivers with the mutex released, and takes completions in.
//!
//! Design: docs/design/object.md#driving

use crate::{
    checkpoint::{checkpoint_written, superblock_written},
    engine::steps::advance,
    state::{StoreCore, StoreState, Tag},
};
use copal_device::{DeviceError, Io, IoDone};
use parking_lot::MutexGuard;
use std::{sync::Arc, time::Duration};

/// How long a waiter on a driven device sleeps before it looks again. Only tests have driven devices.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Takes what is to be submitted and delivered, and does it with the mutex released. A hook that runs
/// inside a submission leaves its own consequences on the queue for the pump that is already running on
/// this thread.
pub(crate) fn pump(store: &Arc<StoreCore>) {
    thread_local! {
        static PUMPING: std::cell::Cell<*const ()> = const { std::cell::Cell::new(std::ptr::null()) };
    }
    let this: *const () = Arc::as_ptr(store).cast();
    let before = PUMPING.get();
    if before == this {
        return;
    }
    PUMPING.set(this);
    loop {
        let (outbox, deliveries) = {
            let mut state = store.state.lock();
            advance(store, &mut state);
            (std::mem::take(&mut state.outbox), std::mem::take(&mut state.deliveries))
        };
        store.changed.notify_all();
        if outbox.is_empty() && deliveries.is_empty() {
            break;
        }
        for (tag, ios) in outbox {
            submit(store, tag, ios);
        }
        deliveries.into_iter().for_each(|deliver| deliver());
    }
    PUMPING.set(before);
}

fn submit(store: &Arc<StoreCore>, tag: Tag, ios: Vec<Io>) {
    let inner = Arc::clone(store);
    store.device.submit(ios).on_complete(move |done: Vec<IoDone>| {
        let result = done.into_iter().try_for_each(|done| done.result);
        completed(&inner, tag, result);
        pump(&inner);
    });
}

/// Releases the mutex until something may have changed.
pub(crate) fn wait_change(store: &Arc<StoreCore>, state: &mut MutexGuard<'_, StoreState>) {
    if let Some(driver) = &store.driver {
        let drove = MutexGuard::unlocked(state, || {
            pump(store);
            driver.drive()
        });
        if !drove {
            store.changed.wait_for(state, LOOK_AGAIN);
        }
        return;
    }
    if state.outbox.is_empty() && state.deliveries.is_empty() {
        store.changed.wait(state);
    } else {
        MutexGuard::unlocked(state, || pump(store));
    }
}

/// An I/O has completed. Takes the mutex; the caller pumps afterwards.
fn completed(store: &Arc<StoreCore>, tag: Tag, result: Result<(), DeviceError>) {
    let mut state = store.state.lock();
    if let Tag::Discard { run } = tag {
        if let Err(error) = &result {
            tracing::warn!(%error, "space that nothing uses was not given back");
        }
        let epoch = state.epochs.open;
        state.space.allocator.discarded(run, result.is_ok(), epoch);
        return;
    }
    if let Err(error) = result {
        tracing::error!(%error, ?tag, "a write or flush failed; the store takes no more writes");
        state.failure.get_or_insert(error);
    }
    match tag {
        Tag::Data { group, epoch, runs, bytes } => {
            for run in &runs {
                state.in_flight.remove(&run.at);
            }
            state.in_flight_bytes -= bytes;
            state.epochs.end_write(epoch);
            if state.failure.is_none() {
                state.groups.end_write(group);
            }
        }
        Tag::Record { group, epoch } => {
            state.groups.records -= 1;
            state.epochs.end_write(epoch);
            if state.failure.is_none() {
                state.groups.end_write(group);
            }
        }
        Tag::Frame { stream, ticket, epoch, run, bytes } => {
            state.in_flight.remove(&run.at);
            state.in_flight_bytes -= bytes;
            state.epochs.end_write(epoch);
            if state.failure.is_none() {
                state.frame_written(stream, ticket);
            }
        }
        Tag::Flush { epoch } => {
            if state.failure.is_none() {
                flush_completed(&mut state, epoch);
            }
        }
        Tag::Checkpoint => {
            if state.failure.is_none() {
                checkpoint_written(&mut state);
            }
        }
        Tag::Discard { .. } => {}
        Tag::Superblock => {
            if state.failure.is_none() {
                superblock_written(store, &mut state);
            }
        }
    }
}

fn flush_completed(state: &mut StoreState, epoch: u64) {
    state.epochs.end_flush(epoch);
    let flushed = state.epochs.flushed;
    state.space.allocator.flushed(flushed);
    state.frames_flushed(flushed);
}
