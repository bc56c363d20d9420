//! Spools: received requests that are not yet compared, one file per partition.
//!
//! Format: docs/formats/agent-detector.md
//! Invariants
//! - A spool in comparison has another name; new requests go to a new spool.
//! - A spool of an earlier process is truncated after its last complete batch before anything is appended.
//!
//! Spools are not flushed: the sender of a lost request asks again.

use super::batch::BatchHeader;
use super::error::{BatchRefusal, DetectError, Result};
use super::file_name::{self, COMPARED, SPOOL, remove};
use super::format::{BATCH_HEAD_LEN, FilePartition, SPOOL_HEAD_LEN, encode_spool_head, put_batch};
use super::spool_reader::SpoolReader;
use copal_backup::peers::ShortId;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The spools of a detector.
pub(crate) struct SpoolFiles {
    dir: PathBuf,
    bits: u8,
    most_bytes: u64,
    /// State of partitions that have requests.
    waiting: BTreeMap<u32, WaitingRequests>,
    /// Bytes of all spools.
    total_bytes: u64,
}

/// Requests of one partition, in two files.
#[derive(Clone, Copy, Default)]
struct WaitingRequests {
    /// Length of the growing spool.
    bytes: u64,
    /// Length of the spool in comparison.
    compared_bytes: u64,
    /// Whether the growing spool ends with a complete batch.
    is_whole: bool,
}

impl WaitingRequests {
    fn total_bytes(&self) -> u64 {
        self.bytes + self.compared_bytes
    }
}

impl SpoolFiles {
    pub(crate) fn new(dir: &Path, bits: u8, most_bytes: u64) -> SpoolFiles {
        SpoolFiles { dir: dir.to_owned(), bits, most_bytes, waiting: BTreeMap::new(), total_bytes: 0 }
    }

    /// Adds a spool that an earlier process left.
    pub(crate) fn found(&mut self, partition: u32, is_compared: bool, bytes: u64) {
        let mut waiting = self.of(partition);
        match is_compared {
            true => waiting.compared_bytes = bytes,
            false => waiting.bytes = bytes,
        }
        self.set(partition, waiting);
    }

    fn of(&self, partition: u32) -> WaitingRequests {
        self.waiting.get(&partition).copied().unwrap_or_default()
    }

    fn set(&mut self, partition: u32, waiting: WaitingRequests) {
        self.total_bytes -= self.of(partition).total_bytes();
        self.total_bytes += waiting.total_bytes();
        match waiting.total_bytes() {
            0 => self.waiting.remove(&partition),
            _ => self.waiting.insert(partition, waiting),
        };
    }

    /// Partitions that have requests, ascending.
    pub(crate) fn partitions(&self) -> Vec<u32> {
        self.waiting.keys().copied().collect()
    }

    fn path(&self, prefix: &str, partition: u32) -> PathBuf {
        file_name::path(&self.dir, prefix, self.belongs(partition))
    }

    fn belongs(&self, partition: u32) -> FilePartition {
        FilePartition { bits: self.bits, partition }
    }

    /// Appends a batch to the spool of its partition.
    pub(crate) fn append(
        &mut self,
        header: &BatchHeader,
        ids: &[ShortId],
    ) -> std::result::Result<(), BatchRefusal> {
        let path = self.path(SPOOL, header.partition);
        let belongs = self.belongs(header.partition);
        let mut waiting = self.of(header.partition);
        if !waiting.is_whole || fs::metadata(&path).map_or(0, |file| file.len()) != waiting.bytes {
            waiting.bytes = cut_to_whole_batches(&path, belongs)?;
            self.set(header.partition, waiting);
        }
        let mut bytes = Vec::with_capacity(SPOOL_HEAD_LEN + BATCH_HEAD_LEN + size_of_val(ids));
        if waiting.bytes == 0 {
            bytes.extend(encode_spool_head(belongs));
        }
        put_batch(&mut bytes, header, ids);
        let before = waiting.bytes;
        if self.total_bytes + bytes.len() as u64 > self.most_bytes {
            return Err(BatchRefusal::SpoolFull { spooled_bytes: self.total_bytes });
        }
        waiting.bytes += bytes.len() as u64;
        waiting.is_whole = false;
        self.set(header.partition, waiting);
        append_to(&path, before, &bytes).map_err(|source| DetectError::io("append to", &path, source))?;
        waiting.is_whole = true;
        self.set(header.partition, waiting);
        Ok(())
    }

    /// Sets the requests of a partition apart for a comparison: first those of an unfinished earlier one.
    /// `None`: there are none.
    pub(crate) fn set_apart(&mut self, partition: u32) -> Result<Option<ComparedSpool>> {
        let Some(had) = self.waiting.get(&partition).copied() else {
            return Ok(None);
        };
        let compared = self.path(COMPARED, partition);
        if had.compared_bytes > 0 {
            if let Some(reader) = self.open(&compared, partition)? {
                let more_follows = had.bytes > 0;
                return Ok(Some(ComparedSpool { reader, more_follows }));
            }
            self.forget_compared(partition)?;
        }
        let spool = self.path(SPOOL, partition);
        match fs::rename(&spool, &compared) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(DetectError::io("rename", &spool, source));
            }
            // The file was deleted meanwhile, so its requests get no answer.
            _ => {}
        }
        let apart = WaitingRequests { compared_bytes: had.bytes, ..WaitingRequests::default() };
        self.set(partition, apart);
        let Some(reader) = self.open(&compared, partition)? else {
            self.forget_compared(partition)?;
            return Ok(None);
        };
        let more_follows = false;
        Ok(Some(ComparedSpool { reader, more_follows }))
    }

    fn open(&self, path: &Path, partition: u32) -> Result<Option<SpoolReader>> {
        match File::open(path) {
            Ok(file) => Ok(Some(SpoolReader::open(file, path, self.belongs(partition)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DetectError::io("open", path, source)),
        }
    }

    /// Removes the spool of a finished comparison.
    pub(crate) fn forget_compared(&mut self, partition: u32) -> Result<()> {
        remove(&self.path(COMPARED, partition))?;
        let waiting = WaitingRequests { compared_bytes: 0, ..self.of(partition) };
        self.set(partition, waiting);
        Ok(())
    }
}

/// Requests in comparison.
pub(crate) struct ComparedSpool {
    pub(crate) reader: SpoolReader,
    /// These requests are left from an earlier comparison; newer ones wait.
    pub(crate) more_follows: bool,
}

/// Writes at the end of a file of `len` bytes; after a failure it tries to remove the written part.
fn append_to(path: &Path, len: u64, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.write_all(bytes).inspect_err(|_| {
        let _ = file.set_len(len);
    })
}

/// Truncates the file after the last complete batch; returns the remaining length, 0 if none.
fn cut_to_whole_batches(path: &Path, belongs: FilePartition) -> Result<u64> {
    let failed = |source| DetectError::io("look through", path, source);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(source) => return Err(failed(source)),
    };
    let mut reader = SpoolReader::open(file, path, belongs);
    while reader.peek().is_some() {
        reader.take(|_| {});
    }
    let len = reader.whole_bytes();
    match len {
        0 => remove(path)?,
        len => {
            OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(len)).map_err(failed)?
        }
    }
    Ok(len)
}
