//! A device in memory: I/Os complete in `submit`, and all data is lost at the end of the process.
//!
//! It replaces a real device in tests of upper layers. Crashes and faults belong to the fault device.

use crate::device::tally::IoTally;
use crate::device::{check_inside, check_io, check_range};
use crate::error::DeviceError;
use crate::{
    AlignedBuf, Completion, Device, DeviceCounters, Geometry, Image, Io, IoDone, IoKind, PageCache,
    ZonedModel,
};
use parking_lot::RwLock;
use std::sync::Arc;

/// Content of discarded bytes in memory. Anything may be read there; a pattern exposes callers that rely on the
/// old bytes.
pub(crate) const DISCARDED: u8 = 0xd5;

/// Geometry of devices in memory: 4 KiB blocks, durable at once, discards of a block or more.
pub(crate) fn memory_geometry(size: u64) -> Geometry {
    Geometry {
        size,
        logical_block: 4096,
        dma_alignment: 512,
        max_io: 1 << 20,
        volatile_cache: true,
        fua: true,
        discard_unit: 4096,
        gives_back: true,
        zoned: ZonedModel::None,
        zone_bytes: 0,
        rotational: false,
    }
}

/// A device in memory. Each I/O completes before `submit` returns.
pub struct MemoryDevice {
    image: RwLock<Image>,
    max_size: u64,
    tally: IoTally,
}

impl MemoryDevice {
    /// `size` zero bytes, a multiple of 4096; grows without limit.
    ///
    /// # Panics
    /// When `size` is not a multiple of 4096.
    #[expect(clippy::new_ret_no_self, reason = "callers want the trait object")]
    pub fn new(size: u64) -> Arc<dyn Device> {
        MemoryDevice::from_image(Image::zeroed(size), u64::MAX)
    }

    /// A device that holds `image` and refuses to grow beyond `max_size` bytes.
    ///
    /// # Panics
    /// When the size of the image is not a multiple of 4096.
    #[must_use]
    pub fn from_image(image: Image, max_size: u64) -> Arc<dyn Device> {
        assert!(image.size().is_multiple_of(4096), "the size of a device is a multiple of its block");
        Arc::new(MemoryDevice { image: RwLock::new(image), max_size, tally: IoTally::default() })
    }

    fn run(&self, io: Io) -> IoDone {
        let mut kind = io.kind;
        let result = self.apply(io.at, &mut kind);
        IoDone { result, buf: kind.into_buf() }
    }

    fn apply(&self, at: u64, kind: &mut IoKind) -> Result<(), DeviceError> {
        match kind {
            IoKind::Read(buf) => self.image.read().read(at, buf),
            IoKind::Write { buf, .. } => self.image.write().write(at, buf),
            IoKind::Flush => {}
            IoKind::Discard(len) => self.image.write().fill(at, *len, DISCARDED),
            IoKind::WriteZeroes(len) => self.image.write().fill(at, *len, 0),
        }
        self.tally.count(kind);
        Ok(())
    }
}

impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        memory_geometry(self.image.read().size())
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let geometry = self.geometry();
        let done = ios.into_iter().map(|io| match check_io(&geometry, &io) {
            Ok(()) => self.run(io),
            Err(error) => IoDone { result: Err(error), buf: io.kind.into_buf() },
        });
        Completion::ready(done.collect())
    }

    fn read_now(&self, at: u64, mut buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        check_range(&self.geometry(), "read", at, buf.len() as u64)?;
        self.image.read().read(at, &mut buf);
        self.tally.read(buf.len());
        Ok(buf)
    }

    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        check_range(&self.geometry(), "write", at, buf.len() as u64)?;
        self.image.write().write(at, &buf);
        self.tally.write(buf.len(), true);
        Ok(buf)
    }

    fn can_grow(&self) -> bool {
        self.image.read().size() < self.max_size
    }

    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        let mut image = self.image.write();
        let have = image.size();
        let wanted = size.next_multiple_of(4096);
        if wanted <= have {
            return Ok(have);
        }
        if wanted > self.max_size {
            return Err(DeviceError::CannotGrow { size: have, wanted, reason: "its limit is reached" });
        }
        image.resize(wanted);
        Ok(wanted)
    }

    fn cut(&self, size: u64) -> Result<u64, DeviceError> {
        let mut image = self.image.write();
        let wanted = size.next_multiple_of(4096).min(image.size());
        image.resize(wanted);
        Ok(wanted)
    }

    fn reserve(&self, at: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.geometry(), "reserve", at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.tally.counters()
    }

    fn drive(&self) -> bool {
        false
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        Some(self)
    }
}

impl PageCache for MemoryDevice {
    fn write_cached(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_inside(&self.geometry(), "cached write", at, bytes.len() as u64)?;
        self.image.write().write(at, bytes);
        Ok(())
    }

    fn read_cached(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        check_inside(&self.geometry(), "cached read", at, out.len() as u64)?;
        self.image.read().read(at, out);
        Ok(())
    }
}
