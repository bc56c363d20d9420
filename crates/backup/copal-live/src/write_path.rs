//! Write path: the nodes that a guest's writes pass on their way to a disk, and their redirection through a
//! filter.
//!
//! Invariants
//! - Every writer of a node is redirected through the filter, or no point in time is taken. While the filter
//!   is in use, QEMU refuses other writers of the node.
//! - A reopened node keeps all options that QEMU reports, and `discard` from the command line. If `discard`
//!   is unknown, trims are passed on, and the node below decides.

use crate::qmp::{QmpClient, QmpError};
use crate::{
    answers::{
        graph::{self, BlockGraph},
        nodes::{self, BlockNode},
    },
    error::LiveError,
    launch::LaunchOptions,
    names::{PREFIX, SessionName},
    pause,
    process::QemuProcess,
    request::LiveDisk,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Drivers of the filter nodes that block jobs insert above a disk.
const JOB_FILTERS: [&str; 2] = ["mirror_top", "commit_top"];
/// Maximum number of nodes between a format node and its file node.
const MAX_NODES_TO_FILE: usize = 16;

/// Path of a guest's writes to a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WritePath {
    /// Through a raw node, which can be reopened over another node.
    Raw(Box<BlockNode>),
    /// From a guest device, whose node can be replaced.
    Device(String),
    /// No writer, and none can begin while the filter is there.
    NoWriter,
}

/// Nodes with the trim option of QEMU's command line.
fn with_trims(mut nodes: Vec<BlockNode>, launch: &LaunchOptions) -> Vec<BlockNode> {
    for node in &mut nodes {
        // QEMU accepts `detect-zeroes=unmap` only on nodes that pass trims on.
        node.trims = node.detect_zeroes == "unmap" || launch.trims.get(&node.name).copied().unwrap_or(true);
    }
    nodes
}

/// State of QEMU from which write paths are derived.
pub(crate) struct QemuState {
    pub(crate) nodes: Vec<BlockNode>,
    graph: BlockGraph,
    devices: Value,
    pub(crate) launch: LaunchOptions,
    process: QemuProcess,
}

impl QemuState {
    pub(crate) fn ask(client: &mut QmpClient) -> Result<QemuState, QmpError> {
        let nodes = client.execute("query-named-block-nodes", json!({ "flat": true }))?;
        let graph = client.execute("x-debug-query-block-graph", json!({}))?;
        let devices = match client.execute("query-block", json!({})) {
            Err(error) if error.is_unknown_command() => Value::Null,
            answer => answer?,
        };
        let process = QemuProcess::of(client);
        let launch = LaunchOptions::parse(&process.command_line());
        Ok(QemuState {
            nodes: with_trims(nodes::parse(&nodes), &launch),
            graph: BlockGraph::parse(&graph),
            devices,
            launch,
            process,
        })
    }

    /// All nodes that run in the thread of this node: the connected ones, including itself.
    pub(crate) fn connected(&self, node: &str) -> Vec<&str> {
        self.graph.connected(node)
    }

    /// Paths of the guest devices whose disk is this node.
    pub(crate) fn devices_of(&self, node: &str) -> Vec<String> {
        graph::devices_of(&self.devices, node)
    }

    /// The node below a filter.
    pub(crate) fn below(&self, filter: &str) -> Option<&str> {
        self.graph.child_of(filter, "file")
    }

    /// The backing node.
    pub(crate) fn behind(&self, node: &str) -> Option<&BlockNode> {
        nodes::find(&self.nodes, self.graph.child_of(node, "backing")?)
    }

    /// The file node below a node; `None` if its bytes come from elsewhere.
    fn file_node(&self, node: &BlockNode) -> Option<&BlockNode> {
        let mut lowest = nodes::find(&self.nodes, &node.name)?;
        for _ in 0..MAX_NODES_TO_FILE {
            let Some(below) = self.graph.child_of(&lowest.name, "file") else {
                break;
            };
            lowest = nodes::find(&self.nodes, below)?;
        }
        matches!(lowest.driver.as_str(), "file" | "host_device").then_some(lowest)
    }

    /// Whether a node has its bytes from a file, readable here or not.
    pub(crate) fn is_of_file(&self, node: &BlockNode) -> bool {
        self.file_node(node).is_some()
    }

    /// The file of a node, if it can be found on this host.
    pub(crate) fn file_of(&self, node: &BlockNode) -> Option<PathBuf> {
        self.process.find(Path::new(&self.file_node(node)?.file))
    }

    /// Refuses a node that is not a disk of the guest any more. An external snapshot or a mirror gives the
    /// guest another node; the old one stays in QEMU, and nothing writes to it.
    /// # Errors
    /// `Job`, `Overlaid`, `Unused`.
    pub(crate) fn refuse_other_disk(&self, disk: &LiveDisk, node: &BlockNode) -> Result<(), LiveError> {
        let names = |name: &str| (disk.name.clone(), node.name.clone(), name.to_owned());
        let driver_of = |name: &str| nodes::find(&self.nodes, name).map(|node| node.driver.as_str());
        let (mut found, mut overlay, mut is_used) = (vec![node.name.clone()], None, false);
        let disks = graph::disks_of(&self.devices);
        let mut at = 0;
        while let Some(name) = found.get(at).cloned() {
            at += 1;
            is_used |= disks.as_ref().is_some_and(|disks| disks.contains(&name.as_str()));
            for parent in self.graph.parents_of(&name) {
                let driver = driver_of(&parent.name).unwrap_or_default();
                if JOB_FILTERS.contains(&driver) {
                    let (disk, node, job) = names(driver);
                    return Err(LiveError::Job { disk, node, job });
                }
                match (parent.kind.as_str(), parent.role.as_str()) {
                    ("block-driver", "backing") => overlay = overlay.or(Some(parent.name)),
                    ("block-driver", _) if !found.contains(&parent.name) => found.push(parent.name),
                    ("block-backend", _) => is_used |= parent.writes || disks.is_none(),
                    _ => {}
                }
            }
        }
        match (is_used, overlay, disks) {
            (true, ..) | (false, None, None) => Ok(()),
            (false, Some(overlay), _) => {
                let (disk, node, overlay) = names(&overlay);
                Err(LiveError::Overlaid { disk, node, overlay })
            }
            (false, None, Some(disks)) => Err(LiveError::Unused {
                disk: disk.name.clone(),
                node: node.name.clone(),
                used: disks.iter().map(|name| (*name).to_owned()).collect(),
            }),
        }
    }

    /// The write path to a node.
    /// # Errors
    /// The writers, if they cannot be redirected.
    pub(crate) fn path_to(&self, node: &BlockNode) -> Result<WritePath, String> {
        let parents = self.graph.parents_of(&node.name);
        let others: Vec<_> = parents.iter().filter(|parent| !parent.name.starts_with(PREFIX)).collect();
        let raw = |name: &str| {
            let above = nodes::find(&self.nodes, name)?;
            // A raw node of another size presents a part of the node, at an offset that QEMU does not report.
            (above.driver == "raw" && above.size_bytes == node.size_bytes).then(|| above.clone())
        };
        let raws: Vec<BlockNode> = others
            .iter()
            .filter(|parent| parent.kind == "block-driver" && parent.role == "file")
            .filter_map(|parent| raw(&parent.name))
            .collect();
        let writers: Vec<_> = others.iter().filter(|parent| parent.writes).collect();
        if let [above] = &raws[..]
            && writers.iter().all(|writer| writer.kind == "block-driver" && writer.name == above.name)
        {
            return Ok(WritePath::Raw(Box::new(above.clone())));
        }
        match &writers[..] {
            [] => Ok(WritePath::NoWriter),
            [writer] if writer.kind == "block-backend" => match &self.devices_of(&node.name)[..] {
                [device] => Ok(WritePath::Device(device.clone())),
                _ => Err(format!("the export or device {:?}", writer.name)),
            },
            writers => {
                let names: Vec<String> = writers.iter().map(|writer| format!("{:?}", writer.name)).collect();
                Err(names.join(", "))
            }
        }
    }
}

/// Redirects the writes of each path to a node. With the session in `at_once`, all paths change in one
/// moment: a guest with several devices is stopped for some milliseconds.
/// # Errors
/// Those of QEMU. Some paths may be redirected then.
pub(crate) fn redirect(
    client: &mut QmpClient,
    paths: &[(WritePath, String)],
    at_once: Option<&SessionName>,
) -> Result<(), QmpError> {
    let raws: Vec<Value> = paths.iter().filter_map(|(path, to)| reopen_options(path, to)).collect();
    let devices: Vec<(&String, &String)> = paths
        .iter()
        .filter_map(|(path, to)| match path {
            WritePath::Device(device) => Some((device, to)),
            WritePath::Raw(_) | WritePath::NoWriter => None,
        })
        .collect();
    let moments = usize::from(!raws.is_empty()) + devices.len();
    let redirect = |client: &mut QmpClient| {
        if !raws.is_empty() {
            client.execute("blockdev-reopen", json!({ "options": raws }))?;
        }
        for (device, to) in devices {
            let give = json!({ "path": device, "property": "drive", "value": to });
            client.execute("qom-set", give)?;
        }
        Ok(())
    };
    match at_once {
        Some(session) if moments > 1 && pause::status(client)?.is_none() => {
            pause::while_stopped(client, session, redirect)
        }
        _ => redirect(client),
    }
}

/// Options that reopen a raw node over another node.
fn reopen_options(path: &WritePath, to: &str) -> Option<Value> {
    let WritePath::Raw(above) = path else { return None };
    Some(json!({
        "driver": "raw",
        "node-name": above.name,
        "file": to,
        "read-only": above.is_read_only,
        "cache": above.cache,
        "detect-zeroes": above.detect_zeroes,
        "discard": if above.trims { "unmap" } else { "ignore" },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph with `vm0` below the given parents: name, kind, driver and size of a node, and whether it
    /// writes.
    fn qemu(parents: &[(&str, &str, &str, u64, bool)]) -> QemuState {
        let mut listed = vec![json!({"node-name": "vm0", "drv": "qcow2", "image": {"virtual-size": 100}})];
        let mut vertices = vec![json!({"id": 0, "name": "vm0", "type": "block-driver"})];
        let mut edges = Vec::new();
        for (at, (name, kind, driver, size, writes)) in parents.iter().enumerate() {
            listed.push(json!({"node-name": name, "drv": driver, "image": {"virtual-size": size}}));
            vertices.push(json!({"id": at + 1, "name": name, "type": kind}));
            let perm: &[&str] = if *writes { &["write"] } else { &[] };
            let role = if *kind == "block-driver" { "file" } else { "root" };
            edges.push(json!({"parent": at + 1, "child": 0, "name": role, "perm": perm}));
        }
        QemuState {
            nodes: nodes::parse(&Value::Array(listed)),
            graph: BlockGraph::parse(&json!({ "nodes": vertices, "edges": edges })),
            devices: json!([{"qdev": "/machine/peripheral/vd0", "inserted": {"node-name": "vm0"}}]),
            launch: LaunchOptions::default(),
            process: QemuProcess::default(),
        }
    }

    /// Symptom: after a backup, a guest's trims reached an image that they had not reached before.
    /// Cause: the raw node was reopened with `discard=unmap` even if that was off.
    /// Fix: it keeps the setting of QEMU's command line.
    #[test]
    fn a_reopened_node_keeps_its_known_options() {
        let mut above = nodes::parse(&json!([{
            "node-name": "top0", "drv": "raw", "ro": true, "detect_zeroes": "on", "cache": {"direct": true, "no-flush": true}}]));
        for (trims, discard) in [(true, "unmap"), (false, "ignore")] {
            above[0].trims = trims;
            let options = reopen_options(&WritePath::Raw(Box::new(above[0].clone())), "vm0").unwrap();
            assert_eq!(
                options,
                json!({"driver": "raw", "node-name": "top0", "file": "vm0", "read-only": true, "detect-zeroes": "on",
                       "cache": {"direct": true, "no-flush": true}, "discard": discard})
            );
        }
    }

    #[test]
    fn all_writers_are_redirected_or_none() {
        let path = |parents: &[(&str, &str, &str, u64, bool)]| {
            let qemu = qemu(parents);
            qemu.path_to(nodes::find(&qemu.nodes, "vm0").unwrap())
        };
        let (driver, backend) = ("block-driver", "block-backend");
        assert_eq!(path(&[]), Ok(WritePath::NoWriter));
        assert_eq!(path(&[("r", backend, "", 0, false)]), Ok(WritePath::NoWriter));
        let top = ("top", driver, "raw", 100, true);
        for parents in
            [&[top][..], &[top, ("r", backend, "", 0, false)], &[("top", driver, "raw", 100, false)]]
        {
            assert!(matches!(path(parents), Ok(WritePath::Raw(above)) if above.name == "top"));
        }
        let device = ("vd0", backend, "", 0, true);
        assert_eq!(path(&[device]), Ok(WritePath::Device("/machine/peripheral/vd0".into())));
        for (parents, writers) in [
            (&[top, device][..], "\"top\", \"vd0\""),
            (&[("part", driver, "raw", 50, true)], "\"part\""),
            (&[("throttled", driver, "throttle", 100, true)], "\"throttled\""),
            (&[("job0", "block-job", "", 0, true)], "\"job0\""),
        ] {
            assert_eq!(path(parents), Err(writers.into()));
        }
        // Copal's own filter is not a writer of the guest.
        assert_eq!(
            path(&[("copal-01234567-cbw0", driver, "copy-before-write", 100, true)]),
            Ok(WritePath::NoWriter)
        );
    }

    /// Whether the node `vm0` is accepted as a disk of the guest. `devices`: the nodes of QEMU's guest
    /// devices, if any. `edges`: parent, child, role, and whether the parent writes.
    fn is_disk(devices: Option<&[&str]>, edges: &[(&str, &str, &str, bool)]) -> Result<(), String> {
        let names = ["vm0", "top", "over", "job", "dev"];
        let id = |name: &str| names.iter().position(|known| *known == name).unwrap();
        let kind = |name: &str| {
            if name == "dev" { "block-backend" } else { "block-driver" }
        };
        let vertices = names.map(|name| json!({"id": id(name), "name": name, "type": kind(name)}));
        let edges = edges.iter().map(|(parent, child, role, writes)| {
            let perm: &[&str] = if *writes { &["write"] } else { &[] };
            json!({"parent": id(parent), "child": id(child), "name": role, "perm": perm})
        });
        let edges: Vec<Value> = edges.collect();
        let listed = names.map(|name| {
            let driver = if name == "job" { "mirror_top" } else { "qcow2" };
            json!({"node-name": name, "drv": driver})
        });
        let devices = devices.map(|nodes| {
            let device = |node: &&str| json!({"inserted": {"node-name": node}});
            Value::Array(nodes.iter().map(device).collect())
        });
        let qemu = QemuState {
            nodes: nodes::parse(&json!(listed)),
            graph: BlockGraph::parse(&json!({ "nodes": vertices, "edges": edges })),
            devices: devices.unwrap_or(Value::Null),
            launch: LaunchOptions::default(),
            process: QemuProcess::default(),
        };
        let disk = LiveDisk {
            name: "sda".to_owned(),
            node: "vm0".to_owned(),
            serial: String::new(),
            began_with_base: None,
            sentinel: None,
        };
        let node = nodes::find(&qemu.nodes, "vm0").unwrap();
        let passes = qemu.refuse_other_disk(&disk, node);
        passes.map_err(|error| error.to_string())
    }

    /// Symptom: after an external snapshot or a mirror, every backup held the old disk. Cause and fix: see
    /// `refuse_other_disk`.
    #[test]
    fn only_a_node_that_a_device_reaches_without_a_backing_link_is_its_disk() {
        let below_raw = [("top", "vm0", "file", true), ("dev", "top", "root", true)];
        assert_eq!(is_disk(Some(&["vm0"]), &[("dev", "vm0", "root", false)]), Ok(()));
        assert_eq!(is_disk(Some(&["top"]), &below_raw), Ok(()));
        assert_eq!(is_disk(None, &below_raw), Ok(()));
        // A disk of a storage daemon without a user; and one that this QEMU itself exports.
        assert_eq!(is_disk(None, &[]), Ok(()));
        assert_eq!(is_disk(Some(&[]), &[]), Ok(()));
        assert_eq!(is_disk(Some(&["over"]), &[("dev", "vm0", "root", true)]), Ok(()));
        // As the backing node of another program's image, the disk still gets the guest's writes.
        let fleeced = [("over", "vm0", "backing", false), ("dev", "vm0", "root", true)];
        assert_eq!(is_disk(Some(&["vm0"]), &fleeced), Ok(()));
        let refused = |devices, edges, words: &str| {
            let said = is_disk(devices, edges).unwrap_err();
            assert!(said.contains(words), "{said}");
        };
        let overlaid = [("over", "vm0", "backing", false), ("dev", "over", "root", true)];
        refused(Some(&["over"]), &overlaid, "lies behind over");
        refused(None, &overlaid, "lies behind over");
        let over_raw = [("top", "vm0", "file", false), ("over", "top", "backing", false)];
        refused(Some(&["over"]), &over_raw, "lies behind over");
        refused(Some(&["over"]), &[], "no device of the guest uses vm0");
        refused(Some(&["over"]), &[("dev", "vm0", "root", false)], "its disks are over");
        refused(Some(&["job"]), &[("job", "vm0", "backing", true)], "a block job (mirror_top)");
    }
}
