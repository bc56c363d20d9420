//! The pump: submits commands and delivers answers with the mutex released, and processes completions.
//!
//! Design: docs/design/object.md#driving

use crate::{
    checkpoint::{chain_page_written, encode_chain_page, superblock_written},
    engine::{
        cleaner::copy::{batch_read, copy_written},
        inline_batch::batch_placed,
        steps::advance,
    },
    flaw::StoreFlaw,
    state::{StoreCore, StoreState, queue::IoPurpose},
};
use copal_device::{DeviceError, Io, IoDone};
use parking_lot::MutexGuard;
use std::{sync::Arc, time::Duration};

/// Poll interval of a waiter on a driven device. Only tests have driven devices.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Submits and delivers all queued work with the mutex released. A hook that runs inside a submission leaves
/// its own work on the queue for the pump that already runs on this thread.
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
    // The thread of one commit does not encode a whole checkpoint: its pages wait for the completions of those
    // before, or for the next caller.
    let mut chain_pages = store.shape.chain_pages_in_flight;
    loop {
        let (batches, answers, encoder, search) = {
            let mut state = store.state.lock();
            advance(store, &mut state);
            let encodes = chain_pages > 0 || state.checkpoint.absorbed().is_some();
            let encoder = if encodes { state.queue.take_encoder() } else { None };
            let (batches, answers) = state.queue.take();
            (batches, answers, encoder, state.queue.take_search())
        };
        store.changed.notify_all();
        if batches.is_empty() && answers.is_empty() && encoder.is_none() && search.is_none() {
            break;
        }
        for (purpose, ios) in batches {
            submit(store, purpose, ios);
        }
        answers.into_iter().for_each(|deliver| deliver());
        if let Some(search) = search {
            let parts = search.run();
            store.state.lock().cleaner.planned(parts);
        }
        if let Some(encoder) = encoder {
            chain_pages = chain_pages.saturating_sub(1);
            submit(store, IoPurpose::ChainPage, encode_chain_page(store, encoder));
        }
    }
    PUMPING.set(before);
}

fn submit(store: &Arc<StoreCore>, purpose: IoPurpose, ios: Vec<Io>) {
    let inner = Arc::clone(store);
    store.device.submit(ios).on_complete(move |done: Vec<IoDone>| {
        match purpose {
            IoPurpose::MoveRead(read) => batch_read(&inner, *read, done),
            purpose => {
                let result = done.into_iter().try_for_each(|done| done.result);
                completed(&inner, purpose, result);
            }
        }
        pump(&inner);
    });
}

/// Releases the mutex until the state may have changed.
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
    if state.queue.is_empty() {
        store.changed.wait(state);
    } else {
        MutexGuard::unlocked(state, || pump(store));
    }
}

/// Processes a completed I/O. Takes the mutex; the caller pumps afterwards.
fn completed(store: &StoreCore, purpose: IoPurpose, result: Result<(), DeviceError>) {
    let mut state = store.state.lock();
    if let IoPurpose::Discard { run } = purpose {
        if let Err(error) = &result {
            tracing::warn!(%error, "unused space was not discarded");
        }
        let epoch = state.commit.open_epoch();
        state.space.discarded(run, result.is_ok(), epoch, store.load());
        return;
    }
    if let Err(error) = result {
        tracing::error!(%error, tag = ?purpose, "a write or flush failed; the store takes no more writes");
        state.fence.fail(error);
    }
    let is_sound = state.fence.failure().is_none();
    match purpose {
        IoPurpose::Data { group, epoch, runs, bytes } => {
            state.commit.end_write(epoch, &runs, bytes);
            if is_sound {
                state.commit.end_group_write(group);
            }
        }
        IoPurpose::SegmentHeader { epoch } => {
            state.commit.end_write(epoch, &[], 0);
            if is_sound {
                state.space.placement_mut().journal_mut().header_written(epoch);
                if store.shape.broken.by(StoreFlaw::HeaderNotFlushed) {
                    state.space.placement_mut().flushed(epoch);
                }
            }
        }
        IoPurpose::Zeros { run } if is_sound => {
            state.space.placement_mut().journal_mut().zeros_written(run);
            // The checkpoint lists one more written zone.
            state.update_checkpoint_reserve();
        }
        IoPurpose::Record { group, epoch, at } => {
            state.commit.end_record(epoch, at);
            if is_sound {
                state.commit.end_group_write(group);
            }
        }
        IoPurpose::Frame { stream, ticket, epoch, run, bytes } => {
            state.commit.end_write(epoch, &[run], bytes);
            if is_sound {
                state.frame_written(stream, ticket);
            }
        }
        IoPurpose::Flush { epoch } if is_sound => {
            let flushed = state.commit.end_flush(epoch);
            state.space.placement_mut().flushed(flushed);
            state.streams.flushed(flushed);
            state.inline.flushed(flushed);
        }
        IoPurpose::MoveWrite { epoch, copy } => {
            state.commit.end_write(epoch, &[copy.to], store.shape.byte(copy.to.pages.into()));
            if is_sound {
                copy_written(&mut state, *copy);
            }
        }
        IoPurpose::Placing { pin } if is_sound => batch_placed(&mut state, pin),
        IoPurpose::ChainPage if is_sound => chain_page_written(&mut state),
        IoPurpose::Superblock if is_sound => superblock_written(store, &mut state),
        IoPurpose::Discard { .. }
        | IoPurpose::Zeros { .. }
        | IoPurpose::Flush { .. }
        | IoPurpose::MoveRead(_)
        | IoPurpose::Placing { .. }
        | IoPurpose::ChainPage
        | IoPurpose::Superblock => {}
    }
}
