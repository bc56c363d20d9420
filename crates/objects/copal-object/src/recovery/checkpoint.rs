//! Reading a checkpoint: each page from the first of its two places that is intact.
//!
//! Format: docs/formats/object-checkpoint.md
//! Invariants
//! - A page counts only if it is the one that its parent names, at either place.
//! - A page that the system cannot read at this time does not count as damaged.

use super::RecoverySource;
use crate::{
    StoreOpenError,
    format::{
        checkpoint::{ChainError, ChainLink, ChainPage, decode_page},
        run::PageRun,
        superblock::Superblock,
    },
    tables::{
        ObjectTables,
        snapshot::{self, CheckpointBody, CheckpointPosition},
    },
};
use std::ops::Range;

/// A checkpoint as a superblock names it.
pub(crate) struct FoundCheckpoint {
    pub(crate) tables: ObjectTables,
    pub(crate) position: CheckpointPosition,
    /// Runs of written zones.
    pub(crate) zones: Vec<PageRun>,
    /// Hollow pages, except those that have an owner.
    pub(crate) hollow: Vec<Range<u64>>,
    /// Its chain pages, both copies of each.
    pub(crate) runs: Vec<PageRun>,
    /// Damaged ones among the pages that were read; the other copy was used.
    pub(crate) damaged: Vec<PageRun>,
}

/// Copies of a chain page to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainCopies {
    /// The second copy only if the first is damaged.
    AsNeeded,
    /// Both copies, so that a damaged one is found while the other is still intact.
    Both,
}

/// Reads the checkpoint that a superblock names.
pub(crate) fn read_checkpoint(
    source: &RecoverySource<'_>,
    superblock: &Superblock,
    copies: ChainCopies,
) -> Result<FoundCheckpoint, StoreOpenError> {
    let damaged = |what: String| StoreOpenError::Damaged { what: format!("the checkpoint: {what}") };
    let pages = superblock.size_bytes / source.page_bytes as u64;
    let mut link = ChainLink {
        at: superblock.checkpoint_at,
        copy_at: superblock.checkpoint_copy_at,
        bytes: superblock.checkpoint_bytes as u32,
        hash: superblock.checkpoint_hash,
    };
    let mut body = Vec::new();
    let mut runs: Vec<PageRun> = Vec::new();
    let mut damaged_runs = Vec::new();
    let (mut index, mut version) = (0, None);
    while link.bytes > 0 {
        let mut found: Option<FoundPage> = None;
        let mut error = "a chain page lies outside the store".to_owned();
        for run in places(&link, source.page_bytes, pages) {
            runs.push(run);
            if found.is_some() && copies == ChainCopies::AsNeeded {
                continue;
            }
            match chain_page(source, run, &link, superblock.checkpoint_lsn, index)? {
                Ok(page) if found.is_none() => found = Some(page),
                Ok(_) => {}
                Err(why) => {
                    error = why;
                    damaged_runs.push(run);
                }
            }
        }
        let Some(FoundPage { next, part, version: of_page }) = found.filter(|_| u64::from(index) < pages)
        else {
            return Err(damaged(error));
        };
        if *version.get_or_insert(of_page) != of_page {
            return Err(damaged("its pages have different versions".into()));
        }
        body.extend_from_slice(&part);
        index += 1;
        link = next;
    }
    let CheckpointBody { mut tables, position, zones, hollow } =
        snapshot::decode(&body, source.page_bytes, version.unwrap_or_default())
            .map_err(|error| damaged(error.to_string()))?;
    if position.uuid != superblock.uuid || position.lsn != superblock.checkpoint_lsn {
        return Err(damaged("it belongs to another store".into()));
    }
    tables.segment_pages = superblock.segment_bytes / superblock.page_bytes;
    Ok(FoundCheckpoint { tables, position, zones, hollow, runs, damaged: damaged_runs })
}

/// The places of a linked page that lie inside the store.
fn places(link: &ChainLink, page_bytes: usize, store_pages: u64) -> Vec<PageRun> {
    let bytes = link.bytes as usize;
    if !bytes.is_multiple_of(page_bytes) {
        return Vec::new();
    }
    let copy = (link.copy_at > 0).then_some(link.copy_at);
    std::iter::once(link.at)
        .chain(copy)
        .filter(|at| at.saturating_add((bytes / page_bytes) as u64) <= store_pages)
        .map(|at| PageRun::new(at, (bytes / page_bytes) as u32))
        .collect()
}

/// Content of an intact chain page.
struct FoundPage {
    next: ChainLink,
    part: Vec<u8>,
    version: u16,
}

/// Content of one copy of a chain page, or the damage.
/// # Errors
/// The copy could not be read at this time, or a later release wrote it.
fn chain_page(
    source: &RecoverySource<'_>,
    run: PageRun,
    link: &ChainLink,
    lsn: u64,
    index: u32,
) -> Result<Result<FoundPage, String>, StoreOpenError> {
    let bytes = match source.read(run) {
        Ok(bytes) => bytes,
        Err(error) if error.is_passing() => return Err(error.into()),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let page = decode_page(&bytes, link.hash, lsn, index);
    let found = |ChainPage { next, part, version }| FoundPage { next, part: part.to_vec(), version };
    match page {
        Ok(page) => Ok(Ok(found(page))),
        Err(ChainError::Envelope(error)) if !error.is_damage() => {
            Err(StoreOpenError::Version { what: error.to_string() })
        }
        Err(error) => Ok(Err(error.to_string())),
    }
}
