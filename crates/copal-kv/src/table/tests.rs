//! Tables in memory against a model.

mod support;

mod lookups;
