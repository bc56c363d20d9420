//! Sums of published objects, which lie behind their data: those of the objects that were read last.
//!
//! Invariant: at most [`KEPT_BYTES_MAX`] are kept, unless one object has more.

use super::reads::read_runs;
use crate::{
    format::{hash128, run::PageRun},
    state::StoreCore,
};
use bytes::Bytes;
use copal_device::DeviceError;
use std::collections::{HashSet, VecDeque};

/// Most bytes of kept sums.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// See the module's text.
#[derive(Default)]
pub(super) struct ObjectSums {
    kept: VecDeque<(u128, Bytes)>,
    /// Objects with damaged sums, which were reported.
    reported: HashSet<u64>,
}

impl ObjectSums {
    /// The sums with this hash, which lie in `runs`; `None` if they are damaged. Adds the bytes it reads.
    /// # Errors
    /// The system cannot read at this time.
    pub(super) fn find(
        &mut self,
        store: &StoreCore,
        hash: u128,
        runs: &[PageRun],
        read_bytes: &mut u64,
    ) -> Result<Option<Bytes>, DeviceError> {
        if let Some((_, sums)) = self.kept.iter().find(|(kept, _)| *kept == hash) {
            return Ok(Some(sums.clone()));
        }
        let mut all = Vec::new();
        for read in read_runs(store, runs) {
            match read {
                Ok(bytes) => all.extend_from_slice(&bytes),
                Err(error) if error.is_passing() => return Err(error),
                Err(_) => return Ok(None),
            }
        }
        *read_bytes += all.len() as u64;
        if hash128(&all) != hash {
            return Ok(None);
        }
        let sums = Bytes::from(all);
        self.kept.push_back((hash, sums.clone()));
        while self.kept.len() > 1
            && self.kept.iter().map(|(_, sums)| sums.len()).sum::<usize>() > KEPT_BYTES_MAX
        {
            self.kept.pop_front();
        }
        Ok(Some(sums))
    }

    /// Whether the damaged sums of this object are to be reported: once.
    pub(super) fn is_new_damage(&mut self, id: u64) -> bool {
        self.reported.insert(id)
    }
}
