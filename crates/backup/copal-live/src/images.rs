//! Image check before a point in time: the images of a disk must be complete, and the disk is identified.
//!
//! Files that this process cannot find or may not read are skipped.

use crate::{answers::nodes::BlockNode, error::LiveError, request::LiveDisk, write_path::QemuState};
use copal_disk::{
    doubt::DoubtKind,
    source::{ContentEvidence, ImageReport, check_running_image, disk_identity},
};

/// Longest chain that is checked.
const MAX_IMAGES: usize = 500;
/// Drivers that pass bytes through without decoding them.
const RAW_DRIVERS: [&str; 13] = [
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
/// Drivers of image formats that are not checked here.
const UNCHECKED_DRIVERS: [&str; 10] =
    ["bochs", "cloop", "dmg", "parallels", "qcow", "qed", "vdi", "vhdx", "vmdk", "vpc"];

/// Checks the images of a disk. Returns warnings and doubts.
/// # Errors
/// `Source`: an image is truncated.
pub(crate) fn look(disk: &LiveDisk, node: &BlockNode, qemu: &QemuState) -> Result<ImageReport, LiveError> {
    let mut report = ImageReport::default();
    let mut next = Some(node);
    for _ in 0..MAX_IMAGES {
        let Some(node) = next else { break };
        if node.driver == "qcow2"
            && let Some(path) = qemu.file_of(node)
        {
            let looked = check_running_image(&path)
                .map_err(|error| LiveError::Source { disk: disk.name.clone(), error })?;
            report.warnings.extend(looked.warnings);
            report.doubts.extend(looked.doubts);
        }
        if UNCHECKED_DRIVERS.contains(&node.driver.as_str()) && qemu.is_of_file(node) {
            let sentence = format!(
                "{} is an image of the format {}, which QEMU decodes, and copal cannot check whether it is complete; run \
                 `qemu-img check`, or convert it to qcow2",
                node.file, node.driver
            );
            report.doubts.push((DoubtKind::Chain, sentence));
        }
        next = qemu.behind(&node.name);
    }
    Ok(report)
}

/// Evidence that the node has the bytes of a raw disk.
pub(crate) fn content(node: &BlockNode) -> ContentEvidence {
    match RAW_DRIVERS.contains(&node.driver.as_str()) {
        true => ContentEvidence::Guessed,
        false => ContentEvidence::Decoded,
    }
}

/// Identity of the disk, which tells it from another one under its node name; empty if there is none.
pub(crate) fn identity(node: &BlockNode, qemu: &QemuState) -> String {
    let Some(path) = qemu.file_of(node) else {
        // If QMP passes through another program, the directory of a relative name is unknown. The identity
        // must then not differ from the one without that program.
        return match qemu.is_of_file(node) {
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

/// Offset of a raw node in its file: QEMU names a node with options by these options.
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
