//! A device with reads that fail with a system error.
//!
//! Not here: latent sector errors, and errors of writes and flushes (`copal_device::fault`).

use copal_device::{
    AlignedBuf, Completion, CompletionDriver, Device, DeviceClock, DeviceCounters, DeviceError, Geometry, Io,
    IoDone, IoKind, PageCache,
};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// A device whose reads with numbers in a range fail. Reads are counted from 0; the read of one range counts
/// once.
pub struct FailingReads {
    below: Arc<dyn Device>,
    fails: Range<u64>,
    errno: i32,
    reads: AtomicU64,
}

impl FailingReads {
    /// Wraps `below`; its reads with numbers in `fails` fail with the system error `errno`.
    pub fn over(below: Arc<dyn Device>, fails: Range<u64>, errno: i32) -> Arc<FailingReads> {
        Arc::new(FailingReads { below, fails, errno, reads: AtomicU64::new(0) })
    }

    /// Number of reads so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn admit(&self, at: u64, len: u64) -> Result<(), DeviceError> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        match self.fails.contains(&number) {
            true => {
                let source = std::io::Error::from_raw_os_error(self.errno);
                Err(DeviceError::io("read", at, len, source))
            }
            false => Ok(()),
        }
    }
}

impl Device for FailingReads {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let refused = |io: &Io| match &io.kind {
            IoKind::Read(buf) => self.admit(io.at, buf.len() as u64).err(),
            _ => None,
        };
        let refused: Vec<Option<DeviceError>> = ios.iter().map(refused).collect();
        let completion = self.below.submit(ios);
        completion.map(move |done: Vec<IoDone>| {
            let each = done.into_iter().zip(refused);
            each.map(|(done, refused)| match refused {
                Some(error) => IoDone { result: Err(error), buf: done.buf },
                None => done,
            })
            .collect()
        })
    }

    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.admit(at, buf.len() as u64)?;
        self.below.read_now(at, buf)
    }

    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.below.write_through(at, buf)
    }

    fn can_grow(&self) -> bool {
        self.below.can_grow()
    }

    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        self.below.grow(size)
    }

    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }

    fn drive(&self) -> bool {
        self.below.drive()
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        self.below.page_cache()
    }

    fn clock(&self) -> DeviceClock {
        self.below.clock()
    }
    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        self.below.driver()
    }
}
