//! A device for salvage: unreadable and cut-off blocks read as zeros.
//!
//! Every byte of a store is covered by a checksum, so zeros are noticed where they matter. A read of a
//! thousand good blocks does not fail because of one bad block among them.
//! Invariants
//! - Nothing is written.
//! - A block that the system cannot read at this time is an error, not zeros: it may be intact.

use copal_device::{
    AlignedBuf, Completion, CompletionDriver, Device, DeviceCounters, DeviceError, Geometry, Io, IoDone,
    IoKind,
};
use std::sync::Arc;

const BLOCK: usize = 4096;

/// The device below, with lenient reads.
pub(crate) struct LenientDevice {
    below: Arc<dyn Device>,
}

impl LenientDevice {
    pub(crate) fn over(below: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(LenientDevice { below })
    }

    fn read(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        let len = buf.len();
        if let Ok(read) = self.below.read_now(at, buf) {
            return Ok(read);
        }
        let mut out = AlignedBuf::zeroed(len);
        for (index, block) in out.chunks_mut(BLOCK).enumerate() {
            let from = at + (index * BLOCK) as u64;
            match self.below.read_again(from, block.len()) {
                Ok(read) => block.copy_from_slice(&read),
                Err(error) if error.is_passing() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(out)
    }
}

impl Device for LenientDevice {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let done = ios.into_iter().map(|io| match io.kind {
            IoKind::Read(buf) => match self.read(io.at, buf) {
                Ok(read) => IoDone { result: Ok(()), buf: Some(read) },
                Err(error) => IoDone { result: Err(error), buf: None },
            },
            IoKind::Flush => IoDone { result: Ok(()), buf: None },
            other => IoDone { result: Err(DeviceError::ReadOnly), buf: other.into_buf() },
        });
        Completion::ready(done.collect())
    }

    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.read(at, buf)
    }

    fn write_through(&self, _at: u64, _buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        Err(DeviceError::ReadOnly)
    }

    fn grow(&self, _size: u64) -> Result<u64, DeviceError> {
        Err(DeviceError::ReadOnly)
    }

    fn can_grow(&self) -> bool {
        false
    }

    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }

    fn drive(&self) -> bool {
        self.below.drive()
    }

    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        self.below.driver()
    }

    fn engine(&self) -> &'static str {
        self.below.engine()
    }
}
