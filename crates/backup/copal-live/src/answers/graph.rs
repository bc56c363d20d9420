//! Block graph: the users of a block node, from `x-debug-query-block-graph`, and the device that presents it
//! to the guest, from `query-block`.

use serde::Deserialize;
use serde_json::Value;

/// Nodes and the edges from users to the nodes that they use.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct BlockGraph {
    #[serde(default)]
    nodes: Vec<GraphNode>,
    #[serde(default)]
    edges: Vec<GraphEdge>,
}

#[derive(Debug, Deserialize)]
struct GraphNode {
    id: u64,
    #[serde(default)]
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize)]
struct GraphEdge {
    parent: u64,
    child: u64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    perm: Vec<String>,
}

/// A user of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeUser {
    /// Name of a block node, or QEMU's description of another user.
    pub(crate) name: String,
    /// `block-driver`, `block-backend`, `block-job`.
    pub(crate) kind: String,
    /// Role of the used node: `file`, `backing`, `root`.
    pub(crate) role: String,
    pub(crate) writes: bool,
}

impl BlockGraph {
    pub(crate) fn parse(answer: &Value) -> BlockGraph {
        BlockGraph::deserialize(answer).unwrap_or_default()
    }

    /// The users of a node.
    pub(crate) fn parents_of(&self, node: &str) -> Vec<NodeUser> {
        let Some(child) = self.id_of(node) else {
            return Vec::new();
        };
        let edges = self.edges.iter().filter(|edge| edge.child == child);
        let parent = |edge: &GraphEdge| {
            let vertex = self.nodes.iter().find(|vertex| vertex.id == edge.parent)?;
            Some(NodeUser {
                name: vertex.name.clone(),
                kind: vertex.kind.clone(),
                role: edge.name.clone(),
                writes: edge.perm.iter().any(|word| matches!(word.as_str(), "write" | "resize")),
            })
        };
        edges.filter_map(parent).collect()
    }

    /// The node that `node` uses in this role.
    pub(crate) fn child_of(&self, node: &str, role: &str) -> Option<&str> {
        let parent = self.id_of(node)?;
        let edge = self.edges.iter().find(|edge| edge.parent == parent && edge.name == role)?;
        let vertex = self.nodes.iter().find(|vertex| vertex.id == edge.child)?;
        Some(&vertex.name)
    }

    /// All nodes connected with a node through other nodes and jobs, including itself. QEMU runs all of them
    /// in one thread.
    pub(crate) fn connected(&self, node: &str) -> Vec<&str> {
        let mut found: Vec<u64> = self.id_of(node).into_iter().collect();
        let mut at = 0;
        while let Some(&id) = found.get(at) {
            for edge in &self.edges {
                for (one, other) in [(edge.parent, edge.child), (edge.child, edge.parent)] {
                    if one == id && !found.contains(&other) {
                        found.push(other);
                    }
                }
            }
            at += 1;
        }
        let drivers = self.nodes.iter().filter(|vertex| vertex.kind == "block-driver");
        drivers.filter(|vertex| found.contains(&vertex.id)).map(|vertex| vertex.name.as_str()).collect()
    }

    fn id_of(&self, node: &str) -> Option<u64> {
        let mut drivers = self.nodes.iter().filter(|vertex| vertex.kind == "block-driver");
        drivers.find(|vertex| vertex.name == node).map(|vertex| vertex.id)
    }
}

/// Paths of the guest devices whose disk is this node.
pub(crate) fn devices_of(answer: &Value, node: &str) -> Vec<String> {
    let devices = answer.as_array().into_iter().flatten();
    devices
        .filter(|device| device["inserted"]["node-name"] == node)
        .filter_map(|device| device["qdev"].as_str())
        .map(|device| match device.starts_with('/') {
            true => device.to_owned(),
            false => format!("/machine/peripheral/{device}"),
        })
        .collect()
}

/// The nodes that guest devices have as disks; `None` if there is no device, as in a storage daemon.
pub(crate) fn disks_of(answer: &Value) -> Option<Vec<&str>> {
    let devices = answer.as_array()?.iter();
    let disks = devices.filter_map(|device| device["inserted"]["node-name"].as_str());
    Some(disks.collect::<Vec<_>>()).filter(|disks| !disks.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn users_of_a_node_are_found_with_their_permissions() {
        let graph = BlockGraph::parse(&json!({
            "nodes": [{"id": 1, "name": "vm0", "type": "block-driver"}, {"id": 2, "name": "top", "type": "block-driver"},
                      {"id": 3, "name": "vm0", "type": "block-backend"}],
            "edges": [{"parent": 2, "child": 1, "name": "file", "perm": ["write", "consistent-read"], "shared-perm": []},
                      {"parent": 3, "child": 2, "name": "root", "perm": [], "shared-perm": []},
                      {"parent": 9, "child": 1, "name": "file", "perm": []}]}));
        let [parent] = &graph.parents_of("vm0")[..] else { panic!() };
        assert_eq!((parent.name.as_str(), parent.role.as_str(), parent.writes), ("top", "file", true));
        assert!(!graph.parents_of("top")[0].writes);
        assert_eq!(graph.child_of("top", "file"), Some("vm0"));
        assert_eq!(graph.parents_of("none"), Vec::new());
        assert_eq!(graph.connected("vm0"), ["vm0", "top"]);
        assert!(graph.connected("none").is_empty());
        assert_eq!(BlockGraph::parse(&json!([1])).parents_of("vm0"), Vec::new());
    }

    #[test]
    fn a_device_is_named_by_its_path() {
        let answer = json!([
            {"qdev": "/machine/peripheral/vd0/virtio-backend", "inserted": {"node-name": "vm0"}},
            {"qdev": "scsi1", "inserted": {"node-name": "vm1"}}, {"device": "floppy0"}]);
        assert_eq!(devices_of(&answer, "vm0"), ["/machine/peripheral/vd0/virtio-backend"]);
        assert_eq!(devices_of(&answer, "vm1"), ["/machine/peripheral/scsi1"]);
        assert!(devices_of(&Value::Null, "vm0").is_empty());
    }
}
