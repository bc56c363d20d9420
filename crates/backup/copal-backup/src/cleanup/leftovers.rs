//! Popular packs that no log names: their writers died before they had entered them.
//!
//! Why it is safe, in the order of what is read here:
//! 1. The packs that are there. Whoever wrote one had opened a session before, or moves chunks (`moving`).
//! 2. The logs of all VMs. A pack of a session that is open stays. One that has ended by now has published, and had entered its
//!    packs before; or it never publishes, and nothing refers to them.
//! 3. The log of popular packs. What stands there stays.
//!
//! A writer that enters a pack after this has removed it enters one that nobody ever checks: no host is led to it, a fenced
//! session does not publish, and a clean-up gives nothing up for it. Names are random and do not come back, so a removal that
//! comes about late takes nothing.

use crate::error::{Error, Result};
use crate::pack::reader;
use crate::progress::CancelFlag;
use crate::reindex::{StoredPack, for_each_pack_of};
use crate::repository::Repository;
use crate::request::SweptPacks;
use crate::role::Role;
use crate::volumes::Home;
use copal_volume::VolumeError;
use std::collections::{BTreeSet, HashSet};

impl Repository {
    /// Removes popular packs that were left by backups and clean-ups that died, in a fleet.
    /// # Errors
    /// `Denied`: the layout is solo, or this handle has no delete role. `Busy`: something else runs in this process.
    /// `Cancelled`, `Damaged`: a log is; those of the store.
    pub fn sweep_popular(&self, cancel: &CancelFlag) -> Result<SweptPacks> {
        self.roles().require(Role::Delete)?;
        self.must_be_fleet()?;
        let _alone = self.parts.locks().alone()?;
        self.parts.catch_up();
        let parts = &self.parts;
        let pack_store = parts.pack_store();
        let mut packs = Vec::new();
        for_each_pack_of(pack_store, Home::Shared, |pack| {
            packs.push(pack);
            Ok(())
        })?;
        let mut open = HashSet::new();
        for vm in parts.directory().all()? {
            open.extend(parts.vm_state(vm.uuid)?.open.iter().copied());
        }
        let entered = parts.catalog().popular()?;
        let mut swept = SweptPacks::default();
        let mut emptied = BTreeSet::new();
        for pack in packs.iter().filter(|pack| entered.pack(pack.number).is_none()) {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled { kept_bytes: None });
            }
            let store = &pack_store.volumes.store;
            match reader::header(&**store, pack.vid, pack.number) {
                Ok(header) if open.contains(&header.session) => continue,
                // Whose it is cannot be read: somebody looks.
                Err(error) if error.is_corruption() => continue,
                Err(Error::Volume(VolumeError::NotFound)) => continue,
                header => header.map(drop)?,
            }
            self.remove_leftover(pack)?;
            swept.packs += 1;
            swept.bytes += pack.info.size;
            emptied.insert(pack.vid);
        }
        for vid in emptied {
            pack_store.volumes.store.reclaim(vid)?;
        }
        parts.note_change();
        Ok(swept)
    }

    fn remove_leftover(&self, pack: &StoredPack) -> Result<()> {
        let pack_store = self.parts.pack_store();
        let index = &pack_store.index;
        index.remove_pack(pack.home, pack.number, std::iter::empty())?;
        let name = pack.number.file_name();
        pack_store
            .volumes
            .store
            .delete(pack.vid, name.as_bytes(), pack.info.fid)?;
        Ok(())
    }
}
