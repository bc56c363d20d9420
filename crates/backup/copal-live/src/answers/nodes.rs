//! Block nodes and their dirty bitmaps, from `query-named-block-nodes`.

use serde::Deserialize;
use serde_json::{Value, json};

/// A dirty bitmap of a block node.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct DirtyBitmap {
    /// Name; empty for bitmaps that QEMU uses internally.
    #[serde(default)]
    pub name: String,
    /// Bytes per bit.
    #[serde(default)]
    pub granularity: u64,
    /// Dirty bytes.
    #[serde(default, rename = "count")]
    pub dirty_bytes: u64,
    /// The bitmap records writes.
    #[serde(default, rename = "recording")]
    pub is_recording: bool,
    /// An export or a job uses the bitmap.
    #[serde(default, rename = "busy")]
    pub is_busy: bool,
    /// The bitmap is stored in the image when QEMU ends.
    #[serde(default, rename = "persistent")]
    pub is_persistent: bool,
    /// QEMU was killed while the bitmap recorded: its content is unknown, and it can only be removed.
    #[serde(default, rename = "inconsistent")]
    pub is_inconsistent: bool,
}

/// A block node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlockNode {
    pub(crate) name: String,
    /// `qcow2`, `raw`, `file`.
    pub(crate) driver: String,
    /// File name of the node as QEMU reports it.
    pub(crate) file: String,
    pub(crate) size_bytes: u64,
    pub(crate) is_read_only: bool,
    pub(crate) cache: Value,
    pub(crate) detect_zeroes: String,
    /// Whether the node passes trims on. QEMU does not report that; if unknown, it is assumed.
    pub(crate) trims: bool,
    pub(crate) bitmaps: Vec<DirtyBitmap>,
}

#[derive(Deserialize)]
struct NodeReply {
    #[serde(default, rename = "node-name")]
    name: String,
    #[serde(default, rename = "drv")]
    driver: String,
    #[serde(default)]
    file: String,
    #[serde(default)]
    ro: bool,
    #[serde(default)]
    cache: CacheReply,
    #[serde(default)]
    detect_zeroes: String,
    #[serde(default)]
    image: ImageReply,
    #[serde(default, rename = "dirty-bitmaps")]
    bitmaps: Vec<DirtyBitmap>,
}
#[derive(Default, Deserialize)]
struct CacheReply {
    #[serde(default)]
    direct: bool,
    #[serde(default, rename = "no-flush")]
    no_flush: bool,
}
#[derive(Default, Deserialize)]
struct ImageReply {
    #[serde(default, rename = "virtual-size")]
    size_bytes: u64,
}

impl BlockNode {
    /// The bitmap with this name.
    pub(crate) fn bitmap(&self, name: &str) -> Option<&DirtyBitmap> {
        self.bitmaps.iter().find(|bitmap| bitmap.name == name)
    }
}

/// Parses all nodes; a malformed one is skipped.
pub(crate) fn parse(answer: &Value) -> Vec<BlockNode> {
    let listed = answer.as_array().into_iter().flatten();
    listed
        .filter_map(|node| NodeReply::deserialize(node).ok())
        .filter(|node| !node.name.is_empty())
        .map(|node| BlockNode {
            name: node.name,
            driver: node.driver,
            file: node.file,
            size_bytes: node.image.size_bytes,
            is_read_only: node.ro,
            cache: json!({ "direct": node.cache.direct, "no-flush": node.cache.no_flush }),
            detect_zeroes: match node.detect_zeroes.is_empty() {
                true => "off".into(),
                false => node.detect_zeroes,
            },
            trims: true,
            bitmaps: node.bitmaps,
        })
        .collect()
}

/// The node with this name.
pub(crate) fn find<'a>(nodes: &'a [BlockNode], name: &str) -> Option<&'a BlockNode> {
    nodes.iter().find(|node| node.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_bitmaps_are_read_as_qemu_7_reports_them() {
        let answer = json!([
            {"node-name": "vm0", "drv": "qcow2", "file": "/a/vm.qcow2", "ro": false, "detect_zeroes": "off",
             "cache": {"writeback": true, "direct": true, "no-flush": false}, "image": {"virtual-size": 1048576},
             "dirty-bitmaps": [
                {"name": "b", "recording": true, "persistent": true, "busy": false, "granularity": 65536, "count": 131072},
                {"recording": false, "persistent": false, "busy": false, "granularity": 65536, "count": 9}]},
            {"drv": "file"}, 7, {"node-name": 7}]);
        let nodes = parse(&answer);
        assert_eq!(nodes.len(), 1);
        let node = find(&nodes, "vm0").unwrap();
        assert_eq!((node.size_bytes, &node.cache), (1 << 20, &json!({"direct": true, "no-flush": false})));
        let bitmap = node.bitmap("b").unwrap();
        assert!(bitmap.is_recording && bitmap.is_persistent && !bitmap.is_inconsistent);
        assert_eq!((bitmap.dirty_bytes, bitmap.granularity), (128 << 10, 64 << 10));
        assert_eq!(parse(&json!({})), Vec::new());
    }
}
