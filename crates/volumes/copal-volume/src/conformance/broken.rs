//! Stores that break one promise each: the suite must notice every one of them.

use super::CASES;
use crate::error::VolumeError;
use crate::ids::{FileId, VolumeId};
use crate::memory::MemoryStore;
use crate::store::{
    Consistency, FileInfo, FilePage, FileWriter, PutOptions, RangeSink, ReadOptions, RemoveMode,
    SettleChoice, SettleOutcome, VolumeOptions, VolumeStats, VolumeStore,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A correct store with one fault.
struct Broken {
    twin: MemoryStore,
    fault: Fault,
    /// Result of the last list of a volume.
    listed: Mutex<HashMap<VolumeId, Page>>,
}

type Page = Vec<(Bytes, FileInfo)>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    LoserIsToldItWon,
    PutReplaces,
    DeleteIgnoresTheFileId,
    RangeIsShiftedByOne,
    RangesAreAnsweredInOrderOfPlace,
    RangesGoOnAfterTheEnd,
    RangesSkipEmptyOnes,
    RangesOfNoFileAreEmpty,
    IfFileIsIgnored,
    TimesGoBack,
    LongNamesAreCut,
    ListForgetsThePrefix,
    ListStartsAtAfter,
    EachPageIsTheLast,
    ListRunsBackwards,
    ListDropsOne,
    StrictListIsLate,
    DroppedWriterCommits,
    WriterIsVisibleAtOnce,
    MetadataIsLost,
    StatsCountTwice,
    QuotaIsIgnored,
    RemoveTakesFilesUnasked,
    RemoveForgetsVolumesBelow,
    RenameLosesFiles,
    SettleSaysAborted,
    BatchOverwritesItself,
    BatchAnswersInReverse,
    BatchHasNoLimit,
}

const FAULTS: [Fault; 29] = [
    Fault::LoserIsToldItWon,
    Fault::PutReplaces,
    Fault::DeleteIgnoresTheFileId,
    Fault::RangeIsShiftedByOne,
    Fault::RangesAreAnsweredInOrderOfPlace,
    Fault::RangesGoOnAfterTheEnd,
    Fault::RangesSkipEmptyOnes,
    Fault::RangesOfNoFileAreEmpty,
    Fault::IfFileIsIgnored,
    Fault::TimesGoBack,
    Fault::LongNamesAreCut,
    Fault::ListForgetsThePrefix,
    Fault::ListStartsAtAfter,
    Fault::EachPageIsTheLast,
    Fault::ListRunsBackwards,
    Fault::ListDropsOne,
    Fault::StrictListIsLate,
    Fault::DroppedWriterCommits,
    Fault::WriterIsVisibleAtOnce,
    Fault::MetadataIsLost,
    Fault::StatsCountTwice,
    Fault::QuotaIsIgnored,
    Fault::RemoveTakesFilesUnasked,
    Fault::RemoveForgetsVolumesBelow,
    Fault::RenameLosesFiles,
    Fault::SettleSaysAborted,
    Fault::BatchOverwritesItself,
    Fault::BatchAnswersInReverse,
    Fault::BatchHasNoLimit,
];

impl Broken {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn find(&self, vid: VolumeId, name: &[u8]) -> Option<FileInfo> {
        self.twin.stat(vid, name, &ReadOptions::default()).ok()
    }
}

/// Commits on drop, even without a call of `commit`.
struct CommitsOnDrop(Option<Box<dyn FileWriter>>);

impl FileWriter for CommitsOnDrop {
    fn append(&mut self, data: Bytes) -> Result<(), VolumeError> {
        self.0.as_mut().map_or(Ok(()), |writer| writer.append(data))
    }
    fn commit(mut self: Box<Self>) -> Result<FileInfo, VolumeError> {
        self.0.take().ok_or(VolumeError::NotFound)?.commit()
    }
}

impl Drop for CommitsOnDrop {
    fn drop(&mut self) {
        if let Some(writer) = self.0.take() {
            drop(writer.commit());
        }
    }
}

/// Shows an empty file until the real one is committed.
struct VisibleAtOnce {
    twin: MemoryStore,
    at: (VolumeId, Vec<u8>),
    placeholder: FileId,
    writer: Box<dyn FileWriter>,
}

impl FileWriter for VisibleAtOnce {
    fn append(&mut self, data: Bytes) -> Result<(), VolumeError> {
        self.writer.append(data)
    }
    fn commit(self: Box<Self>) -> Result<FileInfo, VolumeError> {
        self.twin.delete(self.at.0, &self.at.1, self.placeholder)?;
        self.writer.commit()
    }
}

impl VolumeStore for Broken {
    fn now_ms(&self) -> u64 {
        self.twin.now_ms()
    }
    fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError> {
        let mut options = options.clone();
        if self.is(Fault::QuotaIsIgnored) {
            options.quota_bytes = None;
        }
        self.twin.create_volume(parent, name, &options)
    }
    fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError> {
        self.twin.open_volume(path)
    }
    fn rename_volume(&self, from: &str, to: &str) -> Result<(), VolumeError> {
        self.twin.rename_volume(from, to)?;
        if self.is(Fault::RenameLosesFiles) {
            let vid = self.twin.open_volume(to)?;
            for (name, info) in self.twin.list(vid, b"", None, usize::MAX, &ReadOptions::STRICT)? {
                self.twin.delete(vid, &name, info.fid)?;
            }
        }
        Ok(())
    }
    fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        self.twin.list_volumes(parent, after, limit)
    }
    fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
        if self.is(Fault::RemoveTakesFilesUnasked) {
            return self.twin.remove_volume(vid, RemoveMode::WithFiles);
        }
        match self.twin.remove_volume(vid, how) {
            Err(VolumeError::NotEmpty) if self.is(Fault::RemoveForgetsVolumesBelow) => {
                for n in 0..3 {
                    let below = self.twin.open_volume(&format!("a/{}", ["b", "c", "d"][n]));
                    if let Ok(below) = below {
                        self.twin.remove_volume(below, RemoveMode::WithFiles)?;
                    }
                }
                self.twin.remove_volume(vid, how)
            }
            answer => answer,
        }
    }
    fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError> {
        let name = match self.fault {
            Fault::LongNamesAreCut => &name[..name.len().min(crate::MAX_FILE_NAME_BYTES)],
            _ => name,
        };
        let mut options = options.clone();
        if self.is(Fault::MetadataIsLost) {
            options.metadata = Bytes::new();
        }
        if self.is(Fault::PutReplaces)
            && let Some(old) = self.find(vid, name)
        {
            self.twin.delete(vid, name, old.fid)?;
        }
        let answer = self.twin.put(vid, name, body, &options);
        match answer {
            Err(VolumeError::Exists { .. }) if self.is(Fault::LoserIsToldItWon) => {
                self.find(vid, name).ok_or(VolumeError::NotFound)
            }
            Ok(mut info) if self.is(Fault::TimesGoBack) => {
                info.created_ms = u64::MAX - info.created_ms - u64::from(info.fid.counter());
                Ok(info)
            }
            answer => answer,
        }
    }
    fn writer(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &PutOptions,
    ) -> Result<Box<dyn FileWriter>, VolumeError> {
        let writer = self.twin.writer(vid, name, options)?;
        match self.fault {
            Fault::DroppedWriterCommits => Ok(Box::new(CommitsOnDrop(Some(writer)))),
            Fault::WriterIsVisibleAtOnce => {
                let placeholder = self.twin.put(vid, name, Bytes::new(), options)?;
                Ok(Box::new(VisibleAtOnce {
                    twin: self.twin.clone(),
                    at: (vid, name.to_vec()),
                    placeholder: placeholder.fid,
                    writer,
                }))
            }
            _ => Ok(writer),
        }
    }
    fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError> {
        let mut options = *options;
        if self.is(Fault::IfFileIsIgnored) {
            options.if_file = None;
        }
        let range = match self.fault {
            Fault::RangeIsShiftedByOne if range.start > 0 => range.start - 1..range.end,
            _ => range,
        };
        self.twin.get(vid, name, range, &options)
    }
    fn read_ranges(
        &self,
        vid: VolumeId,
        name: &[u8],
        ranges: &[Range<u64>],
        options: &ReadOptions,
        sink: &mut RangeSink<'_>,
    ) -> Result<(), VolumeError> {
        let mut ranges = ranges.to_vec();
        if self.is(Fault::RangesAreAnsweredInOrderOfPlace) {
            ranges.sort_by_key(|range| range.start);
        }
        for (index, range) in ranges.into_iter().enumerate() {
            if self.is(Fault::RangesSkipEmptyOnes) && range.is_empty() {
                continue;
            }
            let answer = match self.get(vid, name, range, options) {
                Err(VolumeError::NotFound) if self.is(Fault::RangesOfNoFileAreEmpty) => Ok(Bytes::new()),
                answer => Ok(answer?),
            };
            if sink(index, answer).is_break() && !self.is(Fault::RangesGoOnAfterTheEnd) {
                break;
            }
        }
        Ok(())
    }
    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError> {
        self.twin.stat(vid, name, options)
    }
    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        options: &ReadOptions,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        let prefix = match self.fault {
            Fault::ListForgetsThePrefix => b"",
            _ => prefix,
        };
        let mut page = self.twin.list(vid, prefix, after, limit, options)?;
        match self.fault {
            Fault::ListRunsBackwards => page.reverse(),
            Fault::StrictListIsLate if options.consistency == Consistency::Strict => {
                let newer = page.clone();
                if let Some(older) = self.listed.lock().insert(vid, newer) {
                    page = older;
                }
            }
            Fault::ListDropsOne if page.len() > 5 => drop(page.remove(3)),
            Fault::ListStartsAtAfter => {
                if let Some(after) = after
                    && let Some(info) = self.find(vid, after)
                {
                    page.insert(0, (Bytes::copy_from_slice(after), info));
                    page.truncate(limit);
                }
            }
            _ => {}
        }
        Ok(page)
    }
    fn list_page(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        options: &ReadOptions,
    ) -> Result<FilePage, VolumeError> {
        let files = self.list(vid, prefix, after, limit, options)?;
        let is_last = files.is_empty() || self.is(Fault::EachPageIsTheLast);
        Ok(FilePage { files, is_last })
    }
    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        let fid = match self.fault {
            Fault::DeleteIgnoresTheFileId => self.find(vid, name).map_or(fid, |info| info.fid),
            _ => fid,
        };
        self.twin.delete(vid, name, fid)
    }
    fn settle(&self, vid: VolumeId, fid: FileId, want: SettleChoice) -> Result<SettleOutcome, VolumeError> {
        let outcome = self.twin.settle(vid, fid, want)?;
        Ok(match self.fault {
            Fault::SettleSaysAborted => SettleOutcome::Aborted,
            _ => outcome,
        })
    }
    fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Result<FileInfo, VolumeError>>, VolumeError> {
        match self.fault {
            Fault::BatchHasNoLimit => Ok(files
                .into_iter()
                .map(|(name, body, options)| self.put(vid, &name, body, &options))
                .collect()),
            Fault::BatchOverwritesItself => {
                let again: Vec<_> = files.iter().rev().cloned().collect();
                let mut answers = self.twin.put_batch(vid, again)?;
                answers.reverse();
                Ok(answers)
            }
            _ => self.twin.put_batch(vid, files),
        }
    }
    fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError> {
        let mut answers = self.twin.get_batch(vid, names, options)?;
        if self.is(Fault::BatchAnswersInReverse) {
            answers.reverse();
        }
        Ok(answers)
    }
    fn delete_batch(
        &self,
        vid: VolumeId,
        files: &[(Bytes, FileId)],
    ) -> Result<Vec<Result<(), VolumeError>>, VolumeError> {
        self.twin.delete_batch(vid, files)
    }
    fn volume_stats(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
        let mut stats = self.twin.volume_stats(vid)?;
        if self.is(Fault::StatsCountTwice) {
            stats.bytes *= 2;
        }
        Ok(stats)
    }
    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError> {
        self.twin.reclaim(vid)
    }
}

/// Names of the cases that fail on a store with this fault.
fn failing(fault: Fault) -> Vec<&'static str> {
    CASES
        .iter()
        .filter(|(_, case)| {
            let store = Broken { twin: MemoryStore::new(), fault, listed: Mutex::default() };
            catch_unwind(AssertUnwindSafe(|| case(&store))).is_err()
        })
        .map(|(name, _)| *name)
        .collect()
}

#[test]
fn every_broken_promise_is_noticed() {
    assert_eq!(failing(Fault::None), [""; 0], "the wrapper itself is right");
    for fault in FAULTS {
        let failed = failing(fault);
        assert!(!failed.is_empty(), "{fault:?} went unnoticed");
        let random = CASES[CASES.len() - 1].0;
        assert!(failed != [random], "{fault:?} was noticed only by the random history");
    }
}
