//! What is looked at of a disk before anything is put up: that the files of its images are whole, and which
//! disk it is.
//!
//! Files that this process may not read, or does not find, are QEMU's to read.

use crate::{answers::nodes::Node, error::LiveError, path_of_writes::Surroundings, request::LiveDisk};
use copal_disk::{
    doubt::DoubtKind,
    source::{ContentEvidence, ImageReport, check_running_image, disk_identity},
};

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
/// Drivers of images into which nothing here looks.
const FOREIGN: [&str; 10] =
    ["bochs", "cloop", "dmg", "parallels", "qcow", "qed", "vdi", "vhdx", "vmdk", "vpc"];

/// Looks at the images of a disk. Returns what a person should know.
/// # Errors
/// `Source`: one is broken off.
pub(crate) fn look(
    disk: &LiveDisk,
    node: &Node,
    surroundings: &Surroundings,
) -> Result<ImageReport, LiveError> {
    let mut report = ImageReport::default();
    let mut next = Some(node);
    for _ in 0..MAX_LINKS {
        let Some(node) = next else { break };
        if node.driver == "qcow2"
            && let Some(path) = surroundings.file_of(node)
        {
            let looked = check_running_image(&path)
                .map_err(|error| LiveError::Source { disk: disk.name.clone(), error })?;
            report.warnings.extend(looked.warnings);
            report.doubts.extend(looked.doubts);
        }
        if FOREIGN.contains(&node.driver.as_str()) && surroundings.is_of_file(node) {
            let sentence = format!(
                "{} is an image of the format {}, which QEMU decodes, and copal cannot see whether it is whole; see what \
                 `qemu-img check` says of it, or convert it to qcow2",
                node.file, node.driver
            );
            report.doubts.push((DoubtKind::Chain, sentence));
        }
        next = surroundings.behind(&node.name);
    }
    Ok(report)
}

/// How it is known that the node has the bytes of a disk.
pub(crate) fn content(node: &Node) -> ContentEvidence {
    match BARE.contains(&node.driver.as_str()) {
        true => ContentEvidence::Guessed,
        false => ContentEvidence::Decoded,
    }
}

/// What tells the disk from another one that may get the name of its node; empty where nothing does.
pub(crate) fn identity(node: &Node, surroundings: &Surroundings) -> String {
    let Some(path) = surroundings.file_of(node) else {
        // Behind a program that passes QMP on, a relative name says nothing; it must not differ from what is
        // known without that.
        return match surroundings.is_of_file(node) {
            true => String::new(),
            false => node.file.clone(),
        };
    };
    let identity = disk_identity(&path);
    match offset(&node.file) {
        0 => identity,
        offset => format!("{identity} from byte {offset}"),
    }
}

/// Where a raw node begins within its file: QEMU calls a node that has options by these.
fn offset(file: &str) -> u64 {
    let options = file.strip_prefix("json:").unwrap_or_default();
    let options: serde_json::Value = serde_json::from_str(options).unwrap_or_default();
    let offset = &options["offset"];
    let written = || offset.as_str().and_then(|offset| offset.parse().ok());
    offset.as_u64().or_else(written).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_begins_within_its_file_is_known() {
        for (file, begins) in [
            ("json:{\"driver\":\"raw\",\"offset\":4096,\"file\":{}}", 4096),
            ("json:{\"offset\":\"512\"}", 512),
            ("json:{\"driver\":\"raw\"}", 0),
            ("json:", 0),
            ("vm0.raw", 0),
        ] {
            assert_eq!(offset(file), begins, "{file}");
        }
    }
}
