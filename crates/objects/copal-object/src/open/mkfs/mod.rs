//! Creating a store: an empty checkpoint, an empty journal, four superblocks.
//!
//! Invariants
//! - The superblocks are written last, after a flush: an incomplete store is not recognised as one.

use crate::{
    BackendKind, MkfsOptions, StoreOpenError,
    backend::hostfs::FILE_BYTES,
    checkpoint::superblock_io,
    format::{
        checkpoint::ChainLink,
        ops::mount_pages_max,
        run::PageRun,
        segment::ChainSegment,
        superblock::{
            BACKEND_COW, BACKEND_HOSTFS, BACKEND_LOG, COPIES, PAGE_SIZES, STORE_BYTES_MAX, STORE_BYTES_MIN,
            SUPERBLOCK_LEN, SUPERBLOCK_MAGIC, Superblock,
        },
    },
    state::entropy::EntropySource,
    tables::{
        ObjectTables,
        chain::{ChainEncoder, ChainPlace, encode_chain},
        snapshot::{CheckpointParts, CheckpointPosition},
    },
};
use copal_device::{AlignedBuf, Device, DeviceError, Geometry, Io, IoClass, IoKind, probe::DeviceProfile};
use segments::{SegmentLayout, refuse};
use std::sync::Arc;

mod segments;

/// Space written at mkfs for the first stream extents.
const STREAM_SPACE_BYTES: u64 = 16 << 20;
/// Journals up to this size lie between the second and third superblock.
const JOURNAL_BEFORE_THIRD_COPY: u64 = (32 << 20) - (2 << 20);

/// Layout of a new store, in pages.
struct StoreLayout {
    page_bytes: u64,
    pages: u64,
    journal: PageRun,
    checkpoint: ChainPlace,
    streams: PageRun,
}

/// Unit of allocation: as given, as the device's profile has it, or 4 KiB.
fn page_bytes(options: &MkfsOptions) -> u64 {
    let of_profile = options.profile.as_ref().map(DeviceProfile::store_page_bytes);
    options.page_bytes.or(of_profile).unwrap_or(4096).into()
}

/// Text of the profile of the options.
fn text(options: &MkfsOptions) -> String {
    options.profile.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn layout(size: u64, options: &MkfsOptions, backend: u8) -> Result<StoreLayout, StoreOpenError> {
    let page_bytes = page_bytes(options);
    if !PAGE_SIZES.iter().any(|size| u64::from(*size) == page_bytes) {
        return refuse(format!("a page has 4096, 8192 or 16384 bytes, not {page_bytes}"));
    }
    let size = size.min(STORE_BYTES_MAX) / page_bytes * page_bytes;
    if size < STORE_BYTES_MIN {
        return refuse(format!("it takes at least {STORE_BYTES_MIN} bytes, the device has {size}"));
    }
    let default = (size / 32).clamp(8 << 20, 256 << 20);
    let journal_bytes = options.journal_bytes.unwrap_or(default).next_multiple_of(page_bytes);
    let journal_bytes_max = (size / 4).min(u64::from(u32::MAX) * page_bytes);
    if journal_bytes < 16 * page_bytes || journal_bytes > journal_bytes_max {
        return refuse(format!(
            "the journal takes between {} and {journal_bytes_max} bytes, not {journal_bytes}",
            16 * page_bytes
        ));
    }
    let after_second = (COPIES[1] + 65_536) / page_bytes;
    let after_fourth = (COPIES[3] + 65_536) / page_bytes;
    let journal_pages = (journal_bytes / page_bytes) as u32;
    let journal = if journal_bytes <= JOURNAL_BEFORE_THIRD_COPY {
        PageRun::new(after_second, journal_pages)
    } else {
        PageRun::new(after_fourth, journal_pages)
    };
    if journal.end() + 32 > size / page_bytes {
        return refuse(format!("a journal of {journal_bytes} bytes does not fit into {size}"));
    }
    let first_checkpoint = PageRun::new(journal.end(), 1);
    // Whole MiB behind the journal, without superblock copies, on a store of any size.
    let zone = (1 << 20) / page_bytes;
    let first = first_checkpoint.end().next_multiple_of(zone);
    let bytes = STREAM_SPACE_BYTES.min(size / 8);
    let streams = PageRun::new(first, (bytes / page_bytes) as u32);
    // At the other end; in a directory, in another file.
    let last = match backend {
        BACKEND_HOSTFS => FILE_BYTES / page_bytes,
        _ => size / page_bytes - 1,
    };
    let checkpoint = ChainPlace { run: first_checkpoint, copy: Some(PageRun::new(last, 1)) };
    Ok(StoreLayout { page_bytes, pages: size / page_bytes, journal, checkpoint, streams })
}

/// Makes an empty store on `device`, with the backend of `options`. All previous content is lost.
pub(crate) fn mkfs_device(
    device: &Arc<dyn Device>,
    options: &MkfsOptions,
    entropy: &mut EntropySource,
) -> Result<(), StoreOpenError> {
    match options.backend {
        BackendKind::Cow => mkfs(device, options, entropy, BACKEND_COW),
        BackendKind::Log => mkfs_segments(device, options, entropy),
        BackendKind::Hostfs => refuse("the hostfs backend takes a directory, not a device".into()),
    }
}

/// Refuses the `log` backend in a directory: its segments lie in one file or on a device.
pub(crate) fn refuse_directory(options: &MkfsOptions) -> Result<(), StoreOpenError> {
    match options.backend {
        BackendKind::Cow | BackendKind::Hostfs => Ok(()),
        BackendKind::Log => {
            refuse("the log backend takes a file or a device; use the hostfs backend in a directory".into())
        }
    }
}

impl BackendKind {
    pub(crate) fn of_superblock(superblock: &Superblock) -> BackendKind {
        match superblock.backend {
            BACKEND_LOG => BackendKind::Log,
            BACKEND_HOSTFS => BackendKind::Hostfs,
            // The decoder accepts no other number.
            _ => BackendKind::Cow,
        }
    }
}

/// Makes an empty store with a ring of records on `device`. All previous content is lost.
pub(crate) fn mkfs(
    device: &Arc<dyn Device>,
    options: &MkfsOptions,
    entropy: &mut EntropySource,
    backend: u8,
) -> Result<(), StoreOpenError> {
    let geometry = device.geometry();
    let layout = layout(geometry.size, options, backend)?;
    let page = layout.page_bytes;
    fits_page(&geometry, page)?;
    write(device, forget_store())?;
    let uuid = u128::from(entropy.next()) << 64 | u128::from(entropy.next());
    let start = (0, ChainSegment::default());
    let (head, chain) = empty_checkpoint(uuid, &layout.checkpoint, page, layout.pages, start, layout.zones());
    write(device, first_writes(&layout, chain, backend))?;
    let superblock = Superblock {
        backend,
        journal_at: layout.journal.at,
        journal_pages: layout.journal.pages.into(),
        profile: text(options),
        ..first_superblock(&geometry, uuid, page, layout.pages, &head, entropy)
    };
    write_superblocks(device, &superblock)
}

/// Makes an empty store of the `log` backend on `device`.
fn mkfs_segments(
    device: &Arc<dyn Device>,
    options: &MkfsOptions,
    entropy: &mut EntropySource,
) -> Result<(), StoreOpenError> {
    let geometry = device.geometry();
    let mut layout = SegmentLayout::new(geometry.size, page_bytes(options), options)?;
    let page = layout.page_bytes;
    fits_page(&geometry, page)?;
    write(device, forget_store())?;
    let uuid = u128::from(entropy.next()) << 64 | u128::from(entropy.next());
    let unwritten = if geometry.gives_back { layout.write_ahead() } else { Vec::new() };
    let (start, zones) = ((layout.head(), layout.segment()), layout.written_zones());
    let (head, chain) = empty_checkpoint(uuid, &layout.checkpoint, page, layout.pages, start, zones);
    let mut writes = page_writes(page, chain.into_iter().chain(layout.headers(uuid)));
    writes.extend(unwritten.into_iter().map(|run| zeros(run, page)));
    write(device, writes)?;
    let superblock = Superblock {
        backend: BACKEND_LOG,
        segment_bytes: layout.segment_bytes,
        profile: text(options),
        ..first_superblock(&geometry, uuid, page, layout.pages, &head, entropy)
    };
    write_superblocks(device, &superblock)
}

fn fits_page(geometry: &Geometry, page: u64) -> Result<(), StoreOpenError> {
    if u64::from(geometry.logical_block) > page {
        return refuse(format!(
            "the device writes {} bytes at once, more than a page",
            geometry.logical_block
        ));
    }
    Ok(())
}

/// The first superblock, without a journal and a backend.
fn first_superblock(
    geometry: &Geometry,
    uuid: u128,
    page: u64,
    pages: u64,
    checkpoint: &ChainLink,
    entropy: &mut EntropySource,
) -> Superblock {
    Superblock {
        uuid,
        generation: 1,
        backend: BACKEND_COW,
        logical_block: geometry.logical_block,
        page_bytes: page as u32,
        segment_bytes: 0,
        size_bytes: pages * page,
        journal_at: 0,
        journal_pages: 0,
        checkpoint_at: checkpoint.at,
        checkpoint_bytes: checkpoint.bytes.into(),
        checkpoint_lsn: 0,
        checkpoint_hash: checkpoint.hash,
        checkpoint_copy_at: checkpoint.copy_at,
        chain_seed: entropy.next(),
        mount: entropy.next(),
        profile: String::new(),
    }
}

fn write_superblocks(device: &Arc<dyn Device>, superblock: &Superblock) -> Result<(), StoreOpenError> {
    let copies = 0..COPIES.len();
    write(device, copies.map(|copy| superblock_io(superblock, copy)).collect())
}

/// Whether one of the places of a superblock begins as one.
pub(crate) fn holds_superblock(device: &dyn Device) -> Result<bool, DeviceError> {
    let geometry = device.geometry();
    let len = SUPERBLOCK_LEN.max(geometry.logical_block as usize);
    for at in COPIES.into_iter().filter(|at| at + len as u64 <= geometry.size) {
        let copy = device.read_now(at, AlignedBuf::zeroed(len))?;
        if copy.starts_with(&SUPERBLOCK_MAGIC) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Zeros over the superblocks of any previous store.
fn forget_store() -> Vec<Io> {
    COPIES
        .iter()
        .map(|&at| Io { at, kind: IoKind::WriteZeroes(SUPERBLOCK_LEN as u64), class: IoClass::Foreground })
        .collect()
}

impl StoreLayout {
    /// The zones around a superblock copy count as written: mkfs fills them, or the copy itself does.
    fn zones(&self) -> Vec<(u64, u64)> {
        let zone_pages = crate::space::allocator::ZONE_PAGES;
        let first_zone = self.streams.at.div_ceil(zone_pages);
        let zones = (self.streams.end() / zone_pages).saturating_sub(first_zone);
        vec![(first_zone, zones)]
    }
}

/// The checkpoint of an empty store of `pages` pages, and its own pages.
fn empty_checkpoint(
    uuid: u128,
    place: &ChainPlace,
    page: u64,
    pages: u64,
    (journal_head, segment): (u64, ChainSegment),
    zones: Vec<(u64, u64)>,
) -> (ChainLink, Vec<(PageRun, AlignedBuf)>) {
    let page_bytes = page as usize;
    let tables = ObjectTables::new(page_bytes, pages);
    let position = CheckpointPosition {
        uuid,
        lsn: 0,
        next_seq: 1,
        journal_head,
        epoch: 1,
        mount_pages: mount_pages_max(0, page_bytes),
        segment,
    };
    let parts = CheckpointParts::of(&tables, &position, &zones, &[]);
    encode_chain(ChainEncoder::new(0, parts, vec![*place], page_bytes))
}

/// Writes of whole pages.
fn page_writes(page: u64, pages: impl Iterator<Item = (PageRun, AlignedBuf)>) -> Vec<Io> {
    let write = |(run, buf): (PageRun, AlignedBuf)| Io {
        at: run.at * page,
        kind: IoKind::Write { buf, fua: false },
        class: IoClass::Foreground,
    };
    pages.map(write).collect()
}

fn zeros(run: PageRun, page: u64) -> Io {
    let kind = IoKind::WriteZeroes(u64::from(run.pages) * page);
    Io { at: run.at * page, kind, class: IoClass::Foreground }
}

/// The pages of the checkpoint, and zeros for the journal and the first streams.
fn first_writes(layout: &StoreLayout, checkpoint: Vec<(PageRun, AlignedBuf)>, backend: u8) -> Vec<Io> {
    let page = layout.page_bytes;
    let mut writes = page_writes(page, checkpoint.into_iter());
    // In a directory this also allocates the journal's blocks, since its file already reaches to the
    // checkpoint behind it: a record must not need space.
    writes.push(zeros(layout.journal, page));
    if backend == BACKEND_COW {
        writes.push(zeros(layout.streams, page));
    }
    writes
}

/// Writes, then flushes.
fn write(device: &Arc<dyn Device>, ios: Vec<Io>) -> Result<(), StoreOpenError> {
    run(device, ios)?;
    run(device, vec![flush()])
}

fn flush() -> Io {
    Io { at: 0, kind: IoKind::Flush, class: IoClass::Commit }
}

fn run(device: &Arc<dyn Device>, ios: Vec<Io>) -> Result<(), StoreOpenError> {
    let done = device.submit(ios).wait();
    let result: Result<(), DeviceError> = done.into_iter().try_for_each(|done| done.result);
    Ok(result?)
}
