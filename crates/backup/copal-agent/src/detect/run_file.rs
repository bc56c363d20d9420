//! Sorted run: a file of rows that is written at once, read from front to back, and never changed.
//!
//! Format: docs/formats/agent-detector.md
//! Invariants
//! - A run has its name only once all of it is durable.
//! - A reader that has read the last row knows that all were correct: the sum is compared before the end is
//!   reported.
//!
//! Not here: the meaning of rows.

use super::error::{DetectError, Result};
use super::file_name::{self, UNFINISHED};
use super::format::{FilePartition, FormatError, ROW_LEN, RUN_HEAD_LEN, RunHead, RunKind, RunRow};
use super::limits::BUFFER_BYTES;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// A run differs from its written content: it is deleted and rebuilt.
#[derive(Debug)]
pub(crate) struct DamagedRun {
    pub(crate) kind: RunKind,
    pub(crate) what: String,
}

/// Reads a run from front to back, one row ahead.
pub(crate) struct RunReader {
    kind: RunKind,
    head: RunHead,
    file: BufReader<File>,
    left: u64,
    sum: Xxh3,
    next: Option<RunRow>,
}

impl RunReader {
    /// Opens a run and reads its first row; `Ok(Ok(None))`: there is no run.
    /// # Errors
    /// The file cannot be opened. The inner error: it is damaged, or belongs to another partition.
    pub(crate) fn open(
        dir: &Path,
        kind: RunKind,
        belongs: FilePartition,
    ) -> Result<std::result::Result<Option<RunReader>, DamagedRun>> {
        let path = file_name::path(dir, kind.file_prefix(), belongs);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(None)),
            Err(source) => return Err(DetectError::io("open", &path, source)),
        };
        let len = file.metadata().map_err(|source| DetectError::io("look at", &path, source))?.len();
        Ok(RunReader::begin(kind, belongs, file, len).map(Some))
    }

    fn begin(
        kind: RunKind,
        belongs: FilePartition,
        file: File,
        len: u64,
    ) -> std::result::Result<RunReader, DamagedRun> {
        let damaged = |what: String| DamagedRun { kind, what };
        let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut bytes = [0; RUN_HEAD_LEN];
        let read = file.read_exact(&mut bytes).map_err(FormatError::from);
        let head =
            read.and_then(|()| RunHead::decode(kind, &bytes)).map_err(|error| damaged(error.to_string()))?;
        if head.belongs != belongs {
            return Err(damaged(format!("it is of {:?}", head.belongs)));
        }
        if head.file_len() != Some(len) {
            return Err(damaged(format!("it has {} rows and {len} bytes", head.rows)));
        }
        let mut reader = RunReader { kind, head, file, left: head.rows, sum: Xxh3::new(), next: None };
        reader.advance()?;
        Ok(reader)
    }

    pub(crate) fn head(&self) -> &RunHead {
        &self.head
    }

    /// The next row; `None` at the end, if the sum is correct.
    pub(crate) fn peek(&self) -> Option<&RunRow> {
        self.next.as_ref()
    }

    /// Takes the next row and reads the following one.
    pub(crate) fn advance(&mut self) -> std::result::Result<Option<RunRow>, DamagedRun> {
        let damaged = |what: String| DamagedRun { kind: self.kind, what };
        let taken = self.next;
        if self.left == 0 {
            self.next = None;
            return match self.sum.digest() == self.head.rows_sum {
                true => Ok(taken),
                false => Err(damaged("the sum of its rows is wrong".into())),
            };
        }
        let mut bytes = [0; ROW_LEN];
        self.file
            .read_exact(&mut bytes)
            .map_err(|error| damaged(format!("its rows cannot be read: {error}")))?;
        self.sum.update(&bytes);
        let row = RunRow::decode(&bytes);
        if taken.is_some_and(|taken| taken >= row) {
            return Err(damaged("its rows do not ascend".into()));
        }
        self.left -= 1;
        self.next = Some(row);
        Ok(taken)
    }

    /// Reads the rest, for its sum.
    pub(crate) fn read_to_end(&mut self) -> std::result::Result<(), DamagedRun> {
        while self.next.is_some() {
            self.advance()?;
        }
        Ok(())
    }
}

/// Writes a run under a temporary name; [`RunWriter::finish`] renames it, and dropping deletes it.
pub(crate) struct RunWriter {
    kind: RunKind,
    belongs: FilePartition,
    path: PathBuf,
    unfinished: PathBuf,
    file: BufWriter<File>,
    rows: u64,
    sum: Xxh3,
}

impl RunWriter {
    pub(crate) fn create(dir: &Path, kind: RunKind, belongs: FilePartition) -> Result<RunWriter> {
        let path = file_name::path(dir, kind.file_prefix(), belongs);
        let unfinished = path.with_added_extension(UNFINISHED);
        let file =
            File::create(&unfinished).map_err(|source| DetectError::io("create", &unfinished, source))?;
        let mut writer = RunWriter {
            kind,
            belongs,
            path,
            unfinished,
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            rows: 0,
            sum: Xxh3::new(),
        };
        let room = [0; RUN_HEAD_LEN];
        writer.file.write_all(&room).map_err(|source| writer.failed(source))?;
        Ok(writer)
    }

    /// Appends a row; rows come in order.
    pub(crate) fn push(&mut self, row: &RunRow) -> Result<()> {
        let bytes = row.encode();
        self.sum.update(&bytes);
        self.rows += 1;
        self.file.write_all(&bytes).map_err(|source| self.failed(source))
    }

    /// Makes the run durable and renames it.
    pub(crate) fn finish(mut self, complete_to: u64) -> Result<()> {
        let head =
            RunHead { belongs: self.belongs, rows: self.rows, complete_to, rows_sum: self.sum.digest() };
        self.place(&head.encode(self.kind)).map_err(|source| self.failed(source))
    }

    fn place(&mut self, head: &[u8]) -> io::Result<()> {
        self.file.flush()?;
        let mut file = self.file.get_ref();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(head)?;
        file.sync_all()?;
        fs::rename(&self.unfinished, &self.path)?;
        let dir = self.path.parent().unwrap_or(Path::new("."));
        File::open(dir)?.sync_all()
    }

    fn failed(&self, source: io::Error) -> DetectError {
        DetectError::io("write", &self.unfinished, source)
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        // Missing once it has been renamed.
        let _ = fs::remove_file(&self.unfinished);
    }
}
