//! Strict lists: for each name the answer that a strict read of it would give.
//!
//! All replicas that are up list the same part of a volume in one view, and their pages are merged by name.
//! - A name that all replicas in sync show alike, or that no replica shows, is answered by the merged page.
//! - A name is read by itself if the replicas in sync differ, if only another replica shows it, or if its create
//!   may still be refused by another replica.
//!
//! Design: docs/design/cluster.md#rules VOL-22
//! Invariant: a name counts only up to the first end of a page that continues.

use super::{ViewAnswers, call_all, is_decided, pause, stat};
use crate::operation::run::OperationRunner;
use bytes::Bytes;
use copal_proto::{
    Method, id,
    messages::{self, FileHead, ListReply},
};
use copal_volume::{VolumeError, VolumeId, group::View};
use futures_util::future::join_all;
use std::{collections::BTreeMap, time::Instant};

/// Strict reads of single names that run at a time.
const CONCURRENT_READS: usize = 16;

/// The part of a volume that is listed.
pub(crate) struct ListRange {
    pub(crate) vid: VolumeId,
    pub(crate) prefix: Bytes,
    pub(crate) after: Option<Bytes>,
    pub(crate) limit: usize,
}

impl ListRange {
    /// The request to a replica of a view.
    pub(crate) fn request(&self, view: &View) -> messages::List {
        messages::List {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: self.vid.0,
            prefix: self.prefix.clone(),
            after: self.after.clone().unwrap_or_default(),
            has_after: self.after.is_some(),
            limit: self.limit as u32,
        }
    }
}

/// Files in the order of their names.
pub(crate) struct ListPage {
    pub(crate) files: Vec<(Bytes, FileHead)>,
    /// Name after which more files may follow; `None`: the list ends here.
    pub(crate) next_after: Option<Bytes>,
}

impl From<ListReply> for ListPage {
    fn from(reply: ListReply) -> ListPage {
        let last = reply.files.last().map(|file| file.name.clone());
        let files = reply.files.into_iter();
        ListPage {
            files: files.map(|file| (file.name, file.head.unwrap_or_default())).collect(),
            next_after: last.filter(|_| reply.more),
        }
    }
}

/// A page of a volume, by the answers of all replicas that are up. A page without files may still continue.
/// # Errors
/// `VolumeGone`; `Denied`; `Corrupt`: no replica in sync can read it; `Deadline`: not all of them answered in one
/// view until `end`.
pub(crate) async fn list(
    operations: &OperationRunner,
    range: &ListRange,
    end: Instant,
) -> Result<ListPage, VolumeError> {
    let router = operations.router();
    loop {
        let view = router.view(range.vid, end).await?;
        let request = range.request(&view);
        match call_all::<ListReply>(router, &view, Method::List, &request, end).await {
            ViewAnswers::All { in_sync, others } if in_sync.iter().any(Option::is_some) => {
                let all_in_sync = others.is_empty();
                let pages = |replies: Vec<Option<ListReply>>| {
                    let pages = replies.into_iter();
                    pages.map(|page| ListPage::from(page.unwrap_or_default())).collect()
                };
                let merged = merge(pages(in_sync), pages(others));
                return resolve(operations, range.vid, merged, all_in_sync, end).await;
            }
            ViewAnswers::VolumeRemoved => return Err(VolumeError::VolumeGone),
            ViewAnswers::Incomplete(Some(error)) => return Err(error),
            // No replica in sync listed the range, or not all have answered.
            ViewAnswers::All { .. } | ViewAnswers::Incomplete(None) => {}
        }
        pause(end).await?;
    }
}

/// Reads by itself each name that the merged page does not decide.
async fn resolve(
    operations: &OperationRunner,
    vid: VolumeId,
    merged: MergedList,
    all_in_sync: bool,
    end: Instant,
) -> Result<ListPage, VolumeError> {
    let now_ms = operations.map().now_ms();
    let mut files = Vec::with_capacity(merged.names.len());
    for names in merged.names.chunks(CONCURRENT_READS) {
        let read = |(name, shown): &(Bytes, Option<FileHead>)| {
            let (name, shown) = (name.clone(), shown.clone());
            async move {
                let shown = shown.filter(|head| all_in_sync || is_decided(head, now_ms));
                let head = match shown {
                    Some(head) => Some(head),
                    None => match stat(operations, vid, &name, end).await {
                        Ok(head) => Some(head),
                        Err(VolumeError::NotFound) => None,
                        Err(error) => return Err(error),
                    },
                };
                Ok(head.map(|head| (name, head)))
            }
        };
        for file in join_all(names.iter().map(read)).await {
            files.extend(file?);
        }
    }
    Ok(ListPage { files, next_after: merged.next_after })
}

/// Pages of all replicas, merged.
#[derive(Debug, PartialEq)]
struct MergedList {
    /// Names in order, each with the head that all replicas in sync show. `None`: they differ, or only other
    /// replicas show the name.
    names: Vec<(Bytes, Option<FileHead>)>,
    /// As in a [`ListPage`].
    next_after: Option<Bytes>,
}

/// Merges pages by name, up to the first end of a page that continues. Beyond that end the replica of the page
/// may hold names that it did not list.
fn merge(in_sync: Vec<ListPage>, others: Vec<ListPage>) -> MergedList {
    let count = in_sync.len();
    let pages = in_sync.iter().chain(&others);
    let next_after = pages.filter_map(|page| page.next_after.clone()).min();
    let is_listed = |name: &Bytes| next_after.as_ref().is_none_or(|end| name <= end);
    let files = |pages: Vec<ListPage>| pages.into_iter().flat_map(|page| page.files);
    let mut by_name: BTreeMap<Bytes, Vec<FileHead>> = BTreeMap::new();
    for (name, head) in files(in_sync).filter(|(name, _)| is_listed(name)) {
        by_name.entry(name).or_default().push(head);
    }
    for (name, _) in files(others).filter(|(name, _)| is_listed(name)) {
        by_name.entry(name).or_default();
    }
    let names = by_name.into_iter().map(|(name, mut heads)| {
        let are_equal = heads.windows(2).all(|two| id(two[0].fid) == id(two[1].fid));
        let is_agreed = are_equal && heads.len() == count;
        (name, heads.pop().filter(|_| is_agreed))
    });
    MergedList { names: names.collect(), next_after }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_proto::of_id;

    /// A page of files, each with the number of its file, and whether more may follow.
    fn page(files: &[(&'static str, u128)], more: bool) -> ListPage {
        let listed = files.iter().map(|(name, fid)| messages::ListedFile {
            name: Bytes::from_static(name.as_bytes()),
            head: Some(head(*fid)),
        });
        ListPage::from(ListReply { files: listed.collect(), more, role: 0 })
    }

    fn head(fid: u128) -> FileHead {
        FileHead { fid: Some(of_id(fid)), ..FileHead::default() }
    }

    fn shown(merged: &MergedList) -> Vec<(&str, Option<u128>)> {
        let names = merged.names.iter();
        let shown = names.map(|(name, head)| {
            let name = std::str::from_utf8(name).unwrap();
            (name, head.as_ref().map(|head| id(head.fid)))
        });
        shown.collect()
    }

    #[test]
    fn a_name_counts_only_if_all_replicas_in_sync_list_it_alike() {
        let one = page(&[("a", 1), ("b", 2), ("d", 4)], false);
        let two = page(&[("a", 1), ("b", 9), ("c", 3), ("d", 4)], false);
        let merged = merge(vec![one, two], vec![]);
        assert_eq!(shown(&merged), [("a", Some(1)), ("b", None), ("c", None), ("d", Some(4))]);
        assert_eq!(merged.next_after, None);
    }

    #[test]
    fn a_name_beyond_the_end_of_a_page_is_not_merged() {
        let one = page(&[("a", 1), ("b", 2)], true);
        let two = page(&[("a", 1), ("c", 3)], true);
        let complete = page(&[("a", 1), ("b", 2), ("c", 3)], false);
        let merged = merge(vec![one, two, complete], vec![]);
        // The second page lacks `b` although it reaches beyond it, so `b` is read by itself.
        assert_eq!(shown(&merged), [("a", Some(1)), ("b", None)]);
        assert_eq!(merged.next_after.as_deref(), Some(&b"b"[..]));
    }

    #[test]
    fn a_name_that_only_a_replica_not_in_sync_shows_is_read_by_itself() {
        let in_sync = || vec![page(&[("a", 1), ("c", 3)], false)];
        let merged_with = |other| merge(in_sync(), vec![other]);
        // Names that it lacks or shows with another file do not count.
        let one = merged_with(page(&[("a", 9), ("b", 2)], false));
        assert_eq!(shown(&one), [("a", Some(1)), ("b", None), ("c", Some(3))]);
        // Beyond the end of its page it may hold more such names.
        let cut = merged_with(page(&[("b", 2)], true));
        assert_eq!(shown(&cut), [("a", Some(1)), ("b", None)]);
        assert_eq!(cut.next_after.as_deref(), Some(&b"b"[..]));
    }

    #[test]
    fn one_replica_in_sync_counts_as_far_as_it_lists() {
        let merged = merge(vec![page(&[("a", 1)], true)], vec![]);
        assert_eq!(shown(&merged), [("a", Some(1))]);
        assert_eq!(merged.next_after.as_deref(), Some(&b"a"[..]));
        assert!(merge(vec![page(&[], false)], vec![]).names.is_empty());
    }
}
