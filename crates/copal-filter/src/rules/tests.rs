//! The rules in the words of the paper and of the design, and what must hold for any of them.

mod budget;
mod classes;
mod optimum;
mod paper;
mod plain;
mod support;
mod twin;

pub(in crate::rules) use support::Random;
