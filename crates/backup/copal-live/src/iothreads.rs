//! iothread check: refuses disks that run, or may run, in an iothread on QEMU before 10.0.
//!
//! 7.2.22 aborts, and its guest with it, when a filter is inserted above such a disk, or when a reader of the
//! point in time disconnects. Versions in between were not tested and are refused as well. The check only
//! sends queries.
//!
//! Connected nodes run in one thread: that of a device or an export of any of them. QEMU reports the thread
//! of a device. It does not report that of an export; its command line does, if it defines the export.

use crate::qmp::{QmpClient, QmpError};
use crate::{
    error::LiveError, launch::LaunchExport, names::PREFIX, request::LiveDisk, write_path::QemuState,
};
use serde_json::{Value, json};

/// First version of QEMU that can take a point in time of a disk in an iothread.
const FIRST_SAFE: (u64, u64) = (10, 0);

/// Refuses disks whose device or export runs, or may run, in an iothread.
/// # Errors
/// `IoThread`: a disk does, or may. Those of QEMU.
pub(crate) fn refuse(client: &mut QmpClient, disks: &[LiveDisk], qemu: &QemuState) -> Result<(), LiveError> {
    let version = client.version();
    if version.is_at_least(FIRST_SAFE.0, FIRST_SAFE.1) {
        return Ok(());
    }
    let threads = threads(client)?;
    if threads.is_empty() {
        return Ok(());
    }
    let exports = exports(&client.execute("query-block-exports", json!({}))?);
    let listed: Vec<&str> = exports.iter().map(|(id, _)| id.as_str()).collect();
    for disk in disks {
        let refused = |user: String, thread: String| LiveError::IoThread {
            disk: disk.name.clone(),
            user,
            thread,
            version,
        };
        for node in qemu.connected(&disk.node) {
            for device in qemu.devices_of(node) {
                if let Some(thread) = thread_of(client, &device)? {
                    return Err(refused(format!("its device {device} runs"), thread));
                }
            }
            for (id, _) in exports.iter().filter(|(_, exported)| exported == node) {
                match qemu.launch.export(id, &listed) {
                    Some(LaunchExport { iothread: None, .. }) => {}
                    Some(LaunchExport { iothread: Some(thread), .. }) => {
                        return Err(refused(format!("its export {id} runs"), thread.clone()));
                    }
                    None => {
                        let user = format!(
                            "its export {id} is not on the command line of QEMU, and QMP does not report its thread; it may run"
                        );
                        return Err(refused(user, threads.join(" or ")));
                    }
                }
            }
        }
    }
    Ok(())
}

/// The names of all iothreads.
fn threads(client: &mut QmpClient) -> Result<Vec<String>, QmpError> {
    let listed = match client.execute("qom-list", json!({ "path": "/objects" })) {
        // A storage daemon has no such path before its first object.
        Err(QmpError::Refused { .. }) => return Ok(Vec::new()),
        answer => answer?,
    };
    let objects = listed.as_array().into_iter().flatten();
    let threads = objects.filter(|object| object["type"] == "child<iothread>");
    Ok(threads.filter_map(|object| Some(object["name"].as_str()?.to_owned())).collect())
}

/// Name and node of each export that is not Copal's, the newest first.
pub(crate) fn exports(listed: &Value) -> Vec<(String, String)> {
    let exports = listed.as_array().into_iter().flatten();
    let named = exports.filter_map(|export| {
        Some((export["id"].as_str()?.to_owned(), export["node-name"].as_str()?.to_owned()))
    });
    named.filter(|(id, _)| !id.starts_with(PREFIX)).collect()
}

/// The thread of a device: its own, or that of the controller of its bus.
fn thread_of(client: &mut QmpClient, device: &str) -> Result<Option<String>, QmpError> {
    let mut paths = with_parents(device);
    for path in paths.clone() {
        if let Some(bus) = property(client, &path, "parent_bus")?.as_str() {
            paths.extend(with_parents(bus));
        }
    }
    for path in paths {
        // Since 9.0 each queue of a device may have its own thread.
        for name in ["iothread", "iothread-vq-mapping"] {
            if let Some(thread) = named(&property(client, &path, name)?) {
                return Ok(Some(thread));
            }
        }
    }
    Ok(None)
}

/// A property of an object; `Null` if the object has no such property.
fn property(client: &mut QmpClient, path: &str, name: &str) -> Result<Value, QmpError> {
    match client.execute("qom-get", json!({ "path": path, "property": name })) {
        Err(QmpError::Refused { .. }) => Ok(Value::Null),
        answer => answer,
    }
}

/// The thread that a property names.
pub(crate) fn named(property: &Value) -> Option<String> {
    let path = match property {
        Value::String(path) => path.as_str(),
        Value::Array(mapped) => mapped.iter().find_map(|queues| queues["iothread"].as_str())?,
        _ => return None,
    };
    let name = path.rsplit('/').next().unwrap_or(path);
    (!name.is_empty()).then(|| name.to_owned())
}

/// The path of an object and the paths of its parents, without the machine.
pub(crate) fn with_parents(path: &str) -> Vec<String> {
    let ends = path.match_indices('/').map(|(at, _)| at).skip(2);
    let mut paths: Vec<String> = ends.map(|at| path[..at].to_owned()).collect();
    paths.push(path.to_owned());
    paths.reverse();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_of_a_device_is_found_in_each_form() {
        assert_eq!(named(&json!("/objects/io0")).as_deref(), Some("io0"));
        assert_eq!(named(&json!("")), None);
        assert_eq!(named(&Value::Null), None);
        assert_eq!(named(&json!([])), None);
        assert_eq!(named(&json!([{ "iothread": "io1", "vqs": [0] }])).as_deref(), Some("io1"));
        assert_eq!(
            with_parents("/machine/peripheral/d0/virtio-backend"),
            ["/machine/peripheral/d0/virtio-backend", "/machine/peripheral/d0", "/machine/peripheral"]
        );
        assert_eq!(with_parents("d0"), ["d0"]);
        let listed = json!([{ "id": "guest0", "node-name": "top0" }, { "id": "copal-01234567-snap0", "node-name": "x" }, 7]);
        assert_eq!(exports(&listed), [("guest0".to_owned(), "top0".to_owned())]);
    }
}
