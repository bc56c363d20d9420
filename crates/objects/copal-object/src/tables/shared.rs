//! Pages with several owners, after a clone.
//!
//! Invariants
//! - Only pages with several owners are listed, with the number of owners beyond the first.
//! - Not on disk: derived at open from the extents of objects that share.

use crate::format::run::PageRun;
use std::collections::BTreeMap;

/// Runs that do not overlap, each with its owners beyond the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedRuns {
    runs: BTreeMap<u64, (u32, u32)>,
}

impl SharedRuns {
    /// Adds an owner of `run`.
    pub(crate) fn share(&mut self, run: PageRun) {
        self.split(run.at);
        self.split(run.end());
        let mut at = run.at;
        let inside: Vec<(u64, u32)> =
            self.runs.range(run.at..run.end()).map(|(&at, &(pages, _))| (at, pages)).collect();
        for (start, pages) in inside {
            if start > at {
                self.runs.insert(at, ((start - at) as u32, 1));
            }
            if let Some((_, extra)) = self.runs.get_mut(&start) {
                *extra += 1;
            }
            at = start + u64::from(pages);
        }
        if at < run.end() {
            self.runs.insert(at, ((run.end() - at) as u32, 1));
        }
    }

    /// Removes one owner of each run; pages without an owner go to `freed`.
    pub(crate) fn release(&mut self, runs: Vec<PageRun>, freed: &mut Vec<PageRun>) {
        if self.runs.is_empty() {
            freed.extend(runs);
            return;
        }
        for run in runs {
            self.release_run(run, freed);
        }
    }

    fn release_run(&mut self, run: PageRun, freed: &mut Vec<PageRun>) {
        self.split(run.at);
        self.split(run.end());
        let mut at = run.at;
        let inside: Vec<(u64, u32, u32)> =
            self.runs.range(run.at..run.end()).map(|(&at, &(pages, extra))| (at, pages, extra)).collect();
        for (start, pages, extra) in inside {
            if start > at {
                freed.push(PageRun::new(at, (start - at) as u32));
            }
            if extra == 1 {
                self.runs.remove(&start);
            } else if let Some(entry) = self.runs.get_mut(&start) {
                entry.1 -= 1;
            }
            at = start + u64::from(pages);
        }
        if at < run.end() {
            freed.push(PageRun::new(at, (run.end() - at) as u32));
        }
    }

    /// Makes `page` a boundary between runs.
    fn split(&mut self, page: u64) {
        let Some((&at, &(pages, extra))) = self.runs.range(..page).next_back() else {
            return;
        };
        let end = at + u64::from(pages);
        if end <= page {
            return;
        }
        self.runs.insert(at, ((page - at) as u32, extra));
        self.runs.insert(page, ((end - page) as u32, extra));
    }

    /// Number of owners of `page`.
    #[cfg(test)]
    pub(crate) fn owners(&self, page: u64) -> u32 {
        match self.runs.range(..=page).next_back() {
            Some((&at, &(pages, extra))) if page < at + u64::from(pages) => extra + 1,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn owners_are_counted_page_by_page() {
        let mut random = copal_testkit::Random::new(7);
        let mut next = move |below| random.below(below);
        let mut shared = SharedRuns::default();
        let mut model: HashMap<u64, u32> = (0..64).map(|page| (page, 1)).collect();
        let mut owned: Vec<PageRun> = vec![PageRun::new(0, 64)];
        for _ in 0..3000 {
            let at = next(64);
            let run = PageRun::new(at, 1 + next(64 - at) as u32);
            let all_owned = (run.at..run.end()).all(|page| model[&page] > 0);
            if next(2) == 0 && all_owned && owned.len() < 40 {
                shared.share(run);
                (run.at..run.end()).for_each(|page| *model.get_mut(&page).unwrap() += 1);
                owned.push(run);
            } else if owned.len() > 1 {
                let run = owned.swap_remove(next(owned.len() as u64) as usize);
                let mut freed = Vec::new();
                shared.release(vec![run], &mut freed);
                for page in run.at..run.end() {
                    let owners = model.get_mut(&page).unwrap();
                    *owners -= 1;
                    let is_freed = freed.iter().any(|run| run.at <= page && page < run.end());
                    assert_eq!(is_freed, *owners == 0, "page {page}");
                }
            }
            for (&page, &owners) in &model {
                if owners > 0 {
                    assert_eq!(shared.owners(page), owners, "page {page}");
                }
            }
        }
    }
}
