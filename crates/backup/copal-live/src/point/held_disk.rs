//! State of one disk of a point in time, and the choice of its old bitmap.
//!
//! The marks of a bitmap are used only if it recorded every write since the newest snapshot.
//!
//! Design: docs/design/backup.md#disks-of-vms-that-run BAK-25

use crate::{
    answers::{
        nodes::{self, BlockNode, DirtyBitmap},
        schema::QemuFeatures,
    },
    error::LiveError,
    fleece, images, marks,
    request::{LiveDisk, LiveVm},
    write_path::{QemuState, WritePath},
};
use copal_disk::source::{BitmapState, ContentEvidence, ImageReport};
use std::sync::{Arc, atomic::AtomicBool};

/// State of one disk.
#[derive(Debug)]
pub(super) struct HeldDisk {
    pub(super) disk: LiveDisk,
    pub(super) size_bytes: u64,
    pub(super) bound_bytes: u64,
    pub(super) path: WritePath,
    /// Granularity of the usable old bitmap, or the reason why there is none.
    pub(super) old: Result<u64, String>,
    /// Name of the bitmap that begins here, or the reason why there is none.
    pub(super) new: Result<String, String>,
    /// The sentinel of the new bitmap.
    pub(super) begun: Option<marks::NewSentinel>,
    pub(super) has_map: bool,
    pub(super) identity: String,
    pub(super) content: ContentEvidence,
    /// Findings about the files of its images.
    pub(super) images: ImageReport,
    /// QEMU has refused to read the disk.
    pub(super) is_refused: Arc<AtomicBool>,
}

impl HeldDisk {
    /// Examines a disk of the VM: its node, its write path, its old bitmap and its images.
    /// # Errors
    /// The node is missing or another disk, its writes cannot be redirected, or QEMU failed.
    pub(super) fn of(
        disk: &LiveDisk,
        vm: &LiveVm,
        qemu: &QemuState,
        features: &QemuFeatures,
    ) -> Result<HeldDisk, LiveError> {
        let nodes = &qemu.nodes;
        let Some(node) = nodes::find(nodes, &disk.node) else {
            // QEMU generates names that begin with a hash; they are listed only if there are no others.
            let mut known: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
            if known.iter().any(|name| !name.starts_with('#')) {
                known.retain(|name| !name.starts_with('#'));
            }
            known.sort();
            return Err(LiveError::NoNode { disk: disk.name.clone(), node: disk.node.clone(), known });
        };
        qemu.refuse_other_disk(disk, node)?;
        let path = qemu.path_to(node).map_err(|writers| LiveError::NoWay {
            disk: disk.name.clone(),
            node: disk.node.clone(),
            writers,
        })?;
        // Where a full image would make guest writes fail, the image is as large as the disk.
        let limit = match features.has_break_snapshot {
            true => vm.fleece.limit_millionths,
            false => 1_000_000,
        };
        Ok(HeldDisk {
            disk: disk.clone(),
            size_bytes: node.size_bytes,
            bound_bytes: fleece::bound_bytes(node.size_bytes, limit),
            path,
            old: usable_bitmap(disk, node, features).map(|bitmap| bitmap.granularity),
            new: Err("it has not begun".into()),
            begun: None,
            has_map: false,
            identity: images::identity(node, qemu),
            content: images::content(node),
            images: images::look(disk, node, qemu)?,
            is_refused: Arc::default(),
        })
    }
}

/// The bitmap that has recorded the writes since the newest snapshot, or the reason why it is unusable.
fn usable_bitmap<'a>(
    disk: &LiveDisk,
    node: &'a BlockNode,
    features: &QemuFeatures,
) -> Result<&'a DirtyBitmap, String> {
    let Some(name) = &disk.began_with_base else {
        return Err("the newest snapshot names no dirty bitmap of this disk".into());
    };
    if !features.has_timeout {
        return Err("this QEMU has no cbw-timeout (it came with 7.1), so its bitmap is not used".into());
    }
    let Some(bitmap) = node.bitmap(name) else {
        return Err(format!(
            "the node {} has no dirty bitmap {name}, which began with the newest snapshot: it was removed, or QEMU was \
             restarted and the image does not store it",
            node.name
        ));
    };
    let fault = if bitmap.is_inconsistent {
        "is inconsistent: QEMU was killed while it recorded"
    } else if !bitmap.is_recording {
        "is disabled: it has not recorded the writes"
    } else if bitmap.is_busy {
        "is in use by another program"
    } else {
        return match &disk.sentinel {
            Some(sentinel) if !is_untouched(sentinel, node) => Err(format!(
                "the dirty bitmap {name} has lost its sentinel {}, or the sentinel was changed: the bitmap may have been created again",
                sentinel.name
            )),
            _ => Ok(bitmap),
        };
    };
    Err(format!("the dirty bitmap {name} {fault}"))
}

/// Whether a sentinel is unchanged.
fn is_untouched(sentinel: &BitmapState, node: &BlockNode) -> bool {
    node.bitmap(&sentinel.name).is_some_and(|found| {
        !found.is_inconsistent && !found.is_recording && found.dirty_bytes == sentinel.dirty_bytes
    })
}
