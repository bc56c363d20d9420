//! Moves the live frames of packs to new packs.
//!
//! The calling thread reads the frames of the next packs, and appends those of the present one. Workers decrypt between
//! the two. Frames are appended in the order of one thread, and each step that makes something durable or removes
//! something is the calling thread's.
//!
//! Memory: at most [`MOST_BYTES`] of frames.

use super::sweep::{LiveFrames, MixedPack, PackSweep};
use crate::index::IndexRow;
use crate::index::reindex::StoredPack;
use crate::keys::random;
use crate::packs::frame_reader::{FrameReader, HELD_BYTES};
use crate::packs::home::PackHome;
use crate::packs::ordered_pool::{OrderedQueue, PoolSize, PoolWorker, run_in_order};
use crate::packs::pack::reader::PackFooter;
use crate::packs::pack::writer::FrameInput;
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::packs::pack_appender::PackAppender;
use crate::packs::pack_store::{LocatedFrame, PackStore};
use crate::request::error::{Error, Result};
use crate::rules::broken::{self, Flaw};
use copal_kv::Durability;
use copal_volume::VolumeId;
use std::cell::RefCell;
use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;

/// Most bytes of frames that were read and not yet appended.
const MOST_BYTES: usize = 24 << 20;

/// Rewrites packs, home by home.
/// # Errors
/// `Cancelled`; errors of the store and the index.
pub(super) fn rewrite(
    sweep: &mut PackSweep<'_, '_>,
    live: &LiveFrames<'_, '_>,
    packs: &[MixedPack],
) -> Result<()> {
    homes_of(packs).into_iter().try_for_each(|home| {
        let packs = packs.iter().filter(|mixed| mixed.pack.home == home);
        rewrite_home(sweep, live, home, &packs.collect::<Vec<_>>())
    })
}

fn homes_of(packs: &[MixedPack]) -> Vec<PackHome> {
    let mut homes: Vec<PackHome> = Vec::new();
    for mixed in packs {
        if !homes.contains(&mixed.pack.home) {
            homes.push(mixed.pack.home);
        }
    }
    homes
}

/// Moves the live frames of packs of one home to new packs, then unlinks the old ones.
fn rewrite_home(
    sweep: &mut PackSweep<'_, '_>,
    live: &LiveFrames<'_, '_>,
    home: PackHome,
    packs: &[&MixedPack],
) -> Result<()> {
    if sweep.options.dry_run {
        return packs.iter().try_for_each(|pack| foresee(sweep, pack));
    }
    let pack_store = sweep.parts.pack_store();
    // More of them would wait for memory.
    let workers = pack_store.workers().min(MOST_BYTES / HELD_BYTES);
    let size = PoolSize { workers, budget_bytes: ((workers + 1) * HELD_BYTES).min(MOST_BYTES) };
    // Readers whose frames were appended.
    let spare = RefCell::new(Vec::new());
    let reader = WindowReader { pack_store, live, packs, spare: &spare };
    let mut copy = PackCopy {
        appender: PackAppender::new(pack_store, home, random()?, Durability::Device),
        other_frames: FrameReader::new(pack_store)?,
        sweep,
        live,
        packs,
        spare: &spare,
        moved: Vec::new(),
        had_turn: HashSet::new(),
        is_alone: false,
        has_failed: false,
    };
    run_in_order(
        size,
        || Ok(WindowOpener(PhantomData)),
        &mut |step| copy.take(step),
        |queue| (0..packs.len()).try_for_each(|at| reader.read(at, queue)),
    )?;
    copy.finish()
}

/// Counts a pack for a prune that changes nothing.
fn foresee(sweep: &mut PackSweep<'_, '_>, MixedPack { pack, dead_bytes }: &MixedPack) -> Result<()> {
    sweep.check_cancel()?;
    sweep.summary.rewritten_packs += 1;
    sweep.progress.advance(pack.info.size);
    let freed = (*dead_bytes).min(sweep.summary.after_bytes);
    sweep.summary.after_bytes -= freed;
    sweep.summary.written_bytes += pack.info.size.saturating_sub(*dead_bytes);
    Ok(())
}

/// Some live frames of one pack.
struct FrameWindow<'a> {
    footer: Arc<PackFooter>,
    vid: VolumeId,
    locations: Vec<FrameLocation>,
    /// Has read them ahead.
    frames: FrameReader<'a>,
}

/// A step of a rewrite, in order.
enum CopyStep<'a> {
    /// The pack of this number begins.
    Begin(usize),
    Window(FrameWindow<'a>),
    /// The rest of the pack cannot be read.
    Failed(Error),
    /// All live frames of the pack of this number were read.
    End(usize),
}

/// Decrypts the frames of windows.
struct WindowOpener<'a>(PhantomData<FrameWindow<'a>>);

impl<'a> PoolWorker for WindowOpener<'a> {
    type Job = FrameWindow<'a>;
    type Done = CopyStep<'a>;

    fn run(&mut self, mut window: FrameWindow<'a>) -> CopyStep<'a> {
        window.frames.open_ahead(&window.footer);
        CopyStep::Window(window)
    }
}

/// Reads the live frames of packs.
struct WindowReader<'r, 'a> {
    pack_store: &'a PackStore,
    live: &'r LiveFrames<'r, 'r>,
    packs: &'r [&'r MixedPack],
    spare: &'r RefCell<Vec<FrameReader<'a>>>,
}

impl<'a> WindowReader<'_, 'a> {
    fn read(&self, at: usize, queue: &mut OrderedQueue<'_, WindowOpener<'a>>) -> Result<()> {
        queue.ready(CopyStep::Begin(at))?;
        let pack = &self.packs[at].pack;
        let found = match self.pack_store.footer(pack.home, pack.volume, pack.number) {
            Err(error) if error.is_corruption() => return queue.ready(CopyStep::Failed(error)),
            found => found?,
        };
        if let Some((footer, vid)) = found {
            let locations = (0..footer.rows.len() as u32).filter(|&slot| self.live.has(pack.number, slot));
            let locations: Vec<FrameLocation> = locations
                .map(|slot| FrameLocation { home: pack.home, volume: pack.volume, pack: pack.number, slot })
                .collect();
            let mut rest = &locations[..];
            while !rest.is_empty() {
                let window = match self.window(&footer, vid, rest) {
                    Err(error) if error.is_corruption() => return queue.ready(CopyStep::Failed(error)),
                    window => window?,
                };
                rest = &rest[window.locations.len()..];
                queue.compute(window, HELD_BYTES)?;
            }
        }
        queue.ready(CopyStep::End(at))
    }

    /// The first of these frames, as many as are read ahead together.
    fn window(
        &self,
        footer: &Arc<PackFooter>,
        vid: VolumeId,
        locations: &[FrameLocation],
    ) -> Result<FrameWindow<'a>> {
        let spare = self.spare.borrow_mut().pop();
        let mut frames = spare.map_or_else(|| FrameReader::new(self.pack_store), Ok)?;
        let ids = locations.iter().map(|location| (*location, footer.rows[location.slot as usize].id));
        let count = frames.read_ahead(ids)?;
        let locations = locations[..count].to_vec();
        Ok(FrameWindow { footer: Arc::clone(footer), vid, locations, frames })
    }
}

/// Appends the live frames of packs.
struct PackCopy<'c, 's, 'a, 'm> {
    sweep: &'c mut PackSweep<'s, 'a>,
    live: &'c LiveFrames<'m, 'm>,
    packs: &'c [&'c MixedPack],
    spare: &'c RefCell<Vec<FrameReader<'a>>>,
    appender: PackAppender<'a>,
    other_frames: FrameReader<'a>,
    /// Packs whose live frames are in new ones, or in the open pack.
    moved: Vec<&'c StoredPack>,
    /// The present pack and those before it.
    had_turn: HashSet<PackNumber>,
    /// Whether no other frame of the ids of the present pack is known.
    is_alone: bool,
    /// Whether a live frame of the present pack could not be read.
    has_failed: bool,
}

impl<'a> PackCopy<'_, '_, 'a, '_> {
    fn take(&mut self, step: CopyStep<'a>) -> Result<()> {
        match step {
            CopyStep::Begin(at) => {
                let pack = &self.packs[at].pack;
                self.sweep.check_cancel()?;
                self.sweep.summary.rewritten_packs += 1;
                self.sweep.progress.advance(pack.info.size);
                self.had_turn.insert(pack.number);
                self.has_failed = false;
                let is_alone = self.live.is_alone(pack.number).map(|is_alone| self.is_alone = is_alone);
                self.noted(is_alone)
            }
            CopyStep::Window(mut window) => {
                if !self.has_failed {
                    let copied = self.copy(&mut window);
                    self.noted(copied)?;
                }
                self.spare.borrow_mut().push(window.frames);
                Ok(())
            }
            CopyStep::Failed(error) if !self.has_failed => self.noted(Err(error)),
            CopyStep::Failed(_) => Ok(()),
            CopyStep::End(at) => self.end(&self.packs[at].pack),
        }
    }

    /// Remembers damage. Frames that were copied so far have two copies; the pack itself stays.
    fn noted(&mut self, copied: Result<()>) -> Result<()> {
        match copied {
            Err(error) if error.is_corruption() => {
                self.sweep.progress.notice(&format!("not rewritten: {error}"));
                self.has_failed = true;
                Ok(())
            }
            copied => copied,
        }
    }

    /// Copies the frames of a window, except those that also exist elsewhere.
    fn copy(&mut self, window: &mut FrameWindow<'a>) -> Result<()> {
        let pack_store = self.sweep.parts.pack_store();
        let FrameWindow { footer, vid, locations, frames } = window;
        let id = |location: &FrameLocation| footer.rows[location.slot as usize].id;
        // Look-ups of many ids read many blocks of the index.
        let others = match self.is_alone {
            true => vec![Vec::new(); locations.len()],
            false => pack_store.index.rows_of(footer.home, &locations.iter().map(id).collect::<Vec<_>>())?,
        };
        for (location, rows) in locations.iter().zip(others) {
            let located = LocatedFrame { footer: Arc::clone(footer), vid: *vid, location: *location };
            let row = *located.row();
            if self.stands_elsewhere(frames, &located, rows)? {
                continue;
            }
            let payload = frames.payload(&located)?;
            let frame = FrameInput { id: row.id, raw_bytes: row.raw, flags: row.flags, payload };
            self.appender.append(&frame)?;
        }
        Ok(())
    }

    /// Whether another live frame of the id with the same content exists, in a pack that stays or comes later. A
    /// killed prune may have left one, and snapshots may refer to either; all of them find the remaining one.
    /// `rows`: the rows of the id in the index.
    fn stands_elsewhere(
        &mut self,
        frames: &mut FrameReader<'_>,
        located: &LocatedFrame,
        rows: Vec<IndexRow>,
    ) -> Result<bool> {
        let pack_store = self.sweep.parts.pack_store();
        let (home, id) = (located.location.home, located.row().id);
        for (row, entry) in pack_store.index.places_of(rows)? {
            let location = entry.location(row);
            if location.home != home
                || self.had_turn.contains(&location.pack)
                || !self.live.has(location.pack, location.slot)
            {
                continue;
            }
            let others = &mut self.other_frames;
            let is_equal = match pack_store.at(location, &id) {
                Ok(Some(other)) => others.raw(&other).and_then(|other| Ok(frames.raw(located)? == other)),
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            };
            match is_equal {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) if error.is_corruption() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

impl<'c> PackCopy<'c, '_, '_, '_> {
    fn end(&mut self, pack: &'c StoredPack) -> Result<()> {
        if self.has_failed && !broken::by(Flaw::UnlinksUncopied) {
            return Ok(());
        }
        self.moved.push(pack);
        let target = self.appender.target_bytes();
        if self.appender.open_bytes() + target / 4 > target {
            self.appender.finish()?;
            self.sweep.unlink_all(&mut self.moved)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.appender.finish()?;
        self.sweep.unlink_all(&mut self.moved)?;
        self.sweep.summary.after_bytes += self.appender.stored_bytes;
        self.sweep.summary.written_bytes += self.appender.stored_bytes;
        Ok(())
    }
}
