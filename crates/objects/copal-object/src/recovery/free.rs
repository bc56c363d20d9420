//! Free space, derived: all pages that tables, journal, checkpoint and superblocks do not own.
//!
//! Invariants
//! - No page has two owners, except by a clone (OBJ-24); otherwise the store is damaged.

use crate::{
    StoreOpenError,
    format::{
        run::PageRun,
        superblock::{BACKEND_LOG, COPIES, SUPERBLOCK_LEN, Superblock},
    },
    space::home::PageHome,
    space::placement::Placement,
    tables::{ObjectTables, TableEntry, shared::SharedRuns},
};
use std::ops::Range;

/// The allocator of a store, and the pages that several objects share.
pub(crate) fn derive_space(
    tables: &ObjectTables,
    superblock: &Superblock,
    checkpoint: &[PageRun],
    zones: &[PageRun],
    hollow: &[Range<u64>],
    empty: Box<dyn Placement>,
) -> Result<(Box<dyn Placement>, SharedRuns), StoreOpenError> {
    let page = tables.page_bytes as u64;
    let mut allocator = empty;
    let mut take_for = |run: PageRun, owner: u64, what: &dyn Fn() -> String| {
        if allocator.take_for(run, owner) {
            return Ok(());
        }
        let what = format!("pages {}..{} belong to {} and to something else", run.at, run.end(), what());
        Err(StoreOpenError::Damaged { what })
    };
    let mut take = |run: PageRun, what: &dyn Fn() -> String| take_for(run, PageHome::STORE, what);
    // The `log` backend uses no segment with a superblock copy, and its journal has no fixed place.
    if superblock.backend != BACKEND_LOG {
        for at in COPIES {
            let pages = (SUPERBLOCK_LEN as u64).div_ceil(page) as u32;
            take(PageRun::new(at / page, pages), &|| "a superblock".into())?;
        }
        let journal = PageRun::new(superblock.journal_at, superblock.journal_pages as u32);
        take(journal, &|| "the journal".into())?;
    }
    for &run in checkpoint {
        take(run, &|| "the checkpoint".into())?;
    }
    let mut sharing: Vec<PageRun> = Vec::new();
    for (id, entry) in tables.entries.iter() {
        match entry {
            TableEntry::Object(object) if object.shares => {
                sharing.extend(object.map.iter().map(|extent| extent.run))
            }
            TableEntry::Object(object) => {
                for extent in object.map.iter() {
                    take_for(extent.run, id, &|| format!("object {id}"))?;
                }
            }
            TableEntry::Stream(stream) => {
                for piece in &stream.pieces {
                    take_for(piece.run, id, &|| format!("stream {id}"))?;
                }
            }
        }
    }
    let mut shared = SharedRuns::default();
    for (run, owners) in owners(&sharing) {
        take_for(run, PageHome::STORE, &|| "cloned objects".into())?;
        (1..owners).for_each(|_| shared.share(run));
    }
    allocator.verify().map_err(|what| StoreOpenError::Damaged { what })?;
    for &zone in zones {
        allocator.note_written(zone);
    }
    for range in hollow {
        allocator.make_hollow(range.clone());
    }
    Ok((allocator, shared))
}

/// Runs that do not overlap, with the number of owners of each.
fn owners(runs: &[PageRun]) -> Vec<(PageRun, u32)> {
    let mut edges: Vec<(u64, i64)> = runs.iter().flat_map(|run| [(run.at, 1), (run.end(), -1)]).collect();
    edges.sort_unstable();
    let mut out = Vec::new();
    let mut count = 0i64;
    let mut from = 0;
    for (page, change) in edges {
        if count > 0 && page > from {
            out.push((PageRun::new(from, (page - from) as u32), count as u32));
        }
        count += change;
        from = page;
    }
    out
}
