//! The spool file of a part: the ids of each batch, then their positions. It has no name, and disappears with
//! the process.

use super::split::{ASK_IDS, SplitEntry};
use copal_backup::peers::ShortId;
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

const ID_BYTES: usize = size_of::<ShortId>();
const POSITION_BYTES: usize = 4;

/// Reads batches of a part, from any thread.
#[derive(Clone, Debug)]
pub(super) struct BatchSpool(Arc<File>);

/// Writes batches of a part, one after another.
pub(super) struct SpoolWriter {
    file: BufWriter<Arc<File>>,
    len: u64,
}

/// An empty spool file in `folder`.
pub(super) fn create(folder: &Path) -> io::Result<(BatchSpool, SpoolWriter)> {
    let file = Arc::new(tempfile::tempfile_in(folder)?);
    let writer = SpoolWriter {
        file: BufWriter::with_capacity(ASK_IDS * (ID_BYTES + POSITION_BYTES), Arc::clone(&file)),
        len: 0,
    };
    Ok((BatchSpool(file), writer))
}

impl SpoolWriter {
    /// Appends a batch; returns its offset. It can be read after [`SpoolWriter::flush`].
    pub(super) fn append(&mut self, batch: &[SplitEntry]) -> io::Result<u64> {
        for entry in batch {
            self.file.write_all(&entry.id)?;
        }
        for entry in batch {
            self.file.write_all(&entry.position.to_le_bytes())?;
        }
        let at = self.len;
        self.len += (batch.len() * (ID_BYTES + POSITION_BYTES)) as u64;
        Ok(at)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl BatchSpool {
    /// Ids of the batch of `count` ids at `at`.
    pub(super) fn ids(&self, at: u64, count: usize) -> io::Result<Vec<ShortId>> {
        let mut ids = vec![[0; ID_BYTES]; count];
        self.0.read_exact_at(ids.as_flattened_mut(), at)?;
        Ok(ids)
    }

    /// Positions of these ids in their part.
    pub(super) fn positions(&self, at: u64, count: usize) -> io::Result<Vec<u32>> {
        let mut bytes = vec![[0; POSITION_BYTES]; count];
        let at = at + (count * ID_BYTES) as u64;
        self.0.read_exact_at(bytes.as_flattened_mut(), at)?;
        Ok(bytes.into_iter().map(u32::from_le_bytes).collect())
    }
}
