//! `hostfs`: data in files of a directory, records in a ring of the store's own file.

use super::space::FileSpace;
use crate::{
    format::run::PageRun,
    space::home::PageHome,
    space::{
        journal_place::{JournalPlace, JournalRing},
        placement::Placement,
    },
};

/// Pages of files, and the ring in the first one.
#[derive(Debug)]
pub(crate) struct FilePlacement {
    files: FileSpace,
    ring: JournalRing,
}

impl FilePlacement {
    pub(crate) fn new(files: FileSpace, ring: JournalRing) -> FilePlacement {
        FilePlacement { files, ring }
    }
}

impl Placement for FilePlacement {
    fn emptied(&self) -> Box<dyn Placement> {
        Box::new(FilePlacement::new(self.files.emptied(), self.ring.clone()))
    }

    fn pages(&self) -> u64 {
        self.files.pages()
    }

    fn free_pages(&self) -> u64 {
        self.files.free_pages()
    }

    fn kept_pages(&self) -> u64 {
        self.files.kept_pages()
    }

    fn take(&mut self, run: PageRun) -> bool {
        self.files.take(run)
    }

    fn take_for(&mut self, run: PageRun, owner: u64) -> bool {
        self.files.take_for(run, owner)
    }

    fn clip(&self, run: PageRun) -> Option<PageRun> {
        self.files.is_valid(run).then_some(run)
    }

    fn release(&mut self, run: PageRun) {
        self.files.release(run);
    }

    fn allocate(&mut self, pages: u64, home: PageHome) -> Option<Vec<PageRun>> {
        self.files.allocate(pages, home.owner)
    }

    /// All space of a directory is equal.
    fn allocate_run(&mut self, pages: u32, home: PageHome, _written: bool) -> Option<PageRun> {
        self.files.allocate_run(pages, home.owner)
    }

    fn journal(&self) -> &dyn JournalPlace {
        &self.ring
    }

    fn journal_mut(&mut self) -> &mut dyn JournalPlace {
        &mut self.ring
    }

    fn take_discardable(&mut self) -> Vec<PageRun> {
        self.files.take_discardable()
    }

    fn discarded(&mut self, run: PageRun, done: bool, epoch: u64) {
        self.files.discarded(run, done, epoch);
    }

    fn flushed(&mut self, epoch: u64) {
        self.files.flushed(epoch);
    }

    fn start_new_file(&mut self, owner: u64) {
        self.files.start_new_file(owner);
    }

    fn query_host_when_due(&mut self, unwritten_bytes: u64) {
        self.files.query_host_when_due(unwritten_bytes);
    }

    fn query_host(&mut self, unwritten_bytes: u64) {
        self.files.query_host(unwritten_bytes);
    }

    fn free_unknown_files(&mut self, numbers: &[u32]) {
        self.files.free_unknown_files(numbers);
    }
}
