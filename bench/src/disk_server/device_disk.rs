//! `DeviceDisk`: a device as the disk of an NBD export, with ranges of any bytes.
//!
//! A range that covers a block partly is read, changed and written. Two such writes follow one another, so that
//! neither loses bytes of the other. A range longer than the longest command is several commands that wait
//! together.

use copal_device::{AlignedBuf, Device, DeviceError, Io, IoClass, IoDone, IoKind};
use copal_nbd::{
    BASE_ALLOCATION,
    server::{DiskError, DiskExports, ExportDisk, StatusRun},
};
use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// A device behind an export.
pub(crate) struct DeviceDisk {
    device: Arc<dyn Device>,
    ignores_flushes: bool,
    partial_blocks: Mutex<()>,
}

impl DeviceDisk {
    pub(crate) fn new(device: Arc<dyn Device>) -> DeviceDisk {
        DeviceDisk { device, ignores_flushes: false, partial_blocks: Mutex::new(()) }
    }

    /// A disk that answers flushes at once, for controls of power cuts.
    pub(crate) fn ignoring_flushes(device: Arc<dyn Device>) -> DeviceDisk {
        DeviceDisk { ignores_flushes: true, ..DeviceDisk::new(device) }
    }

    fn block(&self) -> u64 {
        u64::from(self.device.geometry().logical_block)
    }

    /// The whole blocks around a range.
    fn around(&self, offset: u64, len: u64) -> Range<u64> {
        offset / self.block() * self.block()..(offset + len).next_multiple_of(self.block())
    }

    fn submit(&self, ios: Vec<(u64, IoKind)>) -> Result<Vec<IoDone>, DiskError> {
        let foreground = |(at, kind)| Io { at, kind, class: IoClass::Foreground };
        let done = self.device.submit(ios.into_iter().map(foreground).collect()).wait();
        match done.iter().find_map(|done| done.result.as_ref().err()) {
            None => Ok(done),
            Some(DeviceError::HostFull { .. }) => Err(DiskError::NoSpace),
            Some(_) => Err(DiskError::Damaged),
        }
    }

    /// The longest commands that cover whole blocks.
    fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let longest = u64::from(self.device.geometry().max_io) / self.block() * self.block();
        let end = range.end;
        range.step_by(usize::try_from(longest).unwrap_or(usize::MAX)).map(move |at| at..end.min(at + longest))
    }

    fn read_blocks(&self, range: Range<u64>) -> Result<Vec<u8>, DiskError> {
        let reads = self.pieces(range).map(|piece| {
            let buf = AlignedBuf::zeroed(usize::try_from(piece.end - piece.start).unwrap_or(0));
            (piece.start, IoKind::Read(buf))
        });
        let mut bytes = Vec::new();
        for done in self.submit(reads.collect())? {
            bytes.extend_from_slice(done.buf.as_deref().unwrap_or_default());
        }
        Ok(bytes)
    }

    fn write_blocks(&self, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let writes = self.pieces(at..at + bytes.len() as u64).map(|piece| {
            let part = &bytes[(piece.start - at) as usize..(piece.end - at) as usize];
            (piece.start, IoKind::Write { buf: AlignedBuf::padded(part, 1), fua: false })
        });
        self.submit(writes.collect()).map(drop)
    }

    /// Changes a range that does not cover whole blocks.
    fn change(&self, offset: u64, len: u64, change: impl FnOnce(&mut [u8])) -> Result<(), DiskError> {
        let range = self.around(offset, len);
        let _turn = self.partial_blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = self.read_blocks(range.clone())?;
        let begin = (offset - range.start) as usize;
        change(&mut bytes[begin..begin + len as usize]);
        self.write_blocks(range.start, &bytes)
    }
}

impl ExportDisk for DeviceDisk {
    fn size_bytes(&self) -> u64 {
        self.device.geometry().size
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        let range = self.around(offset, buf.len() as u64);
        let begin = (offset - range.start) as usize;
        let bytes = self.read_blocks(range)?;
        buf.copy_from_slice(&bytes[begin..begin + buf.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        let len = data.len() as u64;
        match self.around(offset, len) == (offset..offset + len) {
            true => self.write_blocks(offset, data),
            false => self.change(offset, len, |bytes| bytes.copy_from_slice(data)),
        }
    }

    fn zero(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let inside = offset.next_multiple_of(self.block())..(offset + len) / self.block() * self.block();
        if inside.start >= inside.end {
            return self.change(offset, len, |bytes| bytes.fill(0));
        }
        for edge in [offset..inside.start, inside.end..offset + len] {
            if !edge.is_empty() {
                self.change(edge.start, edge.end - edge.start, |bytes| bytes.fill(0))?;
            }
        }
        self.submit(vec![(inside.start, IoKind::WriteZeroes(inside.end - inside.start))]).map(drop)
    }

    fn trim(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let unit = u64::from(self.device.geometry().discard_unit);
        if unit == 0 {
            return Ok(());
        }
        let inside = offset.next_multiple_of(unit)..(offset + len) / unit * unit;
        if inside.start >= inside.end {
            return Ok(());
        }
        self.submit(vec![(inside.start, IoKind::Discard(inside.end - inside.start))]).map(drop)
    }

    fn flush(&self) -> Result<(), DiskError> {
        if self.ignores_flushes { Ok(()) } else { self.submit(vec![(0, IoKind::Flush)]).map(drop) }
    }

    fn run_at(&self, context: &str, _offset: u64, len: u64) -> Result<StatusRun, DiskError> {
        if context == BASE_ALLOCATION { Ok(StatusRun { len, flags: 0 }) } else { Err(DiskError::Damaged) }
    }
}

/// The only disk of a server.
pub(crate) struct DiskExport(pub(crate) Arc<DeviceDisk>);

impl DiskExports for DiskExport {
    fn names(&self) -> Vec<String> {
        vec![String::new()]
    }

    fn find(&self, name: &str) -> Option<Arc<dyn ExportDisk>> {
        name.is_empty().then(|| self.0.clone() as Arc<dyn ExportDisk>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_device::MemoryDevice;
    use copal_testkit::Random;

    /// Reads, writes and zeros of any range, compared with a vector.
    #[test]
    fn any_range_is_served_as_of_a_disk_of_bytes() {
        const BYTES: usize = 4 << 20;
        let disk = DeviceDisk::new(MemoryDevice::new(BYTES as u64));
        let mut model = vec![0; BYTES];
        let mut random = Random::new(1);
        for step in 0..400 {
            let at = random.index(BYTES);
            let len = [5, 5000, 1_300_000][step % 3].min(BYTES - at);
            let (offset, range) = (at as u64, at..at + len);
            match random.index(4) {
                0 => {
                    disk.zero(offset, len as u64).unwrap();
                    model[range].fill(0);
                }
                1 | 2 => {
                    let bytes = random.bytes(len);
                    disk.write_at(offset, &bytes).unwrap();
                    model[range].copy_from_slice(&bytes);
                }
                _ => {
                    let mut found = vec![1; len];
                    disk.read_at(offset, &mut found).unwrap();
                    assert!(found == model[range], "step {step}: {len} bytes at {at}");
                }
            }
        }
        disk.trim(4096, 100).unwrap();
        disk.trim(1, 3 * 4096).unwrap();
        let mut found = vec![0; 4096];
        disk.read_at(0, &mut found).unwrap();
        assert_eq!(found, model[..4096], "a trim takes whole blocks only");
    }
}
