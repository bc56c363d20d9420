//! A simulated directory in which one call fails.

use super::{
    directory::{HostFile, NameSet, NumberedNames, StoreDirectory},
    sim_directory::SimDirectory,
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A call of the store to its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostCall {
    Open,
    Remove,
    SyncNames,
    List,
    Reserve,
    Read,
    Write,
    SyncData,
}

/// All of them.
pub(crate) const HOST_CALLS: [HostCall; 8] = [
    HostCall::Open,
    HostCall::Remove,
    HostCall::SyncNames,
    HostCall::List,
    HostCall::Reserve,
    HostCall::Read,
    HostCall::Write,
    HostCall::SyncData,
];

/// The call that fails, by its number among those of its kind, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFault {
    pub(crate) call: HostCall,
    pub(crate) number: u64,
    pub(crate) errno: i32,
    /// A write that fails has reached the file up to here; in halves of its length.
    pub(crate) is_partial: bool,
}

/// Numbers of calls, and the one that fails.
#[derive(Debug, Default)]
pub(crate) struct HostFaults {
    fault: Option<HostFault>,
    counts: [AtomicU64; HOST_CALLS.len()],
}

impl HostFaults {
    pub(crate) fn new(fault: Option<HostFault>) -> Arc<HostFaults> {
        Arc::new(HostFaults { fault, ..HostFaults::default() })
    }

    /// Number of calls of one kind so far.
    pub(crate) fn count(&self, call: HostCall) -> u64 {
        self.counts[call as usize].load(Relaxed)
    }

    /// Counts a call; the fault if it is the one that fails.
    fn strike(&self, call: HostCall) -> Option<HostFault> {
        let number = self.counts[call as usize].fetch_add(1, Relaxed);
        self.fault.filter(|fault| fault.call == call && fault.number == number)
    }

    fn admit(&self, call: HostCall) -> io::Result<()> {
        match self.strike(call) {
            Some(fault) => Err(io::Error::from_raw_os_error(fault.errno)),
            None => Ok(()),
        }
    }
}

/// The directory.
pub(crate) struct FaultyDirectory {
    pub(crate) below: SimDirectory,
    pub(crate) faults: Arc<HostFaults>,
}

impl StoreDirectory for FaultyDirectory {
    fn open(&self, number: u32, make: bool) -> io::Result<Option<(Arc<dyn HostFile>, bool)>> {
        self.faults.admit(HostCall::Open)?;
        let Some((below, is_new)) = self.below.open(number, make)? else {
            return Ok(None);
        };
        let faults = Arc::clone(&self.faults);
        Ok(Some((Arc::new(FaultyFile { below, faults }), is_new)))
    }

    fn remove(&self, number: u32) -> io::Result<bool> {
        self.faults.admit(HostCall::Remove)?;
        self.below.remove(number)
    }

    fn sync_names(&self, names: NameSet) -> io::Result<()> {
        self.faults.admit(HostCall::SyncNames)?;
        self.below.sync_names(names)
    }

    fn numbers(&self) -> io::Result<NumberedNames> {
        self.faults.admit(HostCall::List)?;
        self.below.numbers()
    }

    fn free_bytes(&self) -> u64 {
        self.below.free_bytes()
    }

    fn reserve_bytes(&self) -> u64 {
        self.below.reserve_bytes()
    }

    fn keep_reserve(&self, bytes: u64) -> io::Result<()> {
        self.faults.admit(HostCall::Reserve)?;
        self.below.keep_reserve(bytes)
    }
}

struct FaultyFile {
    below: Arc<dyn HostFile>,
    faults: Arc<HostFaults>,
}

impl HostFile for FaultyFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.faults.admit(HostCall::Read)?;
        self.below.read_at(buf, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let Some(fault) = self.faults.strike(HostCall::Write) else {
            return self.below.write_at(bytes, at);
        };
        if fault.is_partial {
            // The simulation writes whole blocks.
            self.below.write_at(&bytes[..bytes.len() / 2 / 4096 * 4096], at)?;
        }
        Err(io::Error::from_raw_os_error(fault.errno))
    }

    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.admit(HostCall::SyncData)?;
        self.below.sync_data()
    }

    fn punch(&self, at: u64, len: u64) {
        self.below.punch(at, len);
    }
}
