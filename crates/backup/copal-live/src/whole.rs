//! What is looked at of a disk before anything is put up: that the files of its images are whole, and which disk it is.
//!
//! Files that this process may not read, or that lie elsewhere, are QEMU's to read.

use crate::{answers::nodes::Node, error::LiveError, path_of_writes::Surroundings, request::LiveDisk};
use copal_backup::{
    Content,
    source::{check_running_image, disk_identity},
};
use std::path::Path;

/// Longest chain that is looked at.
const MAX_LINKS: usize = 500;
/// Drivers whose bytes are those of a file: nobody has looked what that is.
const BARE: [&str; 13] = [
    "raw",
    "file",
    "host_device",
    "host_cdrom",
    "nbd",
    "rbd",
    "iscsi",
    "nfs",
    "ssh",
    "http",
    "https",
    "gluster",
    "io_uring",
];

/// Looks at the images of a disk. Returns what a person should know.
/// # Errors
/// `Source`: one is broken off.
pub(crate) fn look(
    disk: &LiveDisk,
    node: &Node,
    surroundings: &Surroundings,
) -> Result<Vec<String>, LiveError> {
    let mut warnings = Vec::new();
    let mut next = Some(node);
    for _ in 0..MAX_LINKS {
        let Some(node) = next else { break };
        let path = Path::new(&node.file);
        if node.driver == "qcow2" && path.is_absolute() {
            let looked = check_running_image(path).map_err(|error| LiveError::Source {
                disk: disk.name.clone(),
                error,
            })?;
            warnings.extend(looked);
        }
        next = surroundings.behind(&node.name);
    }
    Ok(warnings)
}

/// How it is known that the node has the bytes of a disk.
pub(crate) fn content(node: &Node) -> Content {
    match BARE.contains(&node.driver.as_str()) {
        true => Content::Guessed,
        false => Content::Decoded,
    }
}

/// What tells the disk from another one that may get the name of its node.
pub(crate) fn identity(node: &Node) -> String {
    let path = Path::new(&node.file);
    match path.is_absolute() {
        true => disk_identity(path),
        false => node.file.clone(),
    }
}
