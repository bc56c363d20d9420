//! Reads a spool batch by batch.
//!
//! Format: docs/formats/agent-detector.md

use super::format::{
    BATCH_HEAD_LEN, BatchHead, FilePartition, FormatError, SPOOL_HEAD_LEN, decode_spool_head,
};
use super::limits::BUFFER_BYTES;
use copal_backup::peers::ShortId;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use tracing::warn;

/// Reads batches from a spool, one head ahead. Damage ends the reading, and is logged.
pub(crate) struct SpoolReader {
    path: PathBuf,
    partition: u32,
    file: BufReader<File>,
    next: Option<(BatchHead, [u8; BATCH_HEAD_LEN])>,
    /// Bytes before the first incomplete batch.
    whole_bytes: u64,
    /// Bytes of the file.
    len: u64,
}

impl SpoolReader {
    pub(crate) fn open(file: File, path: &Path, belongs: FilePartition) -> SpoolReader {
        let len = file.metadata().map_or(0, |metadata| metadata.len());
        let mut reader = SpoolReader {
            path: path.to_owned(),
            partition: belongs.partition,
            file: BufReader::with_capacity(BUFFER_BYTES, file),
            next: None,
            whole_bytes: 0,
            len,
        };
        let mut head = [0; SPOOL_HEAD_LEN];
        let read = reader.file.read_exact(&mut head).map_err(FormatError::from);
        match read.and_then(|()| decode_spool_head(&head)) {
            Ok(found) if found == belongs => {
                reader.whole_bytes = SPOOL_HEAD_LEN as u64;
                reader.read_head();
            }
            Ok(found) => reader.tell(&format!("it is of {found:?}")),
            Err(error) => reader.tell(&error.to_string()),
        }
        reader
    }

    /// Bytes up to the end of the last batch that was taken; 0 if even the head of the file is invalid.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Unread bytes; bounds the number of further requests.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.len.saturating_sub(self.whole_bytes)
    }

    /// The next batch.
    pub(crate) fn peek(&self) -> Option<&BatchHead> {
        self.next.as_ref().map(|(head, _)| head)
    }

    /// Takes the next batch. Its ids are passed to `visit`; they are invalid if `None` is returned.
    pub(crate) fn take(&mut self, mut visit: impl FnMut(ShortId)) -> Option<BatchHead> {
        let (head, bytes) = self.next.take()?;
        let mut sum = BatchHead::start_sum(&bytes);
        let mut id: ShortId = [0; 16];
        for _ in 0..head.ids {
            if let Err(error) = self.file.read_exact(&mut id) {
                self.tell(&error.to_string());
                return None;
            }
            sum.update(&id);
            visit(id);
        }
        if sum.digest() != head.sum {
            self.tell("the sum of a batch is wrong");
            return None;
        }
        self.whole_bytes += BATCH_HEAD_LEN as u64 + u64::from(head.ids) * size_of::<ShortId>() as u64;
        self.read_head();
        Some(head)
    }

    fn read_head(&mut self) {
        if self.whole_bytes == self.len {
            return;
        }
        let mut bytes = [0; BATCH_HEAD_LEN];
        let read = self.file.read_exact(&mut bytes).map_err(FormatError::from);
        match read.and_then(|()| BatchHead::decode(self.partition, &bytes)) {
            Ok(head) => self.next = Some((head, bytes)),
            Err(error) => self.tell(&error.to_string()),
        }
    }

    fn tell(&self, what: &str) {
        let (path, from) = (self.path.display(), self.whole_bytes);
        warn!(%path, from, what, "requests lost, their senders ask again");
    }
}
