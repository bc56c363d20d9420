//! Snapshots as stored: recipes, manifests, reading of recipe trees and their chunks.

pub(crate) mod fetch;
pub(crate) mod manifest;
pub(crate) mod recipe;
pub(crate) mod tree;
