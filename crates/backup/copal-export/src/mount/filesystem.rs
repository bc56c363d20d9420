//! FUSE file system of the snapshots: lookup, listing, reads.
//!
//! Everything is read-only and accessible to its owner only. A file never changes, so the kernel may keep its
//! pages. The list of snapshots is refreshed after a second.

use super::{
    content::MountContent,
    names::{DiskFile, SnapshotDirectory, VmDirectory, directories},
};
use crate::CloseFlag;
use copal_backup::{
    SnapshotId,
    serve::{ServedDisk, serve},
};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, ReplyStatfs, Request,
};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    ffi::OsStr,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Time for which the kernel may keep names and attributes.
const ATTRIBUTE_TTL: Duration = Duration::from_secs(1);
/// Lifetime of a list of snapshots.
const LIST_TTL: Duration = Duration::from_secs(1);
/// Maximum number of snapshots with open disks.
const OPEN_SNAPSHOTS: usize = 64;
/// Longest read, in bytes.
const READ_BYTES: u32 = 4 << 20;

/// Object that an inode number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TreeNode {
    Root,
    Vm([u8; 16]),
    Snapshot([u8; 16], SnapshotId),
    /// By its index in the snapshot.
    Disk([u8; 16], SnapshotId, usize),
}

/// Inode numbers; they stay valid for as long as the mount.
struct InodeTable {
    nodes: Vec<TreeNode>,
    numbers: HashMap<TreeNode, u64>,
}

impl InodeTable {
    fn new() -> InodeTable {
        let mut inodes = InodeTable { nodes: Vec::new(), numbers: HashMap::new() };
        inodes.number(TreeNode::Root);
        inodes
    }

    fn number(&mut self, node: TreeNode) -> u64 {
        let nodes = &mut self.nodes;
        *self.numbers.entry(node).or_insert_with(|| {
            nodes.push(node);
            nodes.len() as u64
        })
    }

    fn node(&self, number: u64) -> Option<TreeNode> {
        self.nodes.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
    }
}

/// Cached directories, and the time of the listing.
struct DirectoryCache {
    vms: Arc<Vec<VmDirectory>>,
    at: Option<Instant>,
}

/// All snapshots of a repository, or of one VM.
pub(super) struct SnapshotTree {
    content: MountContent,
    close_flag: CloseFlag,
    owner: (u32, u32),
    mounted_at: SystemTime,
    inodes: Mutex<InodeTable>,
    listed: Mutex<DirectoryCache>,
    open: Mutex<HashMap<SnapshotId, Vec<Arc<ServedDisk>>>>,
}

impl SnapshotTree {
    pub(super) fn new(content: MountContent, close_flag: &CloseFlag) -> SnapshotTree {
        SnapshotTree {
            content,
            close_flag: close_flag.clone(),
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            mounted_at: SystemTime::now(),
            inodes: Mutex::new(InodeTable::new()),
            listed: Mutex::new(DirectoryCache { vms: Arc::default(), at: None }),
            open: Mutex::default(),
        }
    }

    /// The directories; the previous ones if the list cannot be read now.
    fn vms(&self) -> Arc<Vec<VmDirectory>> {
        let mut listed = self.listed.lock();
        if listed.at.is_none_or(|at| at.elapsed() > LIST_TTL) {
            match (self.content.list)() {
                Ok(snapshots) => listed.vms = Arc::new(directories(&snapshots)),
                Err(error) => tracing::debug!(%error, "snapshot list not refreshed"),
            }
            listed.at = Some(Instant::now());
        }
        Arc::clone(&listed.vms)
    }

    /// Names and nodes of a directory; `None` for a file.
    fn entries(&self, node: TreeNode) -> Option<Vec<(String, TreeNode)>> {
        let vms = self.vms();
        match node {
            TreeNode::Root => Some(vms.iter().map(|vm| (vm.name.clone(), TreeNode::Vm(vm.vm))).collect()),
            TreeNode::Vm(uuid) => {
                let snapshots = find_vm(&vms, uuid)?.snapshots.iter();
                Some(snapshots.map(|one| (one.name.clone(), TreeNode::Snapshot(uuid, one.id))).collect())
            }
            TreeNode::Snapshot(uuid, id) => {
                let disks = find_snapshot(&vms, uuid, id)?.disks.iter().zip(0..);
                Some(disks.map(|(disk, at)| (disk.name.clone(), TreeNode::Disk(uuid, id, at))).collect())
            }
            TreeNode::Disk(..) => None,
        }
    }

    fn attributes(&self, number: u64, node: TreeNode) -> Option<FileAttr> {
        let vms = self.vms();
        let created = |ms: u64| UNIX_EPOCH + Duration::from_millis(ms);
        let (kind, size, time, links) = match node {
            TreeNode::Root => (FileType::Directory, 0, self.mounted_at, 2 + vms.len()),
            TreeNode::Vm(uuid) => {
                let vm = find_vm(&vms, uuid)?;
                let newest = vm.snapshots.iter().map(|one| one.created_ms).max();
                let time = created(newest.unwrap_or(0));
                (FileType::Directory, 0, time, 2 + vm.snapshots.len())
            }
            TreeNode::Snapshot(uuid, id) => {
                let snapshot = find_snapshot(&vms, uuid, id)?;
                (FileType::Directory, 0, created(snapshot.created_ms), 2)
            }
            TreeNode::Disk(uuid, id, at) => {
                let snapshot = find_snapshot(&vms, uuid, id)?;
                let disk: &DiskFile = snapshot.disks.get(at)?;
                (FileType::RegularFile, disk.size_bytes, created(snapshot.created_ms), 1)
            }
        };
        Some(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: if kind == FileType::Directory { 0o500 } else { 0o400 },
            nlink: links as u32,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            flags: 0,
            blksize: 64 << 10,
        })
    }

    fn disk(&self, id: SnapshotId, at: usize) -> Result<Arc<ServedDisk>, Errno> {
        let mut open = self.open.lock();
        if !open.contains_key(&id) {
            let disks = serve(&self.content.lender, &self.content.cache, id).map_err(|error| {
                tracing::warn!(snapshot = id.short(), %error, "cannot open a snapshot");
                Errno::EIO
            })?;
            if open.len() >= OPEN_SNAPSHOTS {
                // Readers keep their references, and later reads open a snapshot again.
                open.clear();
            }
            open.insert(id, disks);
        }
        let disks = open.get(&id).ok_or(Errno::EIO)?;
        disks.get(at).cloned().ok_or(Errno::EIO)
    }

    fn node(&self, inode: INodeNo) -> Result<TreeNode, Errno> {
        let node = self.inodes.lock().node(inode.0);
        node.ok_or(Errno::ENOENT)
    }

    fn read(&self, inode: INodeNo, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let TreeNode::Disk(_, id, at) = self.node(inode)? else {
            return Err(Errno::EISDIR);
        };
        if self.close_flag.is_closed() {
            return Err(Errno::EIO);
        }
        let disk = self.disk(id, at)?;
        let rest = disk.size_bytes().saturating_sub(offset);
        let mut bytes = vec![0; rest.min(u64::from(size.min(READ_BYTES))) as usize];
        // After an error the kernel repeats the read page by page.
        disk.read_at(offset, &mut bytes).map_err(|error| {
            if !error.is_corruption() {
                tracing::warn!(snapshot = id.short(), %error, "read of a mounted disk failed");
            }
            Errno::EIO
        })?;
        Ok(bytes)
    }
}

fn find_vm(vms: &[VmDirectory], uuid: [u8; 16]) -> Option<&VmDirectory> {
    vms.iter().find(|vm| vm.vm == uuid)
}

fn find_snapshot(vms: &[VmDirectory], uuid: [u8; 16], id: SnapshotId) -> Option<&SnapshotDirectory> {
    let snapshots = &find_vm(vms, uuid)?.snapshots;
    snapshots.iter().find(|snapshot| snapshot.id == id)
}

impl Filesystem for SnapshotTree {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.node(parent).ok().and_then(|node| {
            let entries = self.entries(node)?;
            let (_, node) = entries.into_iter().find(|(known, _)| name == known.as_str())?;
            let number = self.inodes.lock().number(node);
            self.attributes(number, node)
        });
        match found {
            Some(attributes) => reply.entry(&ATTRIBUTE_TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let node = self.node(inode).ok();
        match node.and_then(|node| self.attributes(inode.0, node)) {
            Some(attributes) => reply.attr(&ATTRIBUTE_TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.0 & 0o3 != 0;
        match self.node(inode) {
            _ if writes => reply.error(Errno::EROFS),
            Ok(TreeNode::Disk(_, id, at)) => match self.disk(id, at) {
                Ok(_) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
                Err(error) => reply.error(error),
            },
            Ok(_) => reply.error(Errno::EISDIR),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match SnapshotTree::read(self, inode, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let node = match self.node(inode) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let Some(entries) = self.entries(node) else {
            return reply.error(Errno::ENOTDIR);
        };
        let dots = [".", ".."].map(|name| (name.to_owned(), node));
        let all = dots.into_iter().chain(entries).zip(1..);
        for ((name, node), next) in all.skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let number = self.inodes.lock().number(node);
            let kind = match node {
                TreeNode::Disk(..) => FileType::RegularFile,
                _ => FileType::Directory,
            };
            if reply.add(INodeNo(number), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // No free space: the file system is read-only.
        let block = 64 << 10;
        reply.statfs(0, 0, 0, 0, 0, block, 255, block);
    }
}
