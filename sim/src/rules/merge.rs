//! Merges into the bottom run: new partitions replace old ones and inherit their heat.
//!
//! A slice of up to 16 neighbours is replaced by as many, or one more or less, of equal size with other
//! limits. A merge of newer versions with some inserts and deletes has this effect. Only for modelled trees.
//! Outputs inherit heat by the share of keys that moved there, as in the engine.

use super::{random::Random, tree::Tree};
use anyhow::{Result, bail};
use copal_filter::KEYS_PER_PARTITION;
use std::str::FromStr;

const SLICE: usize = 16;

/// State that outputs of a merge inherit from the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inheritance {
    /// Nothing: they start cold and load on demand.
    Nothing,
    /// Their heat; the rule loads their units, at the cost of reads.
    Heat,
    /// Their heat, and the units it deserves; these are installed while the merge has the filter in memory.
    Units,
}

impl FromStr for Inheritance {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Inheritance> {
        Ok(match name {
            "nothing" => Inheritance::Nothing,
            "heat" => Inheritance::Heat,
            "units" => Inheritance::Units,
            _ => bail!("outputs of a merge inherit nothing, heat or units, not {name:?}"),
        })
    }
}

/// An input of the merge.
pub(super) struct Input {
    pub(super) number: u32,
    pub(super) keys: u32,
    start: u128,
    end: u128,
}

/// An output of the merge.
pub(super) struct Output {
    pub(super) keys: u32,
    start: u128,
    end: u128,
}

/// Neighbours of the bottom run and their replacement.
pub(super) struct Slice {
    first: usize,
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Output>,
}

impl Slice {
    /// A random slice of the bottom run.
    pub(super) fn choose(tree: &Tree, random: &mut Random) -> Slice {
        let run = &tree.runs[tree.runs.len() - 1];
        let count = run.numbers.len().min(SLICE);
        let first = random.below((run.numbers.len() - count + 1) as u64) as usize;
        let limit = |i: usize| match i {
            0 => 0,
            i => run.fences.get(i - 1).map_or(1u128 << 64, |&fence| u128::from(fence)),
        };
        let input = |i: usize| {
            let number = run.numbers[i];
            Input { number, keys: tree.shapes[number as usize].keys, start: limit(i), end: limit(i + 1) }
        };
        let inputs: Vec<Input> = (first..first + count).map(input).collect();
        let keys: u64 = inputs.iter().map(|input| u64::from(input.keys)).sum();
        // On average the number stays, so that the run neither grows nor shrinks.
        let exact = keys as f64 / f64::from(KEYS_PER_PARTITION);
        let outputs = ((exact + random.unit()) as u64).max(1);
        let (start, width) = (limit(first), limit(first + count) - limit(first));
        let cut = |i: u64| start + width * u128::from(i) / u128::from(outputs);
        let output = |i: u64| Output { keys: (keys / outputs) as u32, start: cut(i), end: cut(i + 1) };
        Slice { first, inputs, outputs: (0..outputs).map(output).collect() }
    }

    /// Inputs that gave keys to `output`, and numbers of these keys.
    pub(super) fn moved<'a>(&'a self, output: &'a Output) -> impl Iterator<Item = (&'a Input, u32)> {
        self.inputs.iter().filter_map(|input| {
            let shared = output.end.min(input.end).checked_sub(output.start.max(input.start))?;
            let moved = shared as f64 / (input.end - input.start) as f64 * f64::from(input.keys);
            (moved >= 1.0).then_some((input, moved as u32))
        })
    }

    /// Replaces the inputs in the tree's bottom run and returns the numbers of the outputs. The caller sets
    /// their shapes.
    pub(super) fn install(self, tree: &mut Tree) -> std::ops::Range<u32> {
        let numbers = tree.shapes.len() as u32..(tree.shapes.len() + self.outputs.len()) as u32;
        let last = tree.runs.len() - 1;
        let run = &mut tree.runs[last];
        run.numbers.splice(self.first..self.first + self.inputs.len(), numbers.clone());
        // The outer limits stay; those between partitions are replaced.
        let inner = self.first..self.first + self.inputs.len() - 1;
        run.fences.splice(inner, self.outputs.iter().skip(1).map(|output| output.start as u64));
        numbers
    }
}
