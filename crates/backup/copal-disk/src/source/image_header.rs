//! Header of a qcow2 image: geometry, locations of the tables, names of other files.
//!
//! QEMU's documentation specifies the format (docs/interop/qcow2).
//! Invariant: no number of a header sizes an allocation or a read before it is compared with QEMU's limits.
//! Not here: checking the tables (`image_check`), reading the disk (`qcow2`).

use super::chain::MAGIC;
use std::{fs::File, io, os::unix::fs::FileExt};

/// Length of a version 3 header without optional fields.
const HEADER_BYTES: usize = 104;
/// QEMU's limit on the name of a backing file.
const MAX_NAME_BYTES: u32 = 1023;
/// Header extensions end within the first cluster; at most this many bytes of it are read.
const MAX_EXTENSIONS_BYTES: u64 = 64 << 10;
const BACKING_FORMAT: u32 = 0xe279_2aca;
const DATA_FILE: u32 = 0x4441_5441;

/// Incompatible features.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const HAS_DATA_FILE: u64 = 1 << 2;
const HAS_SUBCLUSTERS: u64 = 1 << 4;
/// These features and the compression type.
const KNOWN: u64 = 0x1f;
/// Autoclear feature: the data file is also a raw disk.
const DATA_FILE_IS_RAW: u64 = 1 << 1;

/// Decoded header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageHeader {
    pub(super) cluster_bits: u32,
    pub(super) disk_bytes: u64,
    pub(super) l1_entries: u32,
    pub(super) l1_at: u64,
    pub(super) refcounts_at: u64,
    pub(super) refcount_clusters: u32,
    pub(super) snapshots: u32,
    pub(super) snapshots_at: u64,
    features: u64,
    lossy_features: u64,
    /// Name of the backing file, as stored.
    pub(super) backing: Option<String>,
    pub(super) backing_format: Option<String>,
    pub(super) data_file: Option<String>,
}

impl ImageHeader {
    /// Reads the header; returns `None` if the file is not a qcow2 image of version 2 or 3.
    /// # Errors
    /// A sentence without its subject: the header is truncated or contradictory.
    pub(super) fn read(file: &File) -> io::Result<Result<Option<ImageHeader>, String>> {
        let mut bytes = [0; HEADER_BYTES];
        let length = read_up_to(file, &mut bytes, 0)?;
        if bytes[..4] != MAGIC {
            return Ok(Ok(None));
        }
        let version = u32_at(&bytes, 4);
        let least = if version == 2 { 72 } else { HEADER_BYTES };
        if length < least {
            return Ok(Err("ends within its header".into()));
        }
        if version != 2 && version != 3 {
            return Ok(Ok(None));
        }
        let mut header = ImageHeader {
            cluster_bits: u32_at(&bytes, 20),
            disk_bytes: u64_at(&bytes, 24),
            l1_entries: u32_at(&bytes, 36),
            l1_at: u64_at(&bytes, 40),
            refcounts_at: u64_at(&bytes, 48),
            refcount_clusters: u32_at(&bytes, 56),
            snapshots: u32_at(&bytes, 60),
            snapshots_at: u64_at(&bytes, 64),
            ..ImageHeader::default()
        };
        if !(9..=21).contains(&header.cluster_bits) {
            return Ok(Err(format!("has clusters of 2^{} bytes", header.cluster_bits)));
        }
        let mut extensions_at = 72;
        if version == 3 {
            header.features = u64_at(&bytes, 72);
            header.lossy_features = u64_at(&bytes, 88);
            extensions_at = u64::from(u32_at(&bytes, 100));
        }
        let (name_at, name_bytes) = (u64_at(&bytes, 8), u32_at(&bytes, 16));
        if name_at > 0 && name_bytes > 0 {
            if name_bytes > MAX_NAME_BYTES {
                return Ok(Err(format!("names an image behind it with {name_bytes} bytes")));
            }
            let mut name = vec![0; name_bytes as usize];
            if read_up_to(file, &mut name, name_at)? < name.len() {
                return Ok(Err("ends within the name of the image behind it".into()));
            }
            header.backing = Some(String::from_utf8_lossy(&name).into_owned());
        }
        let end = match name_at {
            0 => header.cluster_bytes(),
            name_at => name_at.min(header.cluster_bytes()),
        };
        header.read_extensions(file, extensions_at, end.min(MAX_EXTENSIONS_BYTES))?;
        Ok(Ok(Some(header)))
    }

    fn read_extensions(&mut self, file: &File, start: u64, end: u64) -> io::Result<()> {
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        let length = read_up_to(file, &mut bytes, start)?;
        let mut rest = &bytes[..length];
        while rest.len() >= 8 {
            let (kind, length) = (u32_at(rest, 0), u32_at(rest, 4) as usize);
            let Some(content) = rest.get(8..8 + length).filter(|_| kind != 0) else {
                break;
            };
            let text = || Some(String::from_utf8_lossy(content).into_owned());
            match kind {
                BACKING_FORMAT => self.backing_format = text(),
                DATA_FILE => self.data_file = text(),
                _ => {}
            }
            rest = rest.get(8 + length.next_multiple_of(8)..).unwrap_or_default();
        }
        Ok(())
    }

    pub(super) fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// The last writer did not close the image.
    pub(super) fn is_dirty(&self) -> bool {
        self.features & DIRTY != 0
    }

    /// QEMU has found contradictions in it.
    pub(super) fn is_corrupt(&self) -> bool {
        self.features & CORRUPT != 0
    }

    /// The clusters are in another file.
    pub(super) fn has_data_file(&self) -> bool {
        self.features & HAS_DATA_FILE != 0
    }

    /// The data file holds every byte of the disk at its disk offset.
    pub(super) fn is_data_file_raw(&self) -> bool {
        self.has_data_file() && self.lossy_features & DATA_FILE_IS_RAW != 0
    }

    pub(super) fn has_subclusters(&self) -> bool {
        self.features & HAS_SUBCLUSTERS != 0
    }

    /// Whether this program understands all features of the tables.
    pub(super) fn is_known(&self) -> bool {
        self.features & !KNOWN == 0
    }
}

/// Reads until the buffer is full or the file ends; returns the number of bytes.
pub(super) fn read_up_to(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        let Some(place) = at.checked_add(done as u64).filter(|place| i64::try_from(*place).is_ok()) else {
            break;
        };
        match file.read_at(&mut buf[done..], place) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
    field.map_or(0, u32::from_be_bytes)
}

/// A big-endian number; 0 if the bytes end before it.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
    field.map_or(0, u64::from_be_bytes)
}
