//! Strict lists: of each name what a strict read of it says.
//!
//! All members that are up list the same part of a volume in one view, and what they show is merged by name.
//! A name that all whole ones show alike, or nobody shows, is answered by that. One on which they differ,
//! that only a member shows that is not whole, or whose create may yet be refused by such a one, is read by
//! itself.
//!
//! Design: docs/design/cluster.md#rules VOL-22
//! Invariant: a name counts only up to where every member has listed.

use super::{Answers, is_decided};
use crate::api::cluster::Cluster;
use bytes::Bytes;
use copal_proto::{
    Method, id,
    messages::{self, FileHead, ListReply},
};
use copal_volume::{VolumeError, VolumeId, group::View};
use futures_util::future::join_all;
use std::{collections::BTreeMap, time::Instant};

/// Names that are read by themselves at the same time.
const READ_AT_ONCE: usize = 16;

/// Which part of a volume is listed.
pub(crate) struct ListedBelow {
    pub(crate) vid: VolumeId,
    pub(crate) prefix: Bytes,
    pub(crate) after: Option<Bytes>,
    pub(crate) limit: usize,
}

impl ListedBelow {
    /// The call to a member of a view.
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
pub(crate) struct Page {
    pub(crate) files: Vec<(Bytes, FileHead)>,
    /// The name behind which there may be more; none: this is the end.
    pub(crate) goes_on_after: Option<Bytes>,
}

impl From<ListReply> for Page {
    fn from(listed: ListReply) -> Page {
        let last = listed.files.last().map(|file| file.name.clone());
        let named = listed.files.into_iter();
        Page {
            files: named.map(|file| (file.name, file.head.unwrap_or_default())).collect(),
            goes_on_after: last.filter(|_| listed.more),
        }
    }
}

impl Cluster {
    /// A part of a volume, by the word of all members that are up. May hold no file and go on all the same.
    /// # Errors
    /// `VolumeGone`; `Denied`; `Corrupt`: no whole member can read it; `Deadline`: not all of them answered
    /// in one view until `end`.
    pub(crate) async fn list_strictly(
        &self,
        wanted: &ListedBelow,
        end: Instant,
    ) -> Result<Page, VolumeError> {
        loop {
            let view = self.view(wanted.vid, end).await?;
            let request = wanted.request(&view);
            match self.ask_each::<ListReply>(&view, Method::List, &request, end).await {
                Answers::All { whole, others } if whole.iter().any(Option::is_some) => {
                    let are_whole = others.is_empty();
                    let pages = |replies: Vec<Option<ListReply>>| {
                        let pages = replies.into_iter();
                        pages.map(|page| Page::from(page.unwrap_or_default())).collect()
                    };
                    let merged = merged(pages(whole), pages(others));
                    return self.judged(wanted.vid, merged, are_whole, end).await;
                }
                Answers::Gone => return Err(VolumeError::VolumeGone),
                Answers::NotAll(Some(error)) => return Err(error),
                // Nobody is whole who could know, or not all have answered.
                Answers::All { .. } | Answers::NotAll(None) => {}
            }
            self.pause(end).await?;
        }
    }

    /// Reads by itself each name of which the lists of whole members are not enough to tell.
    async fn judged(
        &self,
        vid: VolumeId,
        merged: Merged,
        are_whole: bool,
        end: Instant,
    ) -> Result<Page, VolumeError> {
        let now_ms = self.map().now_ms();
        let mut files = Vec::with_capacity(merged.names.len());
        for names in merged.names.chunks(READ_AT_ONCE) {
            let judge = |(name, shown): &(Bytes, Option<FileHead>)| {
                let (name, shown) = (name.clone(), shown.clone());
                async move {
                    let shown = shown.filter(|head| are_whole || is_decided(head, now_ms));
                    let head = match shown {
                        Some(head) => Some(head),
                        None => match self.stat_strictly(vid, &name, end).await {
                            Ok(head) => Some(head),
                            Err(VolumeError::NotFound) => None,
                            Err(error) => return Err(error),
                        },
                    };
                    Ok(head.map(|head| (name, head)))
                }
            };
            for judged in join_all(names.iter().map(judge)).await {
                files.extend(judged?);
            }
        }
        Ok(Page { files, goes_on_after: merged.goes_on_after })
    }
}

/// What members have listed.
#[derive(Debug, PartialEq)]
struct Merged {
    /// In order; with the head that all whole ones show, none: they differ, or only others show the name.
    names: Vec<(Bytes, Option<FileHead>)>,
    /// As of a [`Page`].
    goes_on_after: Option<Bytes>,
}

/// Merges pages by name, up to the first end of one that goes on: behind it a name may be there and not be
/// listed.
fn merged(whole: Vec<Page>, others: Vec<Page>) -> Merged {
    let count = whole.len();
    let ends = whole.iter().chain(&others);
    let goes_on_after = ends.filter_map(|page| page.goes_on_after.clone()).min();
    let is_listed = |name: &Bytes| goes_on_after.as_ref().is_none_or(|end| name <= end);
    let files = |pages: Vec<Page>| pages.into_iter().flat_map(|page| page.files);
    let mut by_name: BTreeMap<Bytes, Vec<FileHead>> = BTreeMap::new();
    for (name, head) in files(whole).filter(|(name, _)| is_listed(name)) {
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
    Merged { names: names.collect(), goes_on_after }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_proto::of_id;

    /// A page of files, each with the number of its file, and whether more may follow.
    fn page(files: &[(&'static str, u128)], more: bool) -> Page {
        let listed = files.iter().map(|(name, fid)| messages::ListedFile {
            name: Bytes::from_static(name.as_bytes()),
            head: Some(head(*fid)),
        });
        Page::from(ListReply { files: listed.collect(), more, role: 0 })
    }

    fn head(fid: u128) -> FileHead {
        FileHead { fid: Some(of_id(fid)), ..FileHead::default() }
    }

    fn shown(merged: &Merged) -> Vec<(&str, Option<u128>)> {
        let names = merged.names.iter();
        let shown = names.map(|(name, head)| {
            let name = std::str::from_utf8(name).unwrap();
            (name, head.as_ref().map(|head| id(head.fid)))
        });
        shown.collect()
    }

    #[test]
    fn what_all_whole_members_list_alike_is_so_and_all_else_is_asked_for() {
        let one = page(&[("a", 1), ("b", 2), ("d", 4)], false);
        let two = page(&[("a", 1), ("b", 9), ("c", 3), ("d", 4)], false);
        let merged = merged(vec![one, two], vec![]);
        assert_eq!(shown(&merged), [("a", Some(1)), ("b", None), ("c", None), ("d", Some(4))]);
        assert_eq!(merged.goes_on_after, None);
    }

    #[test]
    fn a_name_behind_the_end_of_a_page_is_not_missed_by_who_has_not_come_to_it() {
        let one = page(&[("a", 1), ("b", 2)], true);
        let two = page(&[("a", 1), ("c", 3)], true);
        let whole = page(&[("a", 1), ("b", 2), ("c", 3)], false);
        let merged = merged(vec![one, two, whole], vec![]);
        // `b` is not on the second page, which would show it.
        assert_eq!(shown(&merged), [("a", Some(1)), ("b", None)]);
        assert_eq!(merged.goes_on_after.as_deref(), Some(&b"b"[..]));
    }

    #[test]
    fn what_only_a_member_shows_that_is_not_whole_is_asked_for() {
        let whole = || vec![page(&[("a", 1), ("c", 3)], false)];
        let merged_with = |other| merged(whole(), vec![other]);
        // What it lacks or has otherwise says nothing.
        let one = merged_with(page(&[("a", 9), ("b", 2)], false));
        assert_eq!(shown(&one), [("a", Some(1)), ("b", None), ("c", Some(3))]);
        // Behind its end it may have more such names.
        let cut = merged_with(page(&[("b", 2)], true));
        assert_eq!(shown(&cut), [("a", Some(1)), ("b", None)]);
        assert_eq!(cut.goes_on_after.as_deref(), Some(&b"b"[..]));
    }

    #[test]
    fn one_whole_member_is_believed_as_far_as_it_lists() {
        let merged = merged(vec![page(&[("a", 1)], true)], vec![]);
        assert_eq!(shown(&merged), [("a", Some(1))]);
        assert_eq!(merged.goes_on_after.as_deref(), Some(&b"a"[..]));
        assert!(super::merged(vec![page(&[], false)], vec![]).names.is_empty());
    }
}
