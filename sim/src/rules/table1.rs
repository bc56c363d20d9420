//! The paper's table 1 in the model: one million Gets on 50,000 tables, from an empty memory.
//!
//! Paper: elasticbf §4.1. 100 GB in tables of 2 MB on LevelDB's tree, 4 bits per key, lifeTime 20,000, half
//! of the Gets missing. The paper counts reads of data only; here reads of filters are listed too.

use super::{
    access::{Access, Gets},
    budget_bytes,
    merge::Inheritance,
    play::{Driving, Player},
    tree::{Runs, Tree},
};
use anyhow::Result;
use clap::Args;
use copal_filter::{
    Kind,
    rules::{LifeTime, PaperMq, PaperMqOptions, Rule, RuleKind},
};
use serde_json::json;

const ACCESSES: [Access; 4] = [Access::Uniform, Access::Zipf(0.99), Access::Zipf(1.10), Access::Zipf(1.20)];
const PRINTED_LEVELDB: [u64; 4] = [1_525_595, 1_585_605, 1_634_752, 1_667_947];
const PRINTED_ELASTICBF: [u64; 4] = [628_225, 578_553, 550_658, 545_345];
const LIFE_TIME: f64 = 20_000.0 / 50_000.0;

/// Arguments of `copal-sim table1`.
#[derive(Args, Debug)]
pub(crate) struct TableArguments {
    /// The tree; the paper's has 50,000 tables on LevelDB's levels
    #[arg(long, default_value = "leveled:50000")]
    pub(super) tree: Runs,
    /// Number of Gets, from an empty memory
    #[arg(long, default_value_t = 1_000_000)]
    pub(super) gets: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Print JSON instead of the table
    #[arg(long)]
    pub(super) json: bool,
}

/// Reads per million Gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) data: f64,
    pub(super) filters: f64,
}

/// One system under the four distributions.
pub(super) fn row(arguments: &TableArguments, kind: Kind, rule: RuleKind) -> Result<[Cell; 4]> {
    let tree = Tree::modelled(&arguments.tree, kind);
    let mut cells = [Cell { data: 0.0, filters: 0.0 }; 4];
    for (cell, access) in cells.iter_mut().zip(ACCESSES) {
        let paper = rule == RuleKind::Paper;
        let rule: Box<dyn Rule> = if paper {
            let life_time = LifeTime::PerPartition(LIFE_TIME);
            Box::new(PaperMq::new(PaperMqOptions { life_time, ..PaperMqOptions::default() }))
        } else {
            rule.build()
        };
        let driving = Driving {
            budget_bytes: budget_bytes(&tree, 4.0),
            batch: if paper { 1 } else { 64 },
            paper,
            merge_every: 0,
            inheritance: Inheritance::Units,
        };
        let mut player = Player::new(tree.clone(), arguments.seed, rule, driving)?;
        let mut gets = Gets::new(access, tree.keys, 0.5, arguments.seed);
        let reads = player.play(arguments.gets, 1, || Some(gets.next()))?[0];
        let million = 1e6 / arguments.gets as f64;
        *cell = Cell {
            data: (reads.false_reads + reads.hits) as f64 * million,
            filters: reads.page_reads as f64 * million,
        };
    }
    Ok(cells)
}

/// Runs the four systems and prints them beside the paper's figures.
pub(crate) fn run(arguments: &TableArguments) -> Result<()> {
    let fixed = row(arguments, Kind::Bloom, RuleKind::Fixed { units: 1 })?;
    let paper = row(arguments, Kind::Bloom, RuleKind::Paper)?;
    let multi_queue = row(arguments, Kind::Ribbon, RuleKind::Paper)?;
    let classes = row(arguments, Kind::Ribbon, RuleKind::Classes)?;
    let rows = [
        ("fixed Bloom filters", fixed),
        ("Bloom units, paper's rule", paper),
        ("columns, paper's rule", multi_queue),
        ("columns, class rule", classes),
    ];
    if arguments.json {
        let cells = |cells: &[Cell; 4]| {
            cells.map(|cell| json!({"data_reads": cell.data, "filter_reads": cell.filters}))
        };
        let rows: Vec<_> =
            rows.iter().map(|(name, row)| json!({"system": name, "cells": cells(row)})).collect();
        let value = json!({
            "gets": arguments.gets,
            "tree": arguments.tree.0,
            "access": ACCESSES.map(|access| access.to_string()),
            "printed_leveldb": PRINTED_LEVELDB,
            "printed_elasticbf": PRINTED_ELASTICBF,
            "rows": rows,
        });
        println!("{value:#}");
        return Ok(());
    }
    println!("Reads of data per million Gets, and of filters");
    println!("{:26} {}", "", ACCESSES.map(|access| format!("{:>18}", access.to_string())).concat());
    let printed = |name: &str, row: [u64; 4]| {
        println!("{name:26} {}", row.map(|reads| format!("{reads:>18}")).concat())
    };
    printed("LevelDB, the paper", PRINTED_LEVELDB);
    printed("ElasticBF, the paper", PRINTED_ELASTICBF);
    for (name, row) in &rows {
        let cell = |cell: Cell| format!("{:>9.0} +{:>7.0}", cell.data, cell.filters);
        println!("{name:26} {}", row.map(|of| format!("{:>18}", cell(of))).concat());
    }
    let ratio = |i: usize| PRINTED_LEVELDB[i] as f64 / PRINTED_ELASTICBF[i] as f64;
    println!("{:26} {}", "ratio, the paper", [0, 1, 2, 3].map(|i| format!("{:>18.2}", ratio(i))).concat());
    let ratio = |i: usize| fixed[i].data / paper[i].data;
    println!("{:26} {}", "ratio, the model", [0, 1, 2, 3].map(|i| format!("{:>18.2}", ratio(i))).concat());
    Ok(())
}
