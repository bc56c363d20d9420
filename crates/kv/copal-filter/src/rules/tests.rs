//! Tests of the rules: statements of the paper and of the design, and invariants of every rule.

mod budget;
mod classes;
mod optimum;
mod paper;
mod plain;
mod slow_rule;
mod support;
mod trade;

pub(in crate::rules) use support::Random;
