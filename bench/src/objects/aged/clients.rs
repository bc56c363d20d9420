//! Clients that wait for durable operations, all on one thread.

use super::store::{AgedStore, DriveState, LOG, SMALL_BYTES, VALUE_BYTES};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use copal_device::{Completion, Device, emulated::DiskModel};
use copal_object::{Ack, FramePos, Lsn, ObjectId, Txn};
use std::time::Duration;

/// Frames that the stream keeps.
const KEPT_FRAMES: u64 = 2000;
const FRAME_BYTES: usize = 120;
const PAGE_BYTES: u64 = 4096;
/// Pages of an object that is overwritten.
const OBJECT_PAGES: u64 = 256;
/// Pages of one transaction that overwrites.
const OVERWRITES: u64 = 32;

/// An operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientOperation {
    /// A durable commit that replaces a small object.
    Commit,
    /// A value in an object of its own, ordered, and a durable frame that comes after it. An older value is deleted.
    Put,
}

/// Commands and time of a number of operations.
pub(super) struct MeasuredWindow {
    pub(super) operations: u64,
    pub(super) time: Duration,
    pub(super) written: u64,
    pub(super) read: u64,
    pub(super) flushes: u64,
    /// Units that the medium of the drive took.
    pub(super) media_writes: u64,
}

impl MeasuredWindow {
    fn between(operations: u64, before: DriveState, after: DriveState) -> MeasuredWindow {
        let commands = after.commands - before.commands;
        MeasuredWindow {
            operations,
            time: after.time - before.time,
            written: commands.write_bytes,
            read: commands.read_bytes,
            flushes: commands.flushes,
            media_writes: after.model.media_writes - before.model.media_writes,
        }
    }

    /// Operations in a second of the drive.
    pub(super) fn rate(&self) -> f64 {
        self.operations as f64 / self.time.as_secs_f64()
    }
}

type Answer = Completion<Result<(), copal_object::StoreError>>;

impl<M: DiskModel + 'static> AgedStore<M> {
    fn begin(&mut self, operation: ClientOperation) -> Result<Answer> {
        match operation {
            ClientOperation::Commit => {
                let (old, len) = self.small.take(&mut self.random).context("no small object is left")?;
                let (txn, id) = self.creation(SMALL_BYTES);
                self.small.put(id, len);
                Ok(self.store.commit(txn.delete(old), Ack::Durable).map(|result| result.map(drop)))
            }
            ClientOperation::Put => {
                let (old, _) = self.values.take(&mut self.random).context("no value is left")?;
                let (txn, id) = self.creation(VALUE_BYTES);
                self.values.put(id, VALUE_BYTES);
                let lsn = self.store.commit(txn.delete(old), Ack::Ordered).wait().context("a value")?;
                let frame = self.content.slice(..FRAME_BYTES);
                let answer = self.store.append_frame(LOG, frame, Some(lsn), Ack::Durable);
                Ok(answer.map(|result| result.map(drop)))
            }
        }
    }

    /// Trims the stream, as an engine does when its log is not needed any more.
    fn trim(&self) -> Result<()> {
        let end = self.store.stat(LOG).map_or(0, |stat| stat.len);
        let upto = FramePos(end.saturating_sub(KEPT_FRAMES));
        self.store.commit(Txn::new().trim_stream(LOG, upto), Ack::Ordered).wait().context("a trim")?;
        Ok(())
    }

    /// Fills `share` of the store with objects of whole pages, then overwrites pages at random: twice as many as there
    /// are, and half as many that are measured.
    pub(super) fn overwrite_pages(&mut self, share: f64) -> Result<MeasuredWindow> {
        let mut objects = Vec::new();
        loop {
            let space = self.store.space();
            if space.live_bytes as f64 >= share * space.size_bytes as f64 {
                break;
            }
            let (txn, id) = self.creation(0);
            let data = Bytes::from(vec![objects.len() as u8; (OBJECT_PAGES * PAGE_BYTES) as usize]);
            self.store.commit(txn.append(id, 0, data), Ack::Ordered).wait().context("filling the store")?;
            objects.push(id);
        }
        let pages = objects.len() as u64 * OBJECT_PAGES;
        self.overwrite(&objects, 2 * pages)?;
        let before = self.state();
        self.overwrite(&objects, pages / 2)?;
        Ok(MeasuredWindow::between(pages / 2, before, self.state()))
    }

    fn overwrite(&mut self, objects: &[ObjectId], pages: u64) -> Result<()> {
        for _ in 0..pages / OVERWRITES {
            let mut txn = Txn::new();
            for _ in 0..OVERWRITES {
                let id = objects[self.random.below(objects.len() as u64) as usize];
                let at = self.random.below(OBJECT_PAGES) * PAGE_BYTES;
                txn = txn.write(id, at, self.content.slice(..PAGE_BYTES as usize));
            }
            self.store.commit(txn, Ack::Ordered).wait().context("overwriting pages")?;
        }
        self.store.sync(Lsn(u64::MAX)).wait().context("flushing")?;
        Ok(())
    }

    /// Runs `count` operations, `clients` of them at any time.
    pub(super) fn measure(
        &mut self,
        operation: ClientOperation,
        clients: usize,
        count: u64,
    ) -> Result<MeasuredWindow> {
        let drive = self.disk.driver().context("the model has no drive")?;
        let before = self.state();
        let mut begun = 0;
        let mut waiting: Vec<Answer> = Vec::new();
        loop {
            while waiting.len() < clients && begun < count {
                waiting.push(self.begin(operation)?);
                begun += 1;
                if operation == ClientOperation::Put && begun % KEPT_FRAMES == 0 {
                    self.trim()?;
                }
            }
            if waiting.is_empty() {
                break;
            }
            let before = waiting.len();
            for mut answer in std::mem::take(&mut waiting) {
                match answer.try_take() {
                    None => waiting.push(answer),
                    Some(ended) => ended.context("an operation")?,
                }
            }
            if waiting.len() == before {
                ensure!(drive.drive(), "a client waits for nothing");
            }
        }
        Ok(MeasuredWindow::between(count, before, self.state()))
    }
}
