//! Which pages of which files are taken, when objects are files.
//!
//! A page's number is its file's number and its place in that file. An object gets a file with its first page and goes
//! on at that file's end; what it gives up is punched out of it, and the file goes with its last page. Numbers are not
//! used again while a store is open.
//!
//! Design: object.md §11
//! Invariants
//! - A page is free, or owned, never both, as in the allocator of the `cow` backend.
//! - No page is handed out twice while its file exists: overwriting is writing at the end and mapping it.

use super::files::{FILE_BYTES, FILES_MAX};
use crate::run::{RUN_PAGES_MAX, Run};
use std::collections::{BTreeMap, HashMap};

/// Taken pages, file by file.
#[derive(Debug)]
pub(crate) struct FileSpace {
    page_bits: u32,
    files: BTreeMap<u32, FilePages>,
    by_owner: HashMap<u64, u32>,
    next_file: u32,
    taken: u64,
    /// Pages the host's file system may still take.
    free: u64,
    /// Given up since [`FileSpace::take_gone`]; a whole file is a run from its page 0 over all of it.
    gone: Vec<Run>,
}

#[derive(Debug, Default)]
struct FilePages {
    bits: Vec<u64>,
    live: u64,
    /// First page behind everything that was ever taken here.
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
    /// Nothing taken; `free` pages may be.
    pub(crate) fn new(page_bytes: usize, free: u64) -> FileSpace {
        FileSpace {
            page_bits: page_bytes.trailing_zeros(),
            files: BTreeMap::new(),
            by_owner: HashMap::new(),
            next_file: 1,
            taken: 0,
            free,
            gone: Vec::new(),
        }
    }

    /// The same space with nothing taken.
    pub(crate) fn emptied(&self) -> FileSpace {
        FileSpace::new(1 << self.page_bits, self.pages())
    }

    fn file_pages(&self) -> u64 {
        FILE_BYTES >> self.page_bits
    }

    fn split(&self, run: Run) -> (u32, u64) {
        let pages = self.file_pages();
        ((run.at / pages) as u32, run.at % pages)
    }

    /// Whether it lies in one file there may be.
    pub(crate) fn is_valid(&self, run: Run) -> bool {
        let (_, at) = self.split(run);
        run.at / self.file_pages() < FILES_MAX.into()
            && run.pages > 0
            && at + u64::from(run.pages) <= self.file_pages()
    }

    /// Taken and free pages.
    pub(crate) fn pages(&self) -> u64 {
        self.taken + self.free
    }

    pub(crate) fn free_pages(&self) -> u64 {
        self.free
    }

    /// The host's file system says how many pages it has left.
    pub(crate) fn set_free(&mut self, pages: u64) {
        self.free = pages;
    }

    pub(crate) fn is_free(&self, run: Run) -> bool {
        let (file, at) = self.split(run);
        let Some(file) = self.files.get(&file) else {
            return true;
        };
        (at..at + u64::from(run.pages)).all(|page| !file.is_taken(page))
    }

    pub(crate) fn is_taken(&self, run: Run) -> bool {
        let (file, at) = self.split(run);
        let Some(file) = self.files.get(&file) else {
            return false;
        };
        self.is_valid(run) && (at..at + u64::from(run.pages)).all(|page| file.is_taken(page))
    }

    /// Marks `run` as owned. `false`, and nothing is changed, when a page of it is already.
    pub(crate) fn take(&mut self, run: Run) -> bool {
        if !self.is_valid(run) || !self.is_free(run) {
            return false;
        }
        let (number, at) = self.split(run);
        let end = at + u64::from(run.pages);
        let file = self.files.entry(number).or_default();
        let words = end.div_ceil(64) as usize;
        file.bits.resize(file.bits.len().max(words), 0);
        for page in at..end {
            file.bits[(page / 64) as usize] |= 1 << (page % 64);
        }
        file.live += u64::from(run.pages);
        file.end = file.end.max(end);
        self.next_file = self.next_file.max(number + 1);
        self.taken += u64::from(run.pages);
        self.free = self.free.saturating_sub(run.pages.into());
        true
    }

    /// As [`FileSpace::take`], found at open as `owner`'s, who goes on in the last such file.
    pub(crate) fn take_for(&mut self, run: Run, owner: u64) -> bool {
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

    /// Gives `run` back: a hole in its file, or the end of it.
    ///
    /// # Panics
    /// When a page of it is free already.
    pub(crate) fn release(&mut self, run: Run) {
        assert!(
            self.is_taken(run),
            "pages {}..{} are freed twice",
            run.at,
            run.end()
        );
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
            self.gone.push(run);
            return;
        }
        if let Some(owner) = file.owner
            && self.by_owner.get(&owner) == Some(&number)
        {
            self.by_owner.remove(&owner);
        }
        self.files.remove(&number);
        self.gone.push(Run::new(u64::from(number) * pages, pages as u32));
    }

    /// Takes `pages` pages at the end of `owner`'s file; `None` when the host has fewer.
    pub(crate) fn allocate(&mut self, pages: u64, owner: u64) -> Option<Vec<Run>> {
        if pages > self.free || pages > self.file_pages() {
            return None;
        }
        let number = self.file_of(owner, pages)?;
        let first =
            u64::from(number) * self.file_pages() + self.files.get(&number).map_or(0, |file| file.end);
        let mut runs = Vec::new();
        let mut done = 0;
        while done < pages {
            let run = Run::new(first + done, (pages - done).min(RUN_PAGES_MAX.into()) as u32);
            assert!(self.take(run), "nothing lies behind the end of a file");
            done += u64::from(run.pages);
            runs.push(run);
        }
        if let Some(file) = self.files.get_mut(&number) {
            file.owner = Some(owner);
        }
        Some(runs)
    }

    /// Takes one run.
    pub(crate) fn allocate_run(&mut self, pages: u32, owner: u64) -> Option<Run> {
        if pages > RUN_PAGES_MAX {
            return None;
        }
        self.allocate(pages.into(), owner)?.pop()
    }

    /// The file `owner` goes on in, or a new one.
    fn file_of(&mut self, owner: u64, pages: u64) -> Option<u32> {
        if let Some(&number) = self.by_owner.get(&owner)
            && let Some(file) = self.files.get(&number)
            && file.end + pages <= self.file_pages()
        {
            return Some(number);
        }
        let number = self.next_file;
        if number >= FILES_MAX {
            return None;
        }
        self.next_file += 1;
        self.by_owner.insert(owner, number);
        Some(number)
    }

    /// What was given up meanwhile.
    pub(crate) fn take_gone(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.gone)
    }

    /// The files among `numbers` in which nothing is taken: left behind by a crash.
    pub(crate) fn unknown(&self, numbers: &[u32]) -> Vec<Run> {
        let pages = self.file_pages();
        let unknown = numbers.iter().filter(|number| !self.files.contains_key(number));
        unknown
            .map(|&number| Run::new(u64::from(number) * pages, pages as u32))
            .collect()
    }

    /// Numbers up to `last` may stand for files that are there: new files come behind them.
    pub(crate) fn skip_numbers(&mut self, last: u32) {
        self.next_file = self.next_file.max(last + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> FileSpace {
        FileSpace::new(4096, 1 << 20)
    }

    fn file(run: Run) -> u64 {
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
    fn what_is_given_up_becomes_a_hole_and_the_last_of_it_the_file() {
        let mut space = space();
        let first = space.allocate(3, 7).unwrap()[0];
        let second = space.allocate(2, 7).unwrap()[0];
        space.release(first);
        assert_eq!(space.take_gone(), [first]);
        space.release(second);
        let whole = space.take_gone();
        assert_eq!(whole, [Run::new(file(first) << 24, 1 << 24)]);
        assert_eq!(space.free_pages(), 1 << 20);
        let next = space.allocate(1, 7).unwrap()[0];
        assert_ne!(file(next), file(first), "a number is not used again");
    }

    #[test]
    fn pages_have_one_owner() {
        let mut space = space();
        let run = Run::new((5 << 24) + 10, 4);
        assert!(space.take(run));
        assert!(!space.take(Run::new((5 << 24) + 13, 1)));
        assert!(space.take(Run::new((5 << 24) + 14, 1)));
        assert!(
            !space.take(Run::new((5 << 24) - 1, 2)),
            "it would lie in two files"
        );
        let new = space.allocate(1, 1).unwrap()[0];
        assert_eq!(file(new), 6, "new files come behind those that are known");
    }

    #[test]
    fn files_in_which_nothing_is_taken_are_unknown() {
        let mut space = space();
        assert!(space.take(Run::new(2 << 24, 1)));
        let unknown = space.unknown(&[1, 2, 3]);
        assert_eq!(unknown.iter().map(|run| run.at >> 24).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_full_host_is_told_before_anything_is_taken() {
        let mut space = FileSpace::new(4096, 4);
        assert!(space.allocate(5, 1).is_none());
        assert!(space.allocate(4, 1).is_some());
        assert!(space.allocate(1, 1).is_none());
    }
}
