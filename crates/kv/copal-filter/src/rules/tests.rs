//! The rules in the words of the paper and of the design, and what must hold for any of them.

mod budget;
mod classes;
mod optimum;
mod paper;
mod plain;
mod slow_rule;
mod support;

pub(in crate::rules) use support::Random;
