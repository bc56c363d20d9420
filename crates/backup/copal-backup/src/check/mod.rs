//! Check: reads the repository and reports all damage.
//!
//! A damage does not end the check; only the parts that it hides cannot be checked. An error means that the
//! store itself failed.
//!
//! Not here: packs (`pack_check`), one snapshot (`verify`), the snapshots that share a damaged part (`affected`).

pub(crate) mod affected;
mod pack_check;
mod scan;
pub(crate) mod verify;

use crate::catalog::fields::SessionId;
use crate::catalog::vm::PublishedSnapshot;
use crate::check::pack_check::{ChosenPacks, check_packs};
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{CheckReport, Damage, ReadData, SnapshotId};
use crate::retention::misdated;
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::fetch::WantedChunk;
use crate::snapshot::recipe::{DiskRoot, FrameRef, PAGE_SEGMENTS, SegmentRecipe};
use crate::snapshot::tree::TreeReader;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// Chunks that are verified or looked up together: on average 300 MiB of disk.
const CHUNKS_OF_A_PART: usize = 16 << 10;
/// Damages listed in a report; more are counted.
const MAX_DAMAGES: usize = 1000;

impl CheckReport {
    /// Adds damage that another layer found; damages beyond the limit are counted.
    pub fn add(&mut self, what: &str, detail: String) {
        if self.damages.len() >= MAX_DAMAGES {
            self.more_damages += 1;
            return;
        }
        self.damages.push(Damage { what: what.to_owned(), detail, snapshots: Vec::new() });
    }

    /// Notes a damage; returns an error that is not damage.
    pub(crate) fn note(&mut self, error: Error, snapshot: Option<SnapshotId>) -> Result<()> {
        let noted = self.note_at(error)?;
        if let Some(snapshot) = snapshot {
            self.hurts(noted, snapshot);
        }
        Ok(())
    }

    /// As `note`; returns the number in the report, `None` if the damage is only counted.
    pub(crate) fn note_at(&mut self, error: Error) -> Result<Option<usize>> {
        let (what, detail) = words(error)?;
        if let Some(known) = self.known(&what, &detail) {
            return Ok(Some(known));
        }
        if self.damages.len() >= MAX_DAMAGES {
            self.more_damages += 1;
            return Ok(None);
        }
        self.damages.push(Damage { what, detail, snapshots: Vec::new() });
        Ok(Some(self.damages.len() - 1))
    }

    /// Notes that a snapshot meets a known damage. Returns an error that is not damage.
    pub(crate) fn met(&mut self, error: Error, snapshot: SnapshotId) -> Result<()> {
        let (what, detail) = words(error)?;
        let known = self.known(&what, &detail);
        self.hurts(known, snapshot);
        Ok(())
    }

    fn known(&self, what: &str, detail: &str) -> Option<usize> {
        self.damages.iter().position(|known| known.what == what && known.detail == detail)
    }

    /// Adds the snapshot to damage `number`, or to those that are only counted.
    pub(crate) fn hurts(&mut self, number: Option<usize>, snapshot: SnapshotId) {
        let hurt = match number {
            Some(number) => &mut self.damages[number].snapshots,
            None => &mut self.more_snapshots,
        };
        if hurt.last() != Some(&snapshot) && !hurt.contains(&snapshot) {
            hurt.push(snapshot);
        }
    }
}

/// Object and detail of a damage; returns an error that is not damage.
fn words(error: Error) -> Result<(String, String)> {
    match error {
        Error::Damaged { what, detail } => Ok((what, detail)),
        error if error.is_corruption() => Ok(("the repository".into(), error.to_string())),
        error @ Error::Version { .. } => Ok(("the repository".into(), error.to_string())),
        error => Err(error),
    }
}

/// Checks the whole repository.
pub(crate) fn check(
    parts: &RepositoryParts,
    read_data: ReadData,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let catalog = parts.catalog();
    let domain = catalog.examine_domain(|error| report.note(error, None))?;
    let mut unfinished: HashSet<SessionId> = HashSet::new();
    let mut vms = domain.vms;
    vms.sort_by(|a, b| a.name.cmp(&b.name));
    let mut published = Vec::new();
    for vm in &vms {
        let state = catalog.examine_vm(vm.uuid, |error| report.note(error, None))?;
        unfinished.extend(state.open.iter().chain(&state.fenced));
        let times: Vec<u64> = state.published.iter().map(|one| one.created_ms).collect();
        let misdated = misdated(&times, parts.pack_store().volumes.store.now_ms());
        let named = state.published.iter().zip(misdated);
        report.misdated.extend(named.filter_map(|(one, misdated)| Some((one.snapshot, misdated?))));
        published.push((vm.uuid, state.published));
    }
    let snapshots: usize = published.iter().map(|(_, published)| published.len()).sum();
    progress.stage(Stage::Walk, "snapshots", snapshots as u64);
    for (vm, published) in &published {
        check_vm(parts, *vm, published, &mut report, progress, cancel)?;
    }
    let packs = ChosenPacks::list(parts.pack_store(), read_data)?;
    let places = check_packs(parts.pack_store(), &packs, &unfinished, &mut report, progress, cancel)?;
    if !report.is_clean() {
        affected::affected_snapshots(parts, &vms, &places, &mut report, progress, cancel)?;
    }
    Ok(report)
}

fn check_vm(
    parts: &RepositoryParts,
    vm: Uuid,
    published: &[PublishedSnapshot],
    report: &mut CheckReport,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<()> {
    let pack_store = parts.pack_store();
    if let Err(error) = parts.apply_moved_lists(vm) {
        report.note(error, None)?;
    }
    let mut walker = CheckWalk::new(parts, vm, cancel)?;
    let mut before: HashMap<String, DiskRoot> = HashMap::new();
    for published in published {
        let id = published.snapshot;
        report.snapshots += 1;
        progress.advance(1);
        let Some(manifest) = noted(parts.manifest(vm, published), report, id)? else {
            continue;
        };
        for disk in &manifest.disks {
            let root = walker.tree.root(&disk.root, disk.size_bytes);
            let Some(root) = noted(root, report, id)? else {
                continue;
            };
            report.recipes += 1;
            let old = before.get(&disk.name);
            let mut wanted = Vec::new();
            walker.disk(&root, old, id, report, |report, recipe| {
                wanted.extend(WantedChunk::of_segment(recipe, 0));
                match wanted.len() < CHUNKS_OF_A_PART {
                    true => Ok(()),
                    false => check_references(pack_store, &mut wanted, id, report),
                }
            })?;
            check_references(pack_store, &mut wanted, id, report)?;
            before.insert(disk.name.clone(), root);
        }
    }
    Ok(())
}

/// Resolves the references of a part of a disk, and empties the list of them.
fn check_references(
    pack_store: &PackStore,
    wanted: &mut Vec<WantedChunk>,
    id: SnapshotId,
    report: &mut CheckReport,
) -> Result<()> {
    let places: Vec<_> = wanted.iter().map(|wanted| wanted.chunk.place()).collect();
    pack_store.find_frames(&places, &mut |at, located| {
        let located = located.map_or_else(|| pack_store.locate(&wanted[at].chunk), Ok);
        let Some(located) = noted(located, report, id)? else {
            return Ok(());
        };
        if located.row().raw == wanted[at].length {
            report.references += 1;
            return Ok(());
        }
        report.note(located.wrong_length(), Some(id))
    })?;
    wanted.clear();
    Ok(())
}

/// Receives the findings of a walk.
trait WalkFindings {
    /// Notes a damage; returns an error that is not damage.
    fn damage(&mut self, error: Error, snapshot: SnapshotId) -> Result<()>;

    /// Counts a recipe, page or root.
    fn recipe(&mut self);
}

impl WalkFindings for CheckReport {
    fn damage(&mut self, error: Error, snapshot: SnapshotId) -> Result<()> {
        self.note(error, Some(snapshot))
    }

    fn recipe(&mut self) {
        self.recipes += 1;
    }
}

/// Walks the parts of a disk that it does not share with an older one.
struct CheckWalk<'a> {
    tree: TreeReader<'a>,
    cancel: &'a CancelFlag,
}

impl<'a> CheckWalk<'a> {
    fn new(parts: &'a RepositoryParts, vm: Uuid, cancel: &'a CancelFlag) -> Result<CheckWalk<'a>> {
        Ok(CheckWalk { tree: TreeReader::new(parts.pack_store(), vm)?, cancel })
    }

    fn disk<F: WalkFindings>(
        &mut self,
        root: &DiskRoot,
        old: Option<&DiskRoot>,
        id: SnapshotId,
        findings: &mut F,
        mut visit: impl FnMut(&mut F, &SegmentRecipe) -> Result<()>,
    ) -> Result<()> {
        for (index, page) in root.pages.iter().enumerate() {
            let before = old.and_then(|old| old.pages.get(index).copied().flatten());
            let Some(reference) = page.as_ref().filter(|page| before.as_ref() != Some(page)) else {
                continue;
            };
            let index = index as u64;
            let page = self.tree.page(Some(reference), root.size_bytes, index);
            let Some(page) = noted(page, findings, id)? else {
                continue;
            };
            findings.recipe();
            let old_size = old.map_or(0, |old| old.size_bytes);
            let shared = before.and_then(|before| self.tree.page(Some(&before), old_size, index).ok());
            let is_new = |(within, segment): &(usize, &FrameRef)| {
                shared.as_ref().and_then(|page| page.segments.get(*within).copied().flatten())
                    != Some(**segment)
            };
            let segments = page.segments.iter().enumerate();
            let segments = segments.filter_map(|(within, segment)| Some((within, segment.as_ref()?)));
            let segments: Vec<(usize, &FrameRef)> = segments.filter(is_new).collect();
            self.tree.announce(segments.iter().map(|(_, segment)| *segment));
            for (within, segment) in segments {
                if self.cancel.is_cancelled() {
                    return Err(Error::Cancelled { kept_bytes: None });
                }
                let number = index * PAGE_SEGMENTS as u64 + within as u64;
                let recipe = self.tree.segment(segment, root.size_bytes, number);
                let Some(recipe) = noted(recipe, findings, id)? else {
                    continue;
                };
                findings.recipe();
                visit(findings, &recipe)?;
            }
        }
        Ok(())
    }
}

fn noted<T>(outcome: Result<T>, findings: &mut impl WalkFindings, snapshot: SnapshotId) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) => findings.damage(error, snapshot).map(|()| None),
    }
}
