//! Tables in memory against a model.

mod support;

mod damage;
mod golden;
mod ingested;
mod lookups;
mod memory;
mod objects;
mod scans;
mod shapes;
