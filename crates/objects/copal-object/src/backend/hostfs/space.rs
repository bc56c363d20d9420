//! Allocation of file pages, when objects are files.
//!
//! A page number consists of a file number and a position in that file. An object gets a file with its first
//! page and grows at that file's end. Freed pages are punched out, and the file is removed with its last
//! page. Its number is reused when the removal is durable.
//!
//! Design: docs/design/object.md#files-in-a-directory
//! Invariants
//! - A page is free or owned, never both, as in the allocator of the `cow` backend.
//! - No page is allocated twice while its file exists: overwriting means writing at the end and mapping the
//!   new page.
//! - No number is reused while a command on its last file is in progress: a late hole punch would damage the
//!   new file.

use super::{
    HostFiles,
    directory::FILES_MAX,
    files::{FILE_BYTES, RESERVE_BYTES},
    numbers::FileNumbers,
};
use crate::{
    format::run::{PageRun, RUN_PAGES_MAX},
    space::home::PageHome,
};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

/// File numbers reserved for the store itself, so that it can delete when objects have taken all others.
const NUMBERS_KEPT: u32 = 8;

/// Owned pages, file by file.
#[derive(Debug)]
pub(crate) struct FileSpace {
    page_bits: u32,
    files: BTreeMap<u32, FilePages>,
    by_owner: HashMap<u64, u32>,
    numbers: FileNumbers,
    /// Discards in progress, by file.
    discards: HashMap<u32, FileDiscards>,
    /// Numbers of removed files, and the epoch whose flush makes their removal durable.
    removed: VecDeque<(u32, u64)>,
    taken: u64,
    /// Pages that the host's file system can still take.
    free: u64,
    /// Pages that may be allocated before the host is queried again.
    until_look: u64,
    /// Freed since [`FileSpace::take_discardable`]; a whole file is a run from its page 0 over all of it.
    freed: Vec<PageRun>,
    /// The host's limit; `None` while space is only derived.
    host: Option<HostLimit>,
}

/// The host's file system, and how much of it the store may use.
#[derive(Clone, Debug)]
struct HostLimit {
    files: Arc<HostFiles>,
    max_bytes: u64,
}

#[derive(Debug, Default)]
struct FileDiscards {
    under_way: u32,
    /// The file was removed.
    removed: bool,
}

#[derive(Debug, Default)]
struct FilePages {
    bits: Vec<u64>,
    live: u64,
    /// Page behind the last one that was ever allocated in this file.
    end: u64,
    owner: Option<u64>,
}

impl FilePages {
    fn is_taken(&self, page: u64) -> bool {
        let word = self.bits.get((page / 64) as usize);
        word.is_some_and(|word| word >> (page % 64) & 1 == 1)
    }
}

impl FileSpace {
    /// No page is owned; `free` pages are available.
    pub(crate) fn new(page_bytes: usize, free: u64) -> FileSpace {
        FileSpace {
            page_bits: page_bytes.trailing_zeros(),
            files: BTreeMap::new(),
            by_owner: HashMap::new(),
            numbers: FileNumbers::below(FILES_MAX),
            discards: HashMap::new(),
            removed: VecDeque::new(),
            taken: 0,
            free,
            until_look: 0,
            freed: Vec::new(),
            host: None,
        }
    }

    /// No page is owned. The host limits the free pages, up to `max_bytes`. Existing files keep their
    /// numbers.
    pub(crate) fn on(files: Arc<HostFiles>, numbers: &[u32], page_bytes: usize, max_bytes: u64) -> FileSpace {
        let mut space = FileSpace::new(page_bytes, max_bytes >> page_bytes.trailing_zeros());
        numbers.iter().for_each(|&number| space.numbers.take(number));
        space.host = Some(HostLimit { files, max_bytes });
        space
    }

    /// Queries the free space of the host's file system. Of that, `unwritten_bytes` are allocated and not
    /// written yet.
    pub(crate) fn query_host(&mut self, unwritten_bytes: u64) {
        if let Some(host) = &self.host {
            let allowed = host.max_bytes.saturating_sub(self.taken << self.page_bits);
            let left = host.files.free_bytes().saturating_sub(unwritten_bytes);
            self.free = allowed.min(left) >> self.page_bits;
            self.until_look = host.files.look_bytes() >> self.page_bits;
        }
    }

    /// Like [`FileSpace::query_host`], once the reserve could no longer cover the pages allocated since the
    /// last query.
    pub(crate) fn query_host_when_due(&mut self, unwritten_bytes: u64) {
        if self.until_look == 0 {
            self.query_host(unwritten_bytes);
        }
    }

    /// The same space without owned pages.
    pub(crate) fn emptied(&self) -> FileSpace {
        FileSpace::new(1 << self.page_bits, self.pages())
    }

    fn file_pages(&self) -> u64 {
        FILE_BYTES >> self.page_bits
    }

    fn split(&self, run: PageRun) -> (u32, u64) {
        let pages = self.file_pages();
        ((run.at / pages) as u32, run.at % pages)
    }

    /// Whether the run lies in one file of a valid number.
    pub(crate) fn is_valid(&self, run: PageRun) -> bool {
        let (_, at) = self.split(run);
        run.at / self.file_pages() < FILES_MAX.into()
            && run.pages > 0
            && at + u64::from(run.pages) <= self.file_pages()
    }

    /// Owned and free pages.
    pub(crate) fn pages(&self) -> u64 {
        self.taken + self.free
    }

    /// The kept share of the reserve, which other programs cannot take. Most of it is for callers that
    /// reserve space themselves.
    pub(crate) fn kept_pages(&self) -> u64 {
        (self.pages() / 50).min((RESERVE_BYTES / 4) >> self.page_bits)
    }

    pub(crate) fn free_pages(&self) -> u64 {
        self.free
    }

    pub(crate) fn is_free(&self, run: PageRun) -> bool {
        let (file, at) = self.split(run);
        let Some(file) = self.files.get(&file) else {
            return true;
        };
        (at..at + u64::from(run.pages)).all(|page| !file.is_taken(page))
    }

    pub(crate) fn is_taken(&self, run: PageRun) -> bool {
        let (file, at) = self.split(run);
        let Some(file) = self.files.get(&file) else {
            return false;
        };
        self.is_valid(run) && (at..at + u64::from(run.pages)).all(|page| file.is_taken(page))
    }

    /// Marks `run` as owned. `false`, without a change, if a page of it is owned already.
    pub(crate) fn take(&mut self, run: PageRun) -> bool {
        if !self.is_valid(run) || !self.is_free(run) {
            return false;
        }
        let (number, at) = self.split(run);
        let end = at + u64::from(run.pages);
        self.numbers.take(number);
        let file = self.files.entry(number).or_default();
        let words = end.div_ceil(64) as usize;
        file.bits.resize(file.bits.len().max(words), 0);
        for page in at..end {
            file.bits[(page / 64) as usize] |= 1 << (page % 64);
        }
        file.live += u64::from(run.pages);
        file.end = file.end.max(end);
        self.taken += u64::from(run.pages);
        self.free = self.free.saturating_sub(run.pages.into());
        true
    }

    /// Like [`FileSpace::take`], for pages that recovery found with this `owner`. The owner grows in its last
    /// file.
    pub(crate) fn take_for(&mut self, run: PageRun, owner: u64) -> bool {
        if !self.take(run) {
            return false;
        }
        let (number, _) = self.split(run);
        if number > 0
            && let Some(file) = self.files.get_mut(&number)
        {
            file.owner = Some(owner);
            let last = self.by_owner.entry(owner).or_insert(number);
            *last = number.max(*last);
        }
        true
    }

    /// Frees `run`: a hole in its file, or the end of it.
    ///
    /// # Panics
    /// When a page of it is free already.
    pub(crate) fn release(&mut self, run: PageRun) {
        assert!(self.is_taken(run), "pages {}..{} are freed twice", run.at, run.end());
        let (number, at) = self.split(run);
        let pages = self.file_pages();
        self.taken -= u64::from(run.pages);
        self.free += u64::from(run.pages);
        let Some(file) = self.files.get_mut(&number) else {
            return;
        };
        for page in at..at + u64::from(run.pages) {
            file.bits[(page / 64) as usize] &= !(1 << (page % 64));
        }
        file.live -= u64::from(run.pages);
        if file.live > 0 || number == 0 {
            self.freed.push(run);
            return;
        }
        if let Some(owner) = file.owner
            && self.by_owner.get(&owner) == Some(&number)
        {
            self.by_owner.remove(&owner);
        }
        self.files.remove(&number);
        self.freed.push(PageRun::new(u64::from(number) * pages, pages as u32));
    }

    /// Allocates `pages` pages at the end of `owner`'s file; `None` if the host has fewer.
    pub(crate) fn allocate(&mut self, pages: u64, owner: u64) -> Option<Vec<PageRun>> {
        if pages > self.free || pages > self.file_pages() {
            return None;
        }
        let number = self.file_of(owner, pages)?;
        let first =
            u64::from(number) * self.file_pages() + self.files.get(&number).map_or(0, |file| file.end);
        let mut runs = Vec::new();
        let mut done = 0;
        while done < pages {
            let run = PageRun::new(first + done, (pages - done).min(RUN_PAGES_MAX.into()) as u32);
            assert!(self.take(run), "nothing lies behind the end of a file");
            done += u64::from(run.pages);
            runs.push(run);
        }
        if let Some(file) = self.files.get_mut(&number) {
            file.owner = Some(owner);
        }
        self.until_look = self.until_look.saturating_sub(pages);
        Some(runs)
    }

    /// `owner` continues in a new file instead of the end of its present one.
    pub(crate) fn start_new_file(&mut self, owner: u64) {
        self.by_owner.remove(&owner);
    }

    /// Allocates one run.
    pub(crate) fn allocate_run(&mut self, pages: u32, owner: u64) -> Option<PageRun> {
        if pages > RUN_PAGES_MAX {
            return None;
        }
        self.allocate(pages.into(), owner)?.pop()
    }

    /// The file in which `owner` grows, or a new one.
    fn file_of(&mut self, owner: u64, pages: u64) -> Option<u32> {
        if let Some(&number) = self.by_owner.get(&owner)
            && let Some(file) = self.files.get(&number)
            && file.end + pages <= self.file_pages()
        {
            return Some(number);
        }
        if self.numbers.count() <= NUMBERS_KEPT && ![PageHome::STORE, PageHome::STORE_COPY].contains(&owner) {
            return None;
        }
        let number = self.numbers.take_first()?;
        self.by_owner.insert(owner, number);
        Some(number)
    }

    /// Takes the runs freed since the last call; [`FileSpace::discarded`] must follow for each.
    pub(crate) fn take_discardable(&mut self) -> Vec<PageRun> {
        for run in &self.freed {
            let (number, _) = self.split(*run);
            self.discards.entry(number).or_default().under_way += 1;
        }
        std::mem::take(&mut self.freed)
    }

    /// The discard of `run` has ended while `epoch` was open; `done`: with success.
    pub(crate) fn discarded(&mut self, run: PageRun, done: bool, epoch: u64) {
        let (number, _) = self.split(run);
        let is_whole = u64::from(run.pages) == self.file_pages();
        let Some(discards) = self.discards.get_mut(&number) else {
            return;
        };
        discards.under_way -= 1;
        discards.removed |= is_whole && done;
        if discards.under_way == 0
            && let Some(discards) = self.discards.remove(&number)
            && discards.removed
        {
            self.removed.push_back((number, epoch));
        }
    }

    /// All epochs up to `epoch` are durable, removals too: their numbers may be reused.
    pub(crate) fn flushed(&mut self, epoch: u64) {
        while let Some((number, _)) = self.removed.pop_front_if(|(_, removed_in)| *removed_in <= epoch) {
            self.numbers.give_back(number);
        }
    }

    /// Frees the files among `numbers` without owned pages, which a crash left behind.
    pub(crate) fn free_unknown_files(&mut self, numbers: &[u32]) {
        let pages = self.file_pages();
        let unknown = numbers.iter().filter(|number| !self.files.contains_key(number));
        self.freed.extend(unknown.map(|&number| PageRun::new(u64::from(number) * pages, pages as u32)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> FileSpace {
        FileSpace::new(4096, 1 << 20)
    }

    fn file(run: PageRun) -> u64 {
        run.at >> 24
    }

    #[test]
    fn an_object_goes_on_in_its_file_and_others_have_theirs() {
        let mut space = space();
        let first = space.allocate(3, 7).unwrap();
        let other = space.allocate(1, 8).unwrap();
        let second = space.allocate(2, 7).unwrap();
        assert_eq!(file(first[0]), file(second[0]));
        assert_ne!(file(first[0]), file(other[0]));
        assert!(second[0].at >= first[0].end());
        assert_eq!(space.free_pages(), (1 << 20) - 6);
    }

    #[test]
    fn freed_pages_become_holes_and_the_last_removes_the_file() {
        let mut space = space();
        let first = space.allocate(3, 7).unwrap()[0];
        let second = space.allocate(2, 7).unwrap()[0];
        space.release(first);
        assert_eq!(space.take_discardable(), [first]);
        space.release(second);
        let whole = space.take_discardable();
        assert_eq!(whole, [PageRun::new(file(first) << 24, 1 << 24)]);
        assert_eq!(space.free_pages(), 1 << 20);
        let next = space.allocate(1, 7).unwrap()[0];
        assert_ne!(file(next), file(first), "its removal is not durable");
    }

    #[test]
    fn pages_have_one_owner() {
        let mut space = space();
        let run = PageRun::new((5 << 24) + 10, 4);
        assert!(space.take(run));
        assert!(!space.take(PageRun::new((5 << 24) + 13, 1)));
        assert!(space.take(PageRun::new((5 << 24) + 14, 1)));
        assert!(!space.take(PageRun::new((5 << 24) - 1, 2)), "it would lie in two files");
        let new: Vec<u64> = (1..7).map(|owner| file(space.allocate(1, owner).unwrap()[0])).collect();
        assert_eq!(new, [1, 2, 3, 4, 6, 7], "number 5 is known");
    }

    /// Symptom: a store of files panicked in the commit that would have made its 2^24th file ever; at once if
    /// a file `objects/ffffff` existed.
    /// Cause: each file got the next number, none was reused, and a transaction assumes that it gets its
    /// pages.
    /// Fix: a number is reused when no command on its last file is in progress and the removal is durable.
    /// Without a free number the result is `NoSpace`, before anything has changed.
    #[test]
    fn a_number_is_used_again_when_its_removal_is_durable() {
        let mut space = space();
        space.numbers = FileNumbers::below(3 + NUMBERS_KEPT);
        let one = space.allocate(3, 7).unwrap()[0];
        let hole = PageRun::new(one.at, 1);
        let rest = PageRun::new(one.at + 1, 2);
        let two = space.allocate(1, 8).unwrap()[0];
        assert_eq!((file(one), file(two)), (1, 2));
        assert!(space.allocate(1, 9).is_none(), "the last numbers are reserved for the store");
        space.release(hole);
        space.release(rest);
        let freed = space.take_discardable();
        assert_eq!(freed.len(), 2);
        space.discarded(freed[1], true, 5);
        space.flushed(9);
        assert!(space.allocate(1, 9).is_none(), "the hole may still come");
        space.discarded(freed[0], true, 6);
        space.flushed(5);
        assert!(space.allocate(1, 9).is_none(), "the name may still exist");
        space.flushed(6);
        assert_eq!(file(space.allocate(1, 9).unwrap()[0]), 1);

        space.release(two);
        let freed = space.take_discardable();
        space.discarded(freed[0], false, 7);
        space.flushed(9);
        assert!(space.allocate(1, 10).is_none(), "a file that stays keeps its number");
        assert_eq!(file(space.allocate(1, PageHome::STORE).unwrap()[0]), 3);
    }

    #[test]
    fn files_in_which_nothing_is_taken_are_unknown() {
        let mut space = space();
        assert!(space.take(PageRun::new(2 << 24, 1)));
        space.free_unknown_files(&[1, 2, 3]);
        let unknown = space.take_discardable();
        assert_eq!(unknown.iter().map(|run| run.at >> 24).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_full_host_is_reported_before_anything_is_taken() {
        let mut space = FileSpace::new(4096, 4);
        assert!(space.allocate(5, 1).is_none());
        assert!(space.allocate(4, 1).is_some());
        assert!(space.allocate(1, 1).is_none());
    }
}
