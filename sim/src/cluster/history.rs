//! Operations of all clients with their results, and the rules that these results must obey.
//!
//! Every body is different, so the bytes of a file identify its create even if the client never received the
//! file's id. A file lives once: its life begins within its create and ends within a delete. This suffices to
//! check reads of a name as a register, without a search.

use copal_volume::{
    FileId, FileInfo, VolumeId,
    group::invariants::{FileResults, KnownResult},
};
use std::collections::{BTreeMap, BTreeSet};

/// Start of an operation and time of its result; ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallSpan {
    pub(super) began_ms: u64,
    /// None: the client got no result.
    pub(super) ended_ms: Option<u64>,
}

impl CallSpan {
    /// Whether it ended before the other began.
    fn is_before(&self, other: &CallSpan) -> bool {
        self.ended_ms.is_some_and(|ended| ended < other.began_ms)
    }

    /// Whether it may have taken effect before the other ended.
    fn may_be_before(&self, other: &CallSpan) -> bool {
        other.ended_ms.is_none_or(|ended| self.began_ms <= ended)
    }
}

/// A create.
#[derive(Clone, Debug)]
pub(super) struct Create {
    pub(super) vid: VolumeId,
    pub(super) name: Vec<u8>,
    pub(super) body: Vec<u8>,
    pub(super) span: CallSpan,
    pub(super) known: KnownResult,
    /// The id that the client drew last; none: the client never received one.
    pub(super) fid: Option<FileId>,
}

/// A delete of a file.
#[derive(Clone, Debug)]
pub(super) struct Delete {
    pub(super) fid: FileId,
    pub(super) span: CallSpan,
    pub(super) known: KnownResult,
}

/// Result of a strict read of a name.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) vid: VolumeId,
    pub(super) name: Vec<u8>,
    pub(super) span: CallSpan,
    pub(super) shown: Option<FileId>,
}

/// Result of a strict list of a volume.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) vid: VolumeId,
    pub(super) span: CallSpan,
    pub(super) files: Vec<(Vec<u8>, FileId)>,
}

/// Operations of a run.
#[derive(Default)]
pub(super) struct History {
    pub(super) creates: Vec<Create>,
    pub(super) deletes: Vec<Delete>,
    pub(super) reads: Vec<Read>,
    pub(super) lists: Vec<Listed>,
    /// The create of each file that a read has shown.
    made_by: BTreeMap<FileId, usize>,
    /// Violations found during the run.
    pub(super) wrong: Vec<String>,
}

impl History {
    /// Records the create of a file that a read has shown.
    pub(super) fn saw(&mut self, info: &FileInfo) {
        if let Ok(number) = info.metadata[..].try_into() {
            self.made_by.insert(info.fid, u64::from_be_bytes(number) as usize);
        }
    }

    /// The create that wrote a body.
    pub(super) fn create_of(&self, body: &[u8]) -> Option<&Create> {
        let number = body.get(..8)?.try_into().ok().map(u64::from_be_bytes)?;
        let create = self.creates.get(number as usize)?;
        (create.body == body).then_some(create)
    }

    /// Known result of all deletes of a file.
    fn deleted(&self, fid: FileId) -> KnownResult {
        let deletes = self.deletes.iter().filter(|delete| delete.fid == fid);
        let mut known = KnownResult::NotAsked;
        for delete in deletes {
            known = match (known, delete.known) {
                (KnownResult::Complete, _) | (_, KnownResult::Complete) => KnownResult::Complete,
                _ => KnownResult::Open,
            };
        }
        known
    }

    /// All files with known ids, for the invariants.
    pub(super) fn files(&self) -> Vec<FileResults<'_>> {
        let known = self.creates.iter().filter_map(|create| {
            let fid = create.fid?;
            Some(FileResults {
                vid: create.vid,
                name: &create.name,
                fid,
                created: create.known,
                deleted: self.deleted(fid),
            })
        });
        known.collect()
    }

    /// Every name that was used.
    pub(super) fn names(&self) -> BTreeSet<(VolumeId, Vec<u8>)> {
        let names = self.creates.iter();
        names.map(|create| (create.vid, create.name.clone())).collect()
    }

    /// Number of reads that showed a file without an acknowledged create. Its creator deletes it or has begun
    /// to, even if all replicas that are up have it by then (docs/design/cluster.md#not-built).
    pub(super) fn shown_without_promise(&self) -> u64 {
        let reads = self.reads.iter().filter_map(|read| read.shown);
        reads.filter(|fid| self.was_not_acknowledged(*fid)).count() as u64
    }

    fn was_not_acknowledged(&self, fid: FileId) -> bool {
        let create = self.made_by.get(&fid).and_then(|number| self.creates.get(*number));
        create.is_some_and(|create| create.known != KnownResult::Complete)
    }

    /// All contradictions to results that clients received.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut found = self.wrong.clone();
        let deletes = self.deletes_by_file();
        for read in &self.reads {
            self.judge_read(read, &deletes, &mut found);
        }
        self.judge_order(&mut found);
        for list in &self.lists {
            self.judge_list(list, &deletes, &mut found);
        }
        self.judge_owners(&deletes, &mut found);
        found
    }

    fn deletes_by_file(&self) -> BTreeMap<FileId, Vec<&Delete>> {
        let mut by_file: BTreeMap<FileId, Vec<&Delete>> = BTreeMap::new();
        for delete in &self.deletes {
            by_file.entry(delete.fid).or_default().push(delete);
        }
        by_file
    }

    /// Files of a name that surely exist during `at`: acknowledged before it began, with no delete that began
    /// before its end.
    fn surely_existing<'a>(
        &'a self,
        vid: VolumeId,
        name: &'a [u8],
        at: &'a CallSpan,
        deletes: &'a BTreeMap<FileId, Vec<&'a Delete>>,
    ) -> impl Iterator<Item = FileId> + 'a {
        let of_name = self.creates.iter().filter(move |create| (create.vid, &*create.name) == (vid, name));
        let held =
            of_name.filter(move |create| create.known == KnownResult::Complete && create.span.is_before(at));
        held.filter_map(|create| create.fid).filter(move |fid| {
            let mut of = deletes.get(fid).into_iter().flatten();
            !of.any(|delete| delete.span.may_be_before(at))
        })
    }

    fn is_surely_deleted(
        &self,
        fid: FileId,
        at: &CallSpan,
        deletes: &BTreeMap<FileId, Vec<&Delete>>,
    ) -> bool {
        let mut of = deletes.get(&fid).into_iter().flatten();
        of.any(|delete| delete.known == KnownResult::Complete && delete.span.is_before(at))
    }

    fn judge_read(&self, read: &Read, deletes: &BTreeMap<FileId, Vec<&Delete>>, found: &mut Vec<String>) {
        let name = String::from_utf8_lossy(&read.name);
        if let Some(fid) = read.shown
            && self.is_surely_deleted(fid, &read.span, deletes)
        {
            found.push(format!(
                "a strict read of {name} showed {fid}, whose delete had been acknowledged: {read:?}"
            ));
        }
        let there = self.surely_existing(read.vid, &read.name, &read.span, deletes);
        for fid in there.filter(|fid| read.shown != Some(*fid)) {
            found.push(format!(
                "a strict read of {name} did not show {fid}, which had been acknowledged: {read:?}"
            ));
        }
    }

    /// Checks that a strict list agrees with strict reads of each name.
    fn listed_by_name(&self) -> Vec<Read> {
        let names = self.names();
        let of_list = |list: &Listed| {
            let shown: BTreeMap<Vec<u8>, FileId> = list.files.iter().cloned().collect();
            let names = names.iter().filter(|(vid, _)| *vid == list.vid);
            let reads = names.map(|(vid, name)| Read {
                vid: *vid,
                name: name.clone(),
                span: list.span,
                shown: shown.get(name).copied(),
            });
            reads.collect::<Vec<_>>()
        };
        self.lists.iter().flat_map(of_list).collect()
    }

    /// Checks that a file that one strict read or list has shown, or shown to be deleted, stays so in all
    /// later ones.
    fn judge_order(&self, found: &mut Vec<String>) {
        let mut by_name: BTreeMap<(VolumeId, &[u8]), Vec<&Read>> = BTreeMap::new();
        let listed = self.listed_by_name();
        for read in self.reads.iter().chain(&listed) {
            by_name.entry((read.vid, &read.name)).or_default().push(read);
        }
        for reads in by_name.values() {
            for first in reads {
                let Some(fid) = first.shown.filter(|fid| !self.was_not_acknowledged(*fid)) else {
                    continue;
                };
                for second in reads.iter().filter(|second| first.span.is_before(&second.span)) {
                    if second.shown == Some(fid) {
                        continue;
                    }
                    let mut asked = self.deletes.iter().filter(|delete| delete.fid == fid);
                    if !asked.any(|delete| delete.span.may_be_before(&second.span)) {
                        found.push(format!("a strict read showed {fid}, a later one did not, and no client had deleted it: {first:?} {second:?}"));
                    }
                    let later = reads.iter().filter(|third| second.span.is_before(&third.span));
                    for third in later.filter(|third| third.shown == Some(fid)) {
                        found.push(format!(
                            "{fid} was shown, gone, and shown again: {first:?} {second:?} {third:?}"
                        ));
                    }
                }
            }
        }
    }

    /// I8: a list has every file that existed all the time once, has none that was deleted before, and is in
    /// order of the names.
    fn judge_list(&self, list: &Listed, deletes: &BTreeMap<FileId, Vec<&Delete>>, found: &mut Vec<String>) {
        if !list.files.is_sorted_by(|one, other| one.0 < other.0) {
            found.push(format!("I8: a list is out of order: {list:?}"));
        }
        for (_, fid) in &list.files {
            if self.is_surely_deleted(*fid, &list.span, deletes) {
                found.push(format!("I8: a list has {fid}, whose delete had been acknowledged: {list:?}"));
            }
        }
        for (vid, name) in self.names() {
            if vid != list.vid {
                continue;
            }
            for fid in self.surely_existing(vid, &name, &list.span, deletes) {
                if !list.files.contains(&(name.clone(), fid)) {
                    found.push(format!("I8: a list lacks {fid}, which was there all the time: {list:?}"));
                }
            }
        }
    }

    /// I4 over time: of two acknowledged files of a name, the delete of one began before the other was
    /// acknowledged.
    fn judge_owners(&self, deletes: &BTreeMap<FileId, Vec<&Delete>>, found: &mut Vec<String>) {
        let held: Vec<&Create> =
            self.creates.iter().filter(|create| create.known == KnownResult::Complete).collect();
        for (at, one) in held.iter().enumerate() {
            for other in
                held[at + 1..].iter().filter(|other| (other.vid, &other.name) == (one.vid, &one.name))
            {
                let goes = |first: &Create, then: &Create| {
                    let of = first.fid.and_then(|fid| deletes.get(&fid));
                    of.into_iter().flatten().any(|delete| delete.span.may_be_before(&then.span))
                };
                if !goes(one, other) && !goes(other, one) {
                    found.push(format!(
                        "I4: two files of one name were acknowledged: {:?} and {:?}",
                        one.fid, other.fid
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_volume::group::GroupId;

    const FILE: FileId = FileId(1);

    fn volume() -> VolumeId {
        VolumeId::in_group(GroupId(1), 1)
    }

    fn span(began_ms: u64, ended_ms: u64) -> CallSpan {
        CallSpan { began_ms, ended_ms: Some(ended_ms) }
    }

    fn create(fid: FileId, span: CallSpan) -> Create {
        Create {
            vid: volume(),
            name: b"n".to_vec(),
            body: vec![1],
            span,
            known: KnownResult::Complete,
            fid: Some(fid),
        }
    }

    fn read(span: CallSpan, shown: Option<FileId>) -> Read {
        Read { vid: volume(), name: b"n".to_vec(), span, shown }
    }

    fn delete(span: CallSpan) -> Delete {
        Delete { fid: FILE, span, known: KnownResult::Complete }
    }

    /// A file that was acknowledged at 10 ms and, with `deleted`, whose delete was acknowledged at 30 ms.
    fn history(deleted: bool, reads: Vec<Read>) -> History {
        History {
            creates: vec![create(FILE, span(0, 10))],
            deletes: deleted.then(|| delete(span(20, 30))).into_iter().collect(),
            reads,
            made_by: BTreeMap::from([(FILE, 0)]),
            ..History::default()
        }
    }

    #[test]
    fn contradictions_to_acknowledged_results_are_found() {
        let fine = [
            history(false, vec![read(span(5, 6), None), read(span(11, 12), Some(FILE))]),
            history(true, vec![read(span(25, 26), None), read(span(31, 32), None)]),
            history(true, vec![read(span(25, 29), Some(FILE)), read(span(31, 32), None)]),
        ];
        for history in fine {
            assert_eq!(history.violations(), [""; 0]);
        }
        let lists = |files| {
            let listed = Listed { vid: volume(), span: span(11, 12), files };
            History { lists: vec![listed], ..history(false, vec![]) }
        };
        let wrong = [
            ("lost", history(false, vec![read(span(11, 12), None)])),
            ("deleted back", history(true, vec![read(span(31, 32), Some(FILE))])),
            (
                "shown, gone and shown again",
                history(
                    true,
                    [Some(FILE), None, Some(FILE)]
                        .into_iter()
                        .zip([21, 23, 25])
                        .map(|(shown, at)| read(span(at, at + 1), shown))
                        .collect(),
                ),
            ),
            ("not listed", lists(vec![])),
            (
                "listed, and gone from a read",
                History {
                    lists: vec![Listed {
                        vid: volume(),
                        span: span(5, 6),
                        files: vec![(b"n".to_vec(), FILE)],
                    }],
                    ..history(false, vec![read(span(7, 8), None)])
                },
            ),
            ("out of order", lists(vec![(b"z".to_vec(), FileId(9)), (b"n".to_vec(), FILE)])),
            (
                "two owners",
                History {
                    creates: vec![create(FILE, span(0, 10)), create(FileId(2), span(5, 12))],
                    ..History::default()
                },
            ),
        ];
        for (what, history) in wrong {
            assert_ne!(history.violations(), [""; 0], "{what}");
        }
    }
}
