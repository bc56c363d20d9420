//! The public interface of an open store.
//!
//! Not here: any step of the work; each method names the module that does it.

pub(crate) mod owner;

use crate::{
    Ack, BackendKind, CheckOptions, CreateOptions, DumpSink, FramePos, FrameReader, FreeRange, LogSegments,
    Lsn, MkfsOptions, ObjectId, ObjectKind, ObjectStat, ObjectWriter, OpenOptions, RangeCoverage, RawExtent,
    RecoveryReport, ReservedFrame, ShrinkReport, SpaceReservation, StoreCheckReport, StoreDiscards,
    StoreError, StoreOpenError, StoreOwnership, StoreScrub, StoreSpace, SystemLoan, Txn, WritableSpace,
    backend::hostfs::HostFiles,
    check::{dump::contents, fsck},
    commit::{clean_mark, sync, transaction},
    engine::close,
    format::{run::pages_of, superblock::BACKEND_HOSTFS},
    object::{
        free_range,
        ranges::{self, ObjectRangeSink},
        read,
    },
    open::{self, OpenOverrides, StoreBackend},
    resize::{grow, reservation, shrink},
    state::{StoreCore, entropy::EntropySource, verified_ranges::VerifiedRanges},
    stream::{append, raw_extent},
    tables::{ObjectTables, TableEntry},
};
use bytes::Bytes;
use copal_device::{Completion, Device, DeviceCounters, DeviceError, IoClass, probe::DeviceProfile};
use std::{ops::Range, path::Path, sync::Arc};

/// Bounds of read-ahead.
const READ_AHEAD_BYTES_LEAST: u64 = 256 << 10;
const READ_AHEAD_BYTES_MOST: u64 = 8 << 20;

/// Journal of a store of files; the file system below has its own journal in addition.
const FILES_JOURNAL_BYTES: u64 = 8 << 20;

/// Handle of one open store; cheap to clone. Dropping the last one is like a kill: nothing acknowledged is
/// lost. But only [`Store::close`] makes the next opening cheap, and makes later damage of the last commits
/// detectable.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<StoreCore>,
}

impl Store {
    /// Makes an empty store on `dev`, which has at least 64 MiB. All previous content is lost. Blocks.
    /// # Errors
    /// `Options`: the sizes do not work. `Device`.
    pub fn mkfs(dev: &Arc<dyn Device>, options: &MkfsOptions) -> Result<(), StoreOpenError> {
        open::mkfs::mkfs_device(dev, options, &mut EntropySource::System)
    }

    /// Opens a store, with recovery after a crash. Blocks.
    /// # Errors
    /// `NotAStore`, `Damaged`, `Version`, `Truncated`: nothing was written. `TailLoss`: acknowledged commits
    /// are damaged. `Device`.
    pub fn open(
        dev: Arc<dyn Device>,
        options: &OpenOptions,
    ) -> Result<(Store, RecoveryReport), StoreOpenError> {
        Store::open_tuned(dev, options, OpenOverrides::default())
    }

    /// Whether a device begins a superblock of a store where one lies, undamaged or not. Blocks.
    /// # Errors
    /// The device cannot be read.
    pub fn is_on(dev: &dyn Device) -> Result<bool, DeviceError> {
        open::mkfs::holds_superblock(dev)
    }

    /// Makes an empty store of files in `dir`, which is created if it does not exist. Blocks.
    /// # Errors
    /// `Open`: the directory already holds a store, or cannot be written. `Options`: the backend is `Log`.
    /// `Device`.
    pub fn mkfs_dir(dir: &Path, options: &MkfsOptions) -> Result<(), StoreOpenError> {
        open::mkfs::refuse_directory(options)?;
        let files: Arc<dyn Device> = HostFiles::create(dir)?;
        let journal_bytes = options.journal_bytes.unwrap_or(FILES_JOURNAL_BYTES);
        let options = MkfsOptions { journal_bytes: Some(journal_bytes), ..options.clone() };
        open::mkfs::mkfs(&files, &options, &mut EntropySource::System, BACKEND_HOSTFS)
    }

    /// Opens the store of files in `dir`, with recovery after a crash. Blocks.
    /// # Errors
    /// As [`Store::open`]. `Open`: the directory does not exist, or another process has it open.
    pub fn open_dir(dir: &Path, options: &OpenOptions) -> Result<(Store, RecoveryReport), StoreOpenError> {
        let files = HostFiles::open(dir, options.read_only)?;
        let (inner, report) = open::open(StoreBackend::Files(files), options, OpenOverrides::default())?;
        Ok((Store { inner }, report))
    }

    pub(crate) fn open_tuned(
        dev: Arc<dyn Device>,
        options: &OpenOptions,
        tuning: OpenOverrides,
    ) -> Result<(Store, RecoveryReport), StoreOpenError> {
        let (inner, report) = open::open(StoreBackend::Device(dev), options, tuning)?;
        Ok((Store { inner }, report))
    }

    /// Commits all operations or none, at the next position of the commit order. Returns when the transaction
    /// has its position; the completion is delivered when `ack` is reached.
    /// Blocks while 64 MiB are in flight to the device, while old bytes are merged, and while the store
    /// drains freed space or grows. The operations of a transaction take at most an eighth of the journal (4
    /// MiB); its data is limited by space only.
    /// # Errors
    /// `NoSpace`, `Exists`, `NotFound`, `WrongKind`, `WrongLength`, `TooLarge`, `Corrupt` (of bytes to merge
    /// with), `UnknownDependency`: nothing happened. `Device`, `Fenced`: reopen the store. `ReadOnly`.
    pub fn commit(&self, txn: Txn, ack: Ack) -> Completion<Result<Lsn, StoreError>> {
        transaction::commit(&self.inner, txn, ack)
    }

    /// Waits until all commits up to and including `upto` are durable. Positions that were never assigned are
    /// ignored.
    /// # Errors
    /// `Device`, `Fenced`: reopen the store.
    pub fn sync(&self, upto: Lsn) -> Completion<Result<(), StoreError>> {
        sync::sync(&self.inner, upto)
    }

    /// Reads `range` of an object in its latest ordered version. The result is short only at the end; holes
    /// read as zeros. Waits for bytes in flight. Runs on the caller's thread if one device read covers the
    /// range and `class` is not `Background`.
    /// # Errors
    /// `NotFound`, `WrongKind` (a stream). `Corrupt`: not the bytes that were written (`ReadCheck::Pages`).
    /// `Device`.
    pub fn read(
        &self,
        id: ObjectId,
        range: Range<u64>,
        class: IoClass,
    ) -> Completion<Result<Bytes, StoreError>> {
        read::read(&self.inner, id, &range, class)
    }

    /// Reads many ranges, each as [`Store::read`] does. They are sorted by their place on the device, and
    /// neighbours at most [`Store::gap_bytes`] apart are read by one command, so a caller hands over all
    /// ranges that it knows it needs.
    ///
    /// `sink` gets each range once, on this thread, in the order in which the reads end, and may use the
    /// store. Damage affects only the ranges on it. Ranges may overlap, be empty, reversed (empty as well), or
    /// pass the end of the object. Commands and unanswered bytes take at most `budget_bytes` of memory, or
    /// those of one range if that is longer; planning takes at most 5 MiB more. An answer may keep eight times
    /// its bytes in memory.
    pub fn read_many(
        &self,
        reads: &[(ObjectId, Range<u64>)],
        budget_bytes: u64,
        class: IoClass,
        sink: &mut ObjectRangeSink<'_>,
    ) {
        ranges::read_many(&self.inner, reads, budget_bytes, class, sink);
    }

    /// Largest distance in bytes at which the store reads two ranges with one command. The device reads through
    /// it in the time of another access. As given at opening, or of the profile. Otherwise 1 MiB on a turning disk (2 MiB
    /// if it is emulated), and 64 KiB elsewhere.
    #[must_use]
    pub fn gap_bytes(&self) -> u64 {
        self.inner.shape.gap_bytes
    }

    /// Commands that one call of [`Store::read_many`] keeps in flight: of the profile, otherwise 64.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.inner.shape.depth
    }

    /// Profile of the device that the store holds.
    #[must_use]
    pub fn profile(&self) -> Option<DeviceProfile> {
        open::assemble::profile(self.inner.state.lock().checkpoint.profile())
    }

    /// Writes a profile of the device into the store, durably. It takes effect at the next opening. Earlier
    /// releases refuse a store with a profile. Blocks for a checkpoint.
    /// # Errors
    /// `ReadOnly`, `NoSpace`, `Device`, `Fenced`: the store keeps its earlier profile, or has the new one.
    pub fn set_profile(&self, profile: &DeviceProfile) -> Result<(), StoreError> {
        if self.inner.shape.read_only {
            return Err(StoreError::ReadOnly);
        }
        self.inner.state.lock().checkpoint.set_profile(profile.to_string());
        close::checkpoint_now(&self.inner)
    }

    /// Bytes to read at once when more of them will be wanted: four gaps, between 256 KiB and 8 MiB.
    #[must_use]
    pub fn read_ahead_bytes(&self) -> u64 {
        self.inner.shape.gap_bytes.saturating_mul(4).clamp(READ_AHEAD_BYTES_LEAST, READ_AHEAD_BYTES_MOST)
    }

    /// Backend of the store.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        BackendKind::of_superblock(self.inner.state.lock().checkpoint.superblock())
    }

    /// Unit in bytes to which reads of objects under `ReadCheck::Caller` are rounded. Reads that begin and end at
    /// its multiples read no byte twice.
    #[must_use]
    pub fn read_unit_bytes(&self) -> u64 {
        self.inner.shape.geometry.logical_block.into()
    }

    /// Writes a large immutable object piece by piece; `Op::Publish` gives it its id, which must be free by
    /// then. One transaction may delete the old object and publish the new one.
    /// # Errors
    /// `Fenced`, `ReadOnly`.
    pub fn writer(&self, id: ObjectId, opts: CreateOptions) -> Result<ObjectWriter, StoreError> {
        if self.inner.shape.read_only {
            return Err(StoreError::ReadOnly);
        }
        self.inner.state.lock().writable()?;
        Ok(ObjectWriter::new(&self.inner, id, &opts))
    }

    /// Appends one frame. A single `Durable` append is one durable write on the caller's thread, without
    /// metadata. If other callers wait for a flush anyway, the frame shares it.
    /// `after`: the frame counts only if that commit survives. Payload at most 1 MiB less 64 bytes.
    /// # Errors
    /// `NotFound`, `WrongKind`, `TooLarge`, `NoSpace`, `UnknownDependency`. `Corrupt`: recovery found
    /// acknowledged frames damaged; delete the stream. `Device`, `Fenced`, `ReadOnly`.
    pub fn append_frame(
        &self,
        stream: ObjectId,
        payload: Bytes,
        after: Option<Lsn>,
        ack: Ack,
    ) -> Completion<Result<FramePos, StoreError>> {
        match self.reserve_frame(stream, &payload, after, ack) {
            Ok(frame) => frame.write(),
            Err(error) => Completion::ready(Err(error)),
        }
    }

    /// [`Store::append_frame`] in two steps, for several threads with frames of one stream in flight. The
    /// frame gets its number and place here; [`ReservedFrame::write`] writes its bytes. In between another
    /// thread may append the next frame. Acknowledgements come in the order of the numbers.
    /// # Errors
    /// As [`Store::append_frame`] but for `Device`; the frame got no number then.
    pub fn reserve_frame(
        &self,
        stream: ObjectId,
        payload: &Bytes,
        after: Option<Lsn>,
        ack: Ack,
    ) -> Result<ReservedFrame, StoreError> {
        append::reserve_frame(&self.inner, stream, payload, after, ack)
    }

    /// Reads frames from `from` on, or from the first one that is kept.
    /// # Errors
    /// `NotFound`, `WrongKind`.
    pub fn frames(&self, stream: ObjectId, from: FramePos) -> Result<FrameReader, StoreError> {
        FrameReader::new(&self.inner, stream, from)
    }

    /// Space for the caller's own bytes in a stream without frames. If the stream has no extent yet, one of
    /// at least `bytes` is added; it belongs to the stream with the next durable commit. `None`: there is no
    /// extent, and `bytes` is 0 or the store is open read-only. Blocks while space is prepared.
    /// # Errors
    /// `NotFound`, `WrongKind`, `NoSpace`, `Fenced`, `Device`.
    pub fn raw_extent(&self, stream: ObjectId, bytes: u64) -> Result<Option<RawExtent>, StoreError> {
        raw_extent::raw_extent(&self.inner, stream, bytes)
    }

    /// Reserves `bytes` of space for the caller until the reservation is dropped, or until commits with
    /// [`Txn::spend`] have spent it. Each object of such a commit takes whole pages. Staged objects and frames spend
    /// nothing: drop the reservation before them. Blocks while space is drained or the store grows.
    /// # Errors
    /// `NoSpace`, `Fenced`, `ReadOnly`.
    pub fn reserve(&self, bytes: u64) -> Result<SpaceReservation, StoreError> {
        if self.inner.shape.read_only {
            return Err(StoreError::ReadOnly);
        }
        reservation::reserve(&self.inner, bytes)
    }

    /// Takes the longest run of free bytes of the device for bytes that are no content of the store: at least
    /// `sizes.start` of them and at most `sizes.end`. A crash gives it back. Waits for nothing.
    /// # Errors
    /// `NoSpace`: no free run is long enough. `Unsupported` in a directory. `Fenced`, `ReadOnly`.
    pub fn free_range(&self, sizes: Range<u64>) -> Result<FreeRange, StoreError> {
        if self.inner.shape.read_only {
            return Err(StoreError::ReadOnly);
        }
        if self.inner.files.is_some() {
            let what = "a directory of files has no range of its own; name a file";
            return Err(StoreError::Unsupported { backend: BackendKind::Hostfs.name(), what });
        }
        free_range::lend(&self.inner, sizes)
    }

    /// Lets every operation use the store's reserve for deletes until the loan is dropped; room for the next
    /// checkpoint stays reserved. For callers that can free space in no other way.
    #[must_use]
    pub fn lend_system_space(&self) -> SystemLoan {
        grow::lend_system_space(&self.inner)
    }

    /// Lowers the number of bytes in flight from which commits wait: less memory, the same order. At most 64
    /// MiB count; one commit may exceed the limit.
    pub fn limit_in_flight(&self, bytes: u64) {
        self.inner.state.lock().commit.limit_in_flight(bytes);
    }

    /// Use of the store's bytes.
    #[must_use]
    pub fn space(&self) -> StoreSpace {
        let state = self.inner.state.lock();
        let page = self.inner.shape.page_bytes as u64;
        let space = &state.space;
        let ownerless = space.ownerless_pages();
        let free = space.writable_pages();
        let quarantine = space.quarantine_pages() + pages_of(state.commit.open_freed());
        let pages = space.placement().pages();
        let hollow = space.placement().hollow_pages();
        let live = pages - ownerless - quarantine - space.staged_pages() - hollow;
        StoreSpace {
            size_bytes: pages * page,
            live_bytes: live * page,
            staged_bytes: space.staged_pages() * page,
            quarantine_bytes: quarantine * page,
            reserved_bytes: (ownerless - free) * page,
            free_bytes: free * page,
            hollow_bytes: hollow * page,
        }
    }

    /// Discards of free space since the opening.
    #[must_use]
    pub fn discards(&self) -> StoreDiscards {
        let state = self.inner.state.lock();
        let discards = state.space.discards();
        StoreDiscards { is_on: discards.is_on(), failed: discards.failed() }
    }

    /// Free bytes that were never written. On a file, the first flush behind a write there takes longer. 0 for
    /// backends that keep no account of it. Looks at all free space, with the mutex held.
    #[must_use]
    pub fn unwritten_bytes(&self) -> u64 {
        let pages = self.inner.state.lock().space.placement().unwritten_pages();
        pages * self.inner.shape.page_bytes as u64
    }

    /// Use of the segments; `None` for backends without segments.
    #[must_use]
    pub fn segments(&self) -> Option<LogSegments> {
        self.inner.state.lock().space.placement().segment_use()
    }

    /// Bytes that writes can still take: free pages and growth. Growth counts if the opening gave a largest
    /// size and the host has not refused the last growth.
    #[must_use]
    pub fn room(&self) -> WritableSpace {
        grow::room(&self.inner)
    }

    /// Tries to grow by a step if the host refused the last growth. Afterwards [`Store::room`] counts growth
    /// again if the host has space. Blocks on the host's file system.
    /// # Errors
    /// `Poisoned`, `Closed`. A host that still refuses is no error.
    pub fn grow_again(&self) -> Result<(), StoreError> {
        grow::grow_again(&self.inner)
    }

    /// Metadata of an object, without reading it.
    #[must_use]
    pub fn stat(&self, id: ObjectId) -> Option<ObjectStat> {
        let state = self.inner.state.lock();
        let entry = state.tables.entries.get(id.0)?;
        let next = state.streams.next_frame(id.0);
        Some(stat_of(&state.tables, id.0, entry, next))
    }

    /// Objects with id >= `from`, ascending, at most `limit`.
    #[must_use]
    pub fn list(&self, from: ObjectId, limit: usize) -> Vec<ObjectStat> {
        let state = self.inner.state.lock();
        let next = |id| state.streams.next_frame(id);
        let entries = state.tables.entries.iter_from(from.0).take(limit);
        entries.map(|(id, entry)| stat_of(&state.tables, id, entry, next(id))).collect()
    }

    /// Lets the next checks of this store leave out bytes that readers have verified by then
    /// ([`Store::note_verified`]). No effect on a store that may be written.
    pub fn note_verified_ranges(&self) {
        if self.inner.shape.read_only {
            self.inner.verified.get_or_init(VerifiedRanges::default);
        }
    }

    /// Notes that the caller has read these bytes of an object, and has found that they have the checksum that their
    /// writer made. Costs nothing unless [`Store::note_verified_ranges`] was called.
    pub fn note_verified(&self, id: ObjectId, range: &Range<u64>) {
        if let Some(verified) = self.inner.verified.get() {
            verified.add(id, range);
        }
    }

    /// Checks the store while it is open; see [`CheckOptions`]. Blocks until everything is read.
    /// # Errors
    /// `Device`: repairing failed. Damage is no error but in the report.
    pub fn check(&self, options: &CheckOptions) -> Result<StoreCheckReport, StoreError> {
        fsck::check(&self.inner, options, None)
    }

    /// Begins a scrub, or goes on with one that was interrupted. Reads nothing yet. One scrub of a store runs at a
    /// time: two would each keep their place over the other's.
    #[must_use]
    pub fn scrub(&self) -> StoreScrub {
        StoreScrub::new(&self.inner)
    }

    /// Shows one object with its extents and sums, or one stream with its frames. Blocks on the device. Meanwhile
    /// its space is not reused. A store that was opened for salvage is shown as far as it is readable.
    /// # Errors
    /// `NotFound`. `Device`: the system cannot read at this time. Damage is shown.
    pub fn dump_object(&self, id: ObjectId, sink: &mut DumpSink<'_>) -> Result<(), StoreError> {
        contents::object(&self.inner, id, sink)
    }

    /// Like [`Store::check`], and reports for every range of the device in bytes whether it was compared with
    /// a sum or holds nothing. Complete with `data` on a store without concurrent writes; ranges come in no
    /// order.
    /// # Errors
    /// As [`Store::check`].
    pub fn check_coverage(
        &self,
        options: &CheckOptions,
        see: &mut dyn FnMut(Range<u64>, RangeCoverage),
    ) -> Result<StoreCheckReport, StoreError> {
        fsck::check(&self.inner, options, Some(see))
    }

    /// Whether objects are files of a directory. The addresses of [`Store::check_coverage`] are then
    /// positions in them.
    #[must_use]
    pub fn is_in_files(&self) -> bool {
        self.inner.files.is_some()
    }

    /// Number of bytes of the device; ranges of [`Store::check_coverage`] lie below.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.inner.device.geometry().size
    }

    /// Writes a checkpoint now, so that the next opening has no journal to read. Blocks until it is durable.
    /// # Errors
    /// `NoSpace`, `Fenced`, `ReadOnly`, `Device`.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        if self.inner.shape.read_only {
            return Err(StoreError::ReadOnly);
        }
        close::checkpoint_now(&self.inner)
    }

    /// Returns unused space to the file system. The end of the file is cut off; runs inside are punched out
    /// and filled again before they are written. Some free space stays for the next commits, and all
    /// reservations stay.
    /// In a directory, whose files are removed with their content, this is a checkpoint only. On a block
    /// device it is a checkpoint and discards. Blocks for two checkpoints.
    /// # Errors
    /// `NoSpace`: no checkpoint fits, and nothing was given back. `Fenced`, `ReadOnly`. `Device`.
    pub fn shrink(&self) -> Result<ShrinkReport, StoreError> {
        if self.inner.shape.read_only {
            return Err(StoreError::ReadOnly);
        }
        shrink::shrink(&self.inner)
    }

    /// From now on space is allocated as near the beginning of the device as possible, in preparation for a
    /// shrink.
    pub fn place_low(&self) {
        self.inner.state.lock().space.place_low();
    }

    /// Whether [`RawExtent::write`] ends in the kernel's page cache and does not wait for the device.
    #[must_use]
    pub fn has_page_cache(&self) -> bool {
        self.inner.device.page_cache().is_some()
    }

    /// Commands and bytes that reached the device since it was opened.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        self.inner.device.counters()
    }

    /// Records the durable state, so that later damage to it is reported and not taken for a crash. Unflushed
    /// commits become durable first. Costs one record and one flush. `false`, without I/O, if nothing
    /// happened since the last mark. Blocks.
    ///
    /// Discards of free space that waited for a busy device go on.
    ///
    /// Without a mark the acknowledged commits of the last epoch, and the last durable frame of each stream,
    /// can be damaged unnoticed between a kill and the next opening. [`Store::close`] needs no mark. See
    /// [`Store::activity`] for the time to write one.
    /// # Errors
    /// `Fenced`, `Device`.
    pub fn write_clean_mark(&self) -> Result<bool, StoreError> {
        clean_mark::write_clean_mark(&self.inner)
    }

    /// A number that grows with every commit and every frame. The store's owner writes the clean mark when
    /// two readings, a tenth of a second apart, are equal.
    #[must_use]
    pub fn activity(&self) -> u64 {
        let state = self.inner.state.lock();
        state.commit.last_lsn() + state.streams.frame_tickets()
    }

    /// Makes everything durable, checkpoints and closes. Later writes return `Fenced`; reads still work.
    /// Blocks.
    /// # Errors
    /// `Device`: commits not acknowledged as durable may be lost.
    pub fn close(&self) -> Result<(), StoreError> {
        close::close(&self.inner)
    }

    /// Takes ownership of the store for an engine that must be the only one, or with `read_only` for one of
    /// several that change nothing, until the result is dropped. `None`: another engine owns it. This does
    /// not guard objects.
    #[must_use]
    pub fn own(&self, read_only: bool) -> Option<StoreOwnership> {
        StoreOwnership::take(&self.inner, read_only)
    }
}

fn stat_of(tables: &ObjectTables, id: u64, entry: &TableEntry, next_frame: u64) -> ObjectStat {
    let page = tables.page_bytes as u64;
    match entry {
        TableEntry::Object(object) => ObjectStat {
            id: ObjectId(id),
            kind: object.what.kind,
            sealed: object.sealed,
            len: object.len,
            allocated_bytes: object.map.pages() * page,
            label: object.what.label,
        },
        TableEntry::Stream(stream) => ObjectStat {
            id: ObjectId(id),
            kind: ObjectKind::Stream,
            sealed: false,
            len: next_frame,
            allocated_bytes: stream.pieces.iter().map(|piece| u64::from(piece.run.pages)).sum::<u64>() * page,
            label: stream.what.label,
        },
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("uuid", &self.inner.shape.uuid).finish_non_exhaustive()
    }
}
