//! Circles of modules inside each crate: groups of modules that all import each other, directly or not.
//!
//! A module needs another when it names one of its items. Imports and paths are read from the sources and
//! followed through re-exports to the file that defines the item. Tests are left out. Each crate has a bound
//! for the size of its circles, so that growth is a decision.
//!
//! Not here: the order of the crates (`layers`).

mod graph;
mod source;

use anyhow::{Context, Result, bail};
use graph::circles;
pub(crate) use source::{Crate, words};
use std::path::Path;

/// Allowed sizes of a crate's circles, largest first; a circle has at least two modules.
const BOUNDS: [(&str, &[usize]); 21] = [
    ("copal-testkit", &[]),
    ("copal-codec", &[]),
    ("copal-device", &[5]),
    ("copal-object", &[2]),
    ("copal-filter", &[]),
    ("copal-kv", &[2]),
    ("copal-volume", &[]),
    ("copal-data", &[2, 2]),
    ("copal-proto", &[]),
    ("copal-node", &[]),
    ("copal-master", &[]),
    ("copal-client", &[]),
    ("copal-server", &[]),
    ("copal-nbd", &[3]),
    ("copal-disk", &[]),
    ("copal-chunk", &[]),
    ("copal-backup", &[]),
    ("copal-live", &[]),
    ("copal-agent", &[2, 2, 2]),
    ("copal-export", &[]),
    ("copal", &[2]),
];

/// Prints the circles of every crate, and fails where one is larger than its bound.
pub(crate) fn run(root: &Path, all: bool) -> Result<()> {
    let mut grown = 0;
    for (name, bounds) in BOUNDS {
        let directory =
            crate::layers::directory(name).with_context(|| format!("{name} belongs to no layer"))?;
        let sources = root.join(directory).join("src");
        let modules = Crate::read(&sources).with_context(|| format!("reading {}", sources.display()))?;
        let needs = modules.needs();
        let found = circles(&needs);
        let sizes: Vec<usize> = found.iter().map(Vec::len).collect();
        println!("modules: {name}: {} modules, circles {sizes:?}, allowed {bounds:?}", modules.len());
        for circle in &found {
            println!("  {}", circle.iter().map(|&at| modules.name(at)).collect::<Vec<_>>().join(" "));
            if all {
                for &from in circle {
                    for &to in needs[from].iter().filter(|to| circle.contains(to)) {
                        println!("    {} -> {}", modules.name(from), modules.name(to));
                    }
                }
            }
        }
        if !within(&sizes, bounds) {
            println!("modules: {name} has a circle larger than its bound");
            grown += 1;
        }
    }
    if grown > 0 {
        bail!("modules: circles of {grown} crates grew; break them, or raise their bounds with a reason");
    }
    Ok(())
}

/// Whether each size has a bound of its own; both descend.
fn within(sizes: &[usize], bounds: &[usize]) -> bool {
    sizes.len() <= bounds.len() && sizes.iter().zip(bounds).all(|(size, bound)| size <= bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_needs_a_bound() {
        assert!(within(&[], &[]) && within(&[3, 2], &[3, 3, 2]));
        assert!(!within(&[2], &[]) && !within(&[4], &[3]) && !within(&[3, 3], &[5]));
    }
}
