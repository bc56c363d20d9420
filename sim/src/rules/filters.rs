//! Answers of the loaded filter units: drawn from their rates, or from real units.

use super::{
    key::{Key, STORE_SEED},
    random::{Random, mix},
    tree::Tree,
};
use anyhow::Result;
use copal_filter::{FilterPage, Units};

/// Filters of all partitions of a tree.
pub(super) enum Filters {
    /// An absent key passes with the false-positive rate of the kind.
    Modelled { units: Vec<u8>, random: Random },
    /// An absent key passes if the real units let it pass.
    Real { loaded: Vec<Option<Units>> },
}

impl Filters {
    /// Filters with nothing loaded.
    pub(super) fn new(tree: &Tree, seed: u64) -> Filters {
        if tree.pages.is_empty() {
            Filters::Modelled { units: vec![0; tree.shapes.len()], random: Random(mix(!seed)) }
        } else {
            Filters::Real { loaded: vec![None; tree.pages.len()] }
        }
    }

    pub(super) fn units(&self, partition: u32) -> u8 {
        match self {
            Filters::Modelled { units, .. } => units[partition as usize],
            Filters::Real { loaded } => loaded[partition as usize].as_ref().map_or(0, Units::count),
        }
    }

    /// Adds a partition that a merge wrote, with its loaded units. Real filters are never asked about it.
    pub(super) fn add(&mut self, installed: u8) {
        match self {
            Filters::Modelled { units, .. } => units.push(installed),
            Filters::Real { loaded } => loaded.push(None),
        }
    }

    /// Loads or drops until there are `wanted` units.
    ///
    /// # Errors
    /// A page of the tree is damaged, which is a bug.
    pub(super) fn set(&mut self, tree: &Tree, partition: u32, wanted: u8) -> Result<()> {
        match self {
            Filters::Modelled { units, .. } => units[partition as usize] = wanted,
            Filters::Real { loaded } => {
                let slot = &mut loaded[partition as usize];
                *slot = match slot.take() {
                    Some(held) if held.count() >= wanted => Some(held.first(wanted)),
                    _ => {
                        let page = tree.pages[partition as usize].as_bytes();
                        Some(FilterPage::load(page, wanted, u64::from(partition), STORE_SEED)?)
                    }
                };
            }
        }
        Ok(())
    }

    /// Whether a key that is not in the partition passes its units.
    pub(super) fn passes(&mut self, tree: &Tree, partition: u32, key: Key) -> bool {
        match self {
            Filters::Modelled { units, random } => {
                let fpr = tree.shapes[partition as usize].kind.fpr(units[partition as usize]);
                random.unit() < fpr
            }
            Filters::Real { loaded } => {
                loaded[partition as usize].as_ref().is_none_or(|units| units.may_contain(key.hash))
            }
        }
    }
}
