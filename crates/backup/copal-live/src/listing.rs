//! Listing and removal of Copal's dirty bitmaps, for `copal bitmap`.

use crate::qmp::{QmpClient, QmpError};
use crate::{
    answers::nodes::{self, BlockNode, DirtyBitmap},
    marks::guarded_by,
    names::PREFIX,
    teardown::{remove_bitmap, resume_leftovers},
};
use serde_json::json;
use std::path::Path;

/// A dirty bitmap that a Copal backup created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBitmap {
    /// Node of the bitmap.
    pub node: String,
    /// State of the bitmap.
    pub bitmap: DirtyBitmap,
}

/// Copal's bitmaps in a QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapListing {
    /// Sorted by node and name.
    pub bitmaps: Vec<NodeBitmap>,
    /// Warnings about a guest that is not running.
    pub warnings: Vec<String>,
}

/// Lists Copal's bitmaps of all nodes, without their sentinels. Resumes a guest that a killed backup has left
/// stopped.
/// # Errors
/// Those of the connection.
pub fn list_bitmaps(qmp: &Path) -> Result<BitmapListing, QmpError> {
    let mut client = QmpClient::connect(qmp)?;
    let warnings = resume_leftovers(&mut client)?;
    let mut bitmaps = listed(&nodes_of(&mut client)?);
    bitmaps.retain(|found| guarded_by(&found.bitmap.name).is_none());
    Ok(BitmapListing { bitmaps, warnings })
}

fn nodes_of(client: &mut QmpClient) -> Result<Vec<BlockNode>, QmpError> {
    let answer = client.execute("query-named-block-nodes", json!({ "flat": true }))?;
    Ok(nodes::parse(&answer))
}

fn listed(nodes: &[BlockNode]) -> Vec<NodeBitmap> {
    let of_node = |node: &BlockNode| {
        let own = node.bitmaps.iter().filter(|bitmap| bitmap.name.starts_with(PREFIX));
        let name = node.name.clone();
        own.map(|bitmap| NodeBitmap { node: name.clone(), bitmap: bitmap.clone() }).collect::<Vec<_>>()
    };
    let mut all: Vec<NodeBitmap> = nodes.iter().flat_map(of_node).collect();
    all.sort_by(|one, other| (&one.node, &one.bitmap.name).cmp(&(&other.node, &other.bitmap.name)));
    all
}

/// Removes one of Copal's bitmaps of a node, or all of them, each with its sentinel. Returns the names of the
/// removed bitmaps.
/// # Errors
/// `Refused`: a backup uses a bitmap. Those of the connection.
pub fn remove_bitmaps(qmp: &Path, node: &str, name: Option<&str>) -> Result<Vec<String>, QmpError> {
    let mut client = QmpClient::connect(qmp)?;
    let found = listed(&nodes_of(&mut client)?).into_iter().filter(|found| found.node == node);
    let mut gone = Vec::new();
    for found in found {
        let guarded = guarded_by(&found.bitmap.name);
        let meant = guarded.unwrap_or(&found.bitmap.name);
        if name.is_some_and(|name| meant != name) {
            continue;
        }
        remove_bitmap(&mut client, node, &found.bitmap.name)?;
        if guarded.is_none() {
            gone.push(found.bitmap.name);
        }
    }
    Ok(gone)
}
