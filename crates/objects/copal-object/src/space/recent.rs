//! Cache of last partial pages, so that the next append to their objects does not read them back.
//!
//! Invariants
//! - Bounded: the newest 128 pages. A page is dropped before it is reused for other data.

use crate::format::run::PageRun;
use std::{collections::VecDeque, sync::Arc};

const PAGES_MAX: usize = 128;

/// Content of recently written pages that end inside an object.
#[derive(Debug, Default)]
pub(crate) struct RecentPages {
    pages: VecDeque<(u64, Arc<[u8]>)>,
}

impl RecentPages {
    pub(crate) fn put(&mut self, page: u64, bytes: Arc<[u8]>) {
        self.pages.retain(|(at, _)| *at != page);
        if self.pages.len() == PAGES_MAX {
            self.pages.pop_front();
        }
        self.pages.push_back((page, bytes));
    }

    pub(crate) fn get(&self, page: u64) -> Option<Arc<[u8]>> {
        self.pages.iter().rev().find(|(at, _)| *at == page).map(|(_, bytes)| Arc::clone(bytes))
    }

    pub(crate) fn forget(&mut self, run: PageRun) {
        self.pages.retain(|(at, _)| !(run.at..run.end()).contains(at));
    }
}
