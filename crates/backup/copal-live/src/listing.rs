//! Copal's dirty bitmaps as a person looks at them, and takes them away.

use crate::qmp::{Client, QmpError};
use crate::{
    answers::nodes::{self, DirtyBitmap, Node},
    clear::{remove_bitmap, resume_leftovers},
    marks::guarded_by,
    names::PREFIX,
};
use serde_json::json;
use std::path::Path;

/// A dirty bitmap that a backup of Copal's has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBitmap {
    /// The node that keeps it.
    pub node: String,
    /// What QEMU says of it.
    pub bitmap: DirtyBitmap,
}

/// Copal's bitmaps in a QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapListing {
    /// By node and name.
    pub bitmaps: Vec<NodeBitmap>,
    /// About a guest that does not run.
    pub warnings: Vec<String>,
}

/// Copal's bitmaps of all nodes, without their sentinels. A guest that a backup which was killed has left
/// stopped goes on.
/// # Errors
/// Those of the connection.
pub fn list_bitmaps(qmp: &Path) -> Result<BitmapListing, QmpError> {
    let mut client = Client::connect(qmp)?;
    let warnings = resume_leftovers(&mut client)?;
    let mut bitmaps = listed(&nodes_of(&mut client)?);
    bitmaps.retain(|found| guarded_by(&found.bitmap.name).is_none());
    Ok(BitmapListing { bitmaps, warnings })
}

fn nodes_of(client: &mut Client) -> Result<Vec<Node>, QmpError> {
    let answer = client.execute("query-named-block-nodes", json!({ "flat": true }))?;
    Ok(nodes::parse(&answer))
}

fn listed(nodes: &[Node]) -> Vec<NodeBitmap> {
    let of_node = |node: &Node| {
        let own = node.bitmaps.iter().filter(|bitmap| bitmap.name.starts_with(PREFIX));
        let name = node.name.clone();
        own.map(|bitmap| NodeBitmap { node: name.clone(), bitmap: bitmap.clone() }).collect::<Vec<_>>()
    };
    let mut all: Vec<NodeBitmap> = nodes.iter().flat_map(of_node).collect();
    all.sort_by(|one, other| (&one.node, &one.bitmap.name).cmp(&(&other.node, &other.bitmap.name)));
    all
}

/// Removes one of Copal's bitmaps of a node, or all, each with its sentinel; returns the names of those that
/// are gone.
/// # Errors
/// `Refused`: a backup uses it. Those of the connection.
pub fn remove_bitmaps(qmp: &Path, node: &str, name: Option<&str>) -> Result<Vec<String>, QmpError> {
    let mut client = Client::connect(qmp)?;
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
