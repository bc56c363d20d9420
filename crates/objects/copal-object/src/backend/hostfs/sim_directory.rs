//! Simulation of the host's file system in memory, with power loss.
//!
//! POSIX promises little: bytes written and not synced, and names created or removed while their directory
//! was not synced, survive in any subset. Bytes tear at blocks of 4 KiB. A file whose name is lost is lost. A
//! name that survives without its bytes is a file of zeros, or an empty one.
//!
//! Not here: the guarantees of a store (`crashes::files`).

use super::directory::{HostFile, NameSet, NumberedNames, StoreDirectory};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    sync::Arc,
};

const BLOCK: u64 = 4096;

type Block = Arc<[u8]>;

/// Bytes of one file.
#[derive(Clone, Debug, Default)]
struct SimInode {
    len: u64,
    blocks: BTreeMap<u64, Block>,
}

/// Content of a file system.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimContents {
    names: BTreeMap<u32, u64>,
    inodes: HashMap<u64, SimInode>,
}

/// A change of the file system.
#[derive(Clone, Debug)]
enum DirectoryEvent {
    Create {
        number: u32,
        inode: u64,
    },
    Remove {
        number: u32,
    },
    /// One block; `None`: punched.
    Write {
        inode: u64,
        block: u64,
        bytes: Option<Block>,
    },
    SyncData {
        inode: u64,
    },
    SyncNames {
        names: NameSet,
    },
}

/// A sync without effect, as if the tested code had omitted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IgnoredSync {
    /// No sync is ignored.
    No,
    /// Syncs of files.
    Data,
    /// Syncs of the directory of objects.
    Objects,
    /// Syncs of the directory that holds `store`.
    Store,
}

#[derive(Debug)]
struct SimHistory {
    start: SimContents,
    now: SimContents,
    events: Vec<DirectoryEvent>,
    next_inode: u64,
    /// Size of the file system.
    capacity_bytes: u64,
    reserve_bytes: u64,
    /// A quota that `free_bytes` does not include.
    has_quota: bool,
}

/// The simulated directory.
#[derive(Clone, Debug)]
pub(crate) struct SimDirectory {
    inside: Arc<Mutex<SimHistory>>,
    ignored: IgnoredSync,
}

impl SimDirectory {
    /// A file system that durably holds `start`.
    pub(crate) fn new(start: SimContents, ignored: IgnoredSync) -> SimDirectory {
        let next_inode = start.inodes.keys().max().map_or(1, |inode| inode + 1);
        let inside = SimHistory {
            now: start.clone(),
            start,
            events: Vec::new(),
            next_inode,
            capacity_bytes: 1 << 40,
            reserve_bytes: 0,
            has_quota: false,
        };
        SimDirectory { inside: Arc::new(Mutex::new(inside)), ignored }
    }

    /// Limits the capacity to `free` more bytes.
    pub(crate) fn leave_free(&self, free: u64) {
        let mut inside = self.inside.lock();
        inside.capacity_bytes = inside.used_bytes() + free;
    }

    /// From here on a quota limits the free space, and the file system reports more than that.
    pub(crate) fn set_quota(&self) {
        self.inside.lock().has_quota = true;
    }

    /// Number of events so far.
    pub(crate) fn step(&self) -> usize {
        self.inside.lock().events.len()
    }

    /// Whether event `step` is a sync. A crash before another event leaves only states that a crash before the
    /// next sync leaves too.
    pub(crate) fn is_sync(&self, step: usize) -> bool {
        let inside = self.inside.lock();
        let event = inside.events.get(step);
        matches!(event, Some(DirectoryEvent::SyncData { .. } | DirectoryEvent::SyncNames { .. }))
    }

    /// Content after a power loss at `step`: all durable data, and the rest as `keep` decides.
    pub(crate) fn survivors(&self, step: usize, keep: &mut dyn FnMut() -> bool) -> SimContents {
        let inside = self.inside.lock();
        let events = &inside.events[..step];
        let mut synced: HashSet<u64> = HashSet::new();
        let mut synced_names: Vec<NameSet> = Vec::new();
        let mut kept: Vec<&DirectoryEvent> = Vec::new();
        for event in events.iter().rev() {
            let is_durable = match event {
                DirectoryEvent::SyncData { inode } => {
                    synced.insert(*inode);
                    continue;
                }
                DirectoryEvent::SyncNames { names } => {
                    synced_names.push(*names);
                    continue;
                }
                DirectoryEvent::Write { inode, .. } => synced.contains(inode),
                DirectoryEvent::Create { number, .. } | DirectoryEvent::Remove { number } => {
                    synced_names.contains(&NameSet::of(*number))
                }
            };
            if is_durable || keep() {
                kept.push(event);
            }
        }
        let mut contents = inside.start.clone();
        kept.into_iter().rev().for_each(|event| contents.apply(event));
        contents
    }

    fn note(&self, inside: &mut SimHistory, event: DirectoryEvent) {
        inside.now.apply(&event);
        inside.events.push(event);
    }
}

impl SimHistory {
    /// Blocks of files that have a name, and the reserve.
    fn used_bytes(&self) -> u64 {
        let inodes = self.now.names.values().filter_map(|inode| self.now.inodes.get(inode));
        let blocks: usize = inodes.map(|inode| inode.blocks.len()).sum();
        blocks as u64 * BLOCK + self.reserve_bytes
    }
}

impl SimContents {
    fn apply(&mut self, event: &DirectoryEvent) {
        match event {
            DirectoryEvent::Create { number, inode } => {
                self.names.insert(*number, *inode);
                self.inodes.entry(*inode).or_default();
            }
            DirectoryEvent::Remove { number } => {
                self.names.remove(number);
            }
            DirectoryEvent::Write { inode, block, bytes } => {
                let inode = self.inodes.entry(*inode).or_default();
                match bytes {
                    Some(bytes) => {
                        inode.blocks.insert(*block, Arc::clone(bytes));
                        inode.len = inode.len.max((block + 1) * BLOCK);
                    }
                    None => {
                        inode.blocks.remove(block);
                    }
                }
            }
            DirectoryEvent::SyncData { .. } | DirectoryEvent::SyncNames { .. } => {}
        }
    }
}

impl StoreDirectory for SimDirectory {
    fn open(&self, number: u32, make: bool) -> io::Result<Option<(Arc<dyn HostFile>, bool)>> {
        let mut inside = self.inside.lock();
        let found = inside.now.names.get(&number).copied();
        let (inode, is_new) = match found {
            Some(inode) => (inode, false),
            None if !make => return Ok(None),
            None => {
                let inode = inside.next_inode;
                inside.next_inode += 1;
                self.note(&mut inside, DirectoryEvent::Create { number, inode });
                (inode, true)
            }
        };
        let sim = self.clone();
        Ok(Some((Arc::new(SimFile { sim, inode }), is_new)))
    }

    fn remove(&self, number: u32) -> io::Result<bool> {
        let mut inside = self.inside.lock();
        let was_there = inside.now.names.contains_key(&number);
        if was_there {
            self.note(&mut inside, DirectoryEvent::Remove { number });
        }
        Ok(was_there)
    }

    fn sync_names(&self, names: NameSet) -> io::Result<()> {
        let is_deaf = match names {
            NameSet::Store => self.ignored == IgnoredSync::Store,
            NameSet::Objects => self.ignored == IgnoredSync::Objects,
        };
        if !is_deaf {
            self.note(&mut self.inside.lock(), DirectoryEvent::SyncNames { names });
        }
        Ok(())
    }

    fn numbers(&self) -> io::Result<NumberedNames> {
        let inside = self.inside.lock();
        let numbers = inside.now.names.keys().copied();
        Ok(NumberedNames { files: numbers.filter(|&number| number > 0).collect(), others: Vec::new() })
    }

    fn free_bytes(&self) -> u64 {
        let inside = self.inside.lock();
        if inside.has_quota {
            return 1 << 30;
        }
        inside.capacity_bytes.saturating_sub(inside.used_bytes()).min(1 << 30)
    }

    fn reserve_bytes(&self) -> u64 {
        self.inside.lock().reserve_bytes
    }

    fn keep_reserve(&self, bytes: u64) -> io::Result<()> {
        let mut inside = self.inside.lock();
        let others = inside.used_bytes() - inside.reserve_bytes;
        if bytes > inside.reserve_bytes && others + bytes > inside.capacity_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inside.reserve_bytes = bytes;
        Ok(())
    }
}

/// An open file of the simulation; it outlives its name.
struct SimFile {
    sim: SimDirectory,
    inode: u64,
}

impl HostFile for SimFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let inside = self.sim.inside.lock();
        let Some(inode) = inside.now.inodes.get(&self.inode) else {
            return Ok(0);
        };
        let len = (buf.len() as u64).min(inode.len.saturating_sub(at)) as usize;
        for (part, block) in buf[..len].chunks_mut(BLOCK as usize).zip(at / BLOCK..) {
            match inode.blocks.get(&block) {
                Some(bytes) => part.copy_from_slice(&bytes[..part.len()]),
                None => part.fill(0),
            }
        }
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut inside = self.sim.inside.lock();
        for (part, block) in bytes.chunks(BLOCK as usize).zip(at / BLOCK..) {
            let inode = inside.now.inodes.get(&self.inode);
            let is_new = inode.is_none_or(|inode| !inode.blocks.contains_key(&block));
            if is_new && inside.used_bytes() + BLOCK > inside.capacity_bytes {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let event = DirectoryEvent::Write { inode: self.inode, block, bytes: Some(Arc::from(part)) };
            self.sim.note(&mut inside, event);
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let inside = self.sim.inside.lock();
        Ok(inside.now.inodes.get(&self.inode).map_or(0, |inode| inode.len))
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.sim.ignored != IgnoredSync::Data {
            let event = DirectoryEvent::SyncData { inode: self.inode };
            self.sim.note(&mut self.sim.inside.lock(), event);
        }
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) {
        let mut inside = self.sim.inside.lock();
        let end = inside.now.inodes.get(&self.inode).map_or(0, |inode| inode.len).min(at + len);
        for block in at / BLOCK..end.div_ceil(BLOCK) {
            let event = DirectoryEvent::Write { inode: self.inode, block, bytes: None };
            self.sim.note(&mut inside, event);
        }
    }
}
