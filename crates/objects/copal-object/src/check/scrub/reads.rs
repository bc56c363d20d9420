//! Reads of a scrub: in the background class, with results by window.

use crate::{
    check::fsck::StoreDamage,
    format::run::PageRun,
    state::{StoreCore, pieces},
};
use copal_device::{AlignedBuf, DeviceError, Io, IoClass, IoDone, IoKind};

/// Bytes of one window, unless a sum covers more.
pub(super) const WINDOW_BYTES: u64 = 1 << 20;

/// Result of one window.
#[derive(Default)]
pub(super) struct WindowResult {
    pub(super) read_bytes: u64,
    pub(super) damages: Vec<StoreDamage>,
}

/// Reads runs in the background class, each with commands of its own. Blocks.
pub(super) fn read_runs(store: &StoreCore, runs: &[PageRun]) -> Vec<Result<AlignedBuf, DeviceError>> {
    let io = |run: &PageRun| Io {
        at: store.shape.byte(run.at),
        kind: IoKind::Read(AlignedBuf::zeroed(run.pages as usize * store.shape.page_bytes)),
        class: IoClass::Background,
    };
    let of_done = |done: IoDone| match (done.result, done.buf) {
        (Ok(()), Some(buf)) => Ok(buf),
        (Err(error), _) => Err(error),
        (Ok(()), None) => Err(DeviceError::Poisoned),
    };
    store.device.submit(runs.iter().map(io).collect()).wait().into_iter().map(of_done).collect()
}

/// Reads one run, of any length, in the background class. Blocks.
pub(super) fn read_run(store: &StoreCore, run: PageRun) -> Result<Vec<u8>, DeviceError> {
    let parts: Vec<PageRun> = pieces(run, store.shape.io_pages()).collect();
    let mut out = Vec::with_capacity(run.pages as usize * store.shape.page_bytes);
    for part in read_runs(store, &parts) {
        out.extend_from_slice(&part?);
    }
    Ok(out)
}
