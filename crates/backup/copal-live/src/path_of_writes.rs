//! Where the writes of a guest pass on their way to a node, and how they are sent another way.
//!
//! Invariants
//! - Whatever writes to a node is led through the filter, or there is no point in time. QEMU itself lets
//!   nobody else write to the node while the filter is used.
//! - A node that is opened anew keeps all that QEMU tells of it, and `discard` as it was started with; where
//!   nobody knows that, trims are passed on, and the node below decides about them.

use crate::qmp::{Client, QmpError};
use crate::{
    answers::{
        graph::{self, Graph},
        nodes::{self, Node},
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

/// Drivers of the nodes that block jobs put above the disk that they work on.
const JOB_FILTERS: [&str; 2] = ["mirror_top", "commit_top"];
/// Most nodes between a format and its file: filters.
const MAX_NODES_TO_FILE: usize = 16;

/// Where the writes of a guest pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WritePath {
    /// Through a raw node, which can be opened anew over another one.
    Raw(Box<Node>),
    /// From a device of the guest, which can be given another node.
    Device(String),
    /// Nobody writes, and nobody can begin to while the filter is there.
    Nobody,
}

/// Nodes with the options that only the command line of QEMU tells.
fn with_trims(mut nodes: Vec<Node>, launch: &LaunchOptions) -> Vec<Node> {
    for node in &mut nodes {
        // QEMU lets zeros be unmapped only where trims are passed on.
        node.trims = node.detect_zeroes == "unmap" || launch.trims.get(&node.name).copied().unwrap_or(true);
    }
    nodes
}

/// All that is needed to find a path.
pub(crate) struct Surroundings {
    pub(crate) nodes: Vec<Node>,
    graph: Graph,
    devices: Value,
    pub(crate) launch: LaunchOptions,
    process: QemuProcess,
}

impl Surroundings {
    pub(crate) fn ask(client: &mut Client) -> Result<Surroundings, QmpError> {
        let nodes = client.execute("query-named-block-nodes", json!({ "flat": true }))?;
        let graph = client.execute("x-debug-query-block-graph", json!({}))?;
        let devices = match client.execute("query-block", json!({})) {
            Err(error) if error.is_unknown_command() => Value::Null,
            answer => answer?,
        };
        let process = QemuProcess::of(client);
        let launch = LaunchOptions::parse(&process.command_line());
        Ok(Surroundings {
            nodes: with_trims(nodes::parse(&nodes), &launch),
            graph: Graph::parse(&graph),
            devices,
            launch,
            process,
        })
    }

    /// All nodes that run in one thread with this one: those that it is connected with, itself included.
    pub(crate) fn connected(&self, node: &str) -> Vec<&str> {
        self.graph.connected(node)
    }

    /// The devices of guests whose disk is this node, as paths of objects.
    pub(crate) fn devices_of(&self, node: &str) -> Vec<String> {
        graph::devices_of(&self.devices, node)
    }

    /// What a filter stands over.
    pub(crate) fn below(&self, filter: &str) -> Option<&str> {
        self.graph.child_of(filter, "file")
    }

    /// The image behind that of a node.
    pub(crate) fn behind(&self, node: &str) -> Option<&Node> {
        nodes::find(&self.nodes, self.graph.child_of(node, "backing")?)
    }

    /// The node of the file that a node has its bytes from; `None`: they come from elsewhere.
    fn file_node(&self, node: &Node) -> Option<&Node> {
        let mut lowest = nodes::find(&self.nodes, &node.name)?;
        for _ in 0..MAX_NODES_TO_FILE {
            let Some(below) = self.graph.child_of(&lowest.name, "file") else {
                break;
            };
            lowest = nodes::find(&self.nodes, below)?;
        }
        matches!(lowest.driver.as_str(), "file" | "host_device").then_some(lowest)
    }

    /// Whether a node has its bytes from a file, wherever that lies.
    pub(crate) fn is_of_file(&self, node: &Node) -> bool {
        self.file_node(node).is_some()
    }

    /// The file that a node has its bytes from, as far as one can be found here.
    pub(crate) fn file_of(&self, node: &Node) -> Option<PathBuf> {
        self.process.find(Path::new(&self.file_node(node)?.file))
    }

    /// Refuses a node that is no disk of the guest any more. An external snapshot, or a mirror to another
    /// place, gives the guest another node and leaves the old one in QEMU, where nothing writes to it.
    /// # Errors
    /// `Job`, `Overlaid`, `Unused`.
    pub(crate) fn refuse_other_disk(&self, disk: &LiveDisk, node: &Node) -> Result<(), LiveError> {
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

    /// The path to a node.
    /// # Errors
    /// Who writes there, in words, if they cannot be led elsewhere.
    pub(crate) fn path_to(&self, node: &Node) -> Result<WritePath, String> {
        let parents = self.graph.parents_of(&node.name);
        let others: Vec<_> = parents.iter().filter(|parent| !parent.name.starts_with(PREFIX)).collect();
        let raw = |name: &str| {
            let above = nodes::find(&self.nodes, name)?;
            // One of another size shows a part of it, from an offset that QEMU does not tell.
            (above.driver == "raw" && above.size_bytes == node.size_bytes).then(|| above.clone())
        };
        let raws: Vec<Node> = others
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
            [] => Ok(WritePath::Nobody),
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

/// Sends the writes of each path to a node; with `at_once`, the session, in one moment for all, for which a
/// guest with several devices is stopped for some milliseconds.
/// # Errors
/// Those of QEMU. Some paths may lead there then.
pub(crate) fn lead(
    client: &mut Client,
    paths: &[(WritePath, String)],
    at_once: Option<&SessionName>,
) -> Result<(), QmpError> {
    let raws: Vec<Value> = paths.iter().filter_map(|(path, to)| reopened(path, to)).collect();
    let devices: Vec<(&String, &String)> = paths
        .iter()
        .filter_map(|(path, to)| match path {
            WritePath::Device(device) => Some((device, to)),
            WritePath::Raw(_) | WritePath::Nobody => None,
        })
        .collect();
    let moments = usize::from(!raws.is_empty()) + devices.len();
    let lead = |client: &mut Client| {
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
            pause::while_stopped(client, session, lead)
        }
        _ => lead(client),
    }
}

/// The options that put a raw node over another one.
fn reopened(path: &WritePath, to: &str) -> Option<Value> {
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

    /// vm0 below the parents given: name, kind, driver and size of a node, whether it writes.
    fn surroundings(parents: &[(&str, &str, &str, u64, bool)]) -> Surroundings {
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
        Surroundings {
            nodes: nodes::parse(&Value::Array(listed)),
            graph: Graph::parse(&json!({ "nodes": vertices, "edges": edges })),
            devices: json!([{"qdev": "/machine/peripheral/vd0", "inserted": {"node-name": "vm0"}}]),
            launch: LaunchOptions::default(),
            process: QemuProcess::default(),
        }
    }

    /// Symptom: behind a backup a guest's trims reached an image that they had not reached before.
    /// Cause: the raw node was opened anew with `discard=unmap`, also where that was off.
    /// Fix: it keeps the setting of QEMU's command line.
    #[test]
    fn a_node_that_is_opened_anew_keeps_what_is_known_of_it() {
        let mut above = nodes::parse(&json!([{
            "node-name": "top0", "drv": "raw", "ro": true, "detect_zeroes": "on", "cache": {"direct": true, "no-flush": true}}]));
        for (trims, discard) in [(true, "unmap"), (false, "ignore")] {
            above[0].trims = trims;
            let options = reopened(&WritePath::Raw(Box::new(above[0].clone())), "vm0").unwrap();
            assert_eq!(
                options,
                json!({"driver": "raw", "node-name": "top0", "file": "vm0", "read-only": true, "detect-zeroes": "on",
                       "cache": {"direct": true, "no-flush": true}, "discard": discard})
            );
        }
    }

    #[test]
    fn every_writer_is_led_elsewhere_or_none() {
        let path = |parents: &[(&str, &str, &str, u64, bool)]| {
            let surroundings = surroundings(parents);
            surroundings.path_to(nodes::find(&surroundings.nodes, "vm0").unwrap())
        };
        let (driver, backend) = ("block-driver", "block-backend");
        assert_eq!(path(&[]), Ok(WritePath::Nobody));
        assert_eq!(path(&[("r", backend, "", 0, false)]), Ok(WritePath::Nobody));
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
        // A filter of Copal is no writer of the guest's.
        assert_eq!(
            path(&[("copal-01234567-cbw0", driver, "copy-before-write", 100, true)]),
            Ok(WritePath::Nobody)
        );
    }

    /// Whether the node `vm0` passes for a disk of the guest. `devices`: the nodes of the devices of this
    /// QEMU, if it has any. `edges`: parent, child, role, and whether the parent writes.
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
        let surroundings = Surroundings {
            nodes: nodes::parse(&json!(listed)),
            graph: Graph::parse(&json!({ "nodes": vertices, "edges": edges })),
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
        let node = nodes::find(&surroundings.nodes, "vm0").unwrap();
        let passes = surroundings.refuse_other_disk(&disk, node);
        passes.map_err(|error| error.to_string())
    }

    /// Symptom: after an external snapshot or a mirror every backup held the old disk. Cause, fix: see
    /// `refuse_other_disk`.
    #[test]
    fn only_a_node_that_a_device_reaches_without_a_backing_link_is_its_disk() {
        let below_raw = [("top", "vm0", "file", true), ("dev", "top", "root", true)];
        assert_eq!(is_disk(Some(&["vm0"]), &[("dev", "vm0", "root", false)]), Ok(()));
        assert_eq!(is_disk(Some(&["top"]), &below_raw), Ok(()));
        assert_eq!(is_disk(None, &below_raw), Ok(()));
        // A disk of a storage daemon that nobody uses now; and one that this QEMU itself serves to others.
        assert_eq!(is_disk(None, &[]), Ok(()));
        assert_eq!(is_disk(Some(&[]), &[]), Ok(()));
        assert_eq!(is_disk(Some(&["over"]), &[("dev", "vm0", "root", true)]), Ok(()));
        // Behind an image that another program compares with, the guest writes on.
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
