//! Sweeps popular packs that no log names: their writers died before they entered them.
//!
//! Safety follows from the order of the reads:
//! 1. The existing packs. The writer of each had opened a session before, or moves chunks (`moves`).
//! 2. The logs of all VMs. A pack of an open session stays. A session that has ended by now has published,
//!    and had entered its packs before; or it never publishes, and nothing refers to them.
//! 3. The log of popular packs. Packs in it stay. Others are marked there, behind everything that was read,
//!    before they are removed (BAK-24).
//!
//! A writer that was taken for dead and enters its pack after that finds the mark and refers to nothing of
//! it. Without a mark the pack would count between the look at the log and the removal. Names are random and
//! never reused, so a removal that takes effect late does no harm.

use crate::catalog::fields::SessionId;
use crate::catalog::log::LogName;
use crate::catalog::record::Record;
use crate::index::reindex::{StoredPack, for_each_pack_of};
use crate::keys::role::Role;
use crate::packs::home::PackHome;
use crate::packs::pack::reader;
use crate::request::SweptPacks;
use crate::request::error::{Error, Result};
use crate::request::peers::Writer;
use crate::request::progress::CancelFlag;
use crate::sessions::parts::RepositoryParts;
use crate::steps::popular::{SweepStep, leftover};
use copal_volume::VolumeError;
use std::collections::{BTreeSet, HashSet};

/// Carries out `Repository::sweep_popular`.
pub(crate) fn sweep_popular(parts: &RepositoryParts, cancel: &CancelFlag) -> Result<SweptPacks> {
    parts.roles().require(Role::Delete)?;
    parts.must_be_fleet()?;
    let _alone = parts.locks().alone()?;
    parts.catch_up();
    let pack_store = parts.pack_store();
    let mut packs = Vec::new();
    for_each_pack_of(pack_store, PackHome::Shared, |pack| {
        packs.push(pack);
        Ok(())
    })?;
    let mut open = HashSet::new();
    for vm in parts.directory().all()? {
        open.extend(parts.vm_state(vm.uuid)?.open.iter().copied());
    }
    let entered = parts.catalog().popular()?;
    let stays = |pack: &&StoredPack| entered.pack(pack.number).is_some_and(|known| !known.is_removed());
    let mut swept = SweptPacks::default();
    let mut emptied = BTreeSet::new();
    for pack in packs.iter().filter(|pack| !stays(pack)) {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled { kept_bytes: None });
        }
        let store = &pack_store.volumes.store;
        let session = match reader::header(&**store, pack.vid, pack.number) {
            // The writer is unknown, so the pack is left to an operator.
            Err(error) if error.is_corruption() => continue,
            Err(Error::Volume(VolumeError::NotFound)) => continue,
            header => header?.session,
        };
        if !mark_leftover(parts, pack, &open, &session)? {
            continue;
        }
        remove_leftover(parts, pack)?;
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

/// Marks a pack so that it cannot be entered any more. Returns `false` if the pack stays.
fn mark_leftover(
    parts: &RepositoryParts,
    pack: &StoredPack,
    open: &HashSet<SessionId>,
    session: &SessionId,
) -> Result<bool> {
    let catalog = parts.catalog();
    loop {
        let state = catalog.popular()?;
        let first_ordinal = match leftover(&state, open, pack.number, session) {
            SweepStep::Stays => return Ok(false),
            SweepStep::Remove => return Ok(true),
            SweepStep::Mark { first_ordinal } => first_ordinal,
        };
        let mark = Record::Popular {
            volume: pack.volume,
            pack: pack.number,
            first_ordinal,
            frames: 0,
            writer: Writer::default(),
            host: None,
        };
        // The next look tells whether the record counts.
        catalog.append(LogName::Popular, state.next_number, &mark)?;
    }
}

fn remove_leftover(parts: &RepositoryParts, pack: &StoredPack) -> Result<()> {
    let pack_store = parts.pack_store();
    let index = &pack_store.index;
    index.remove_entry(pack.number)?;
    let name = pack.number.file_name();
    pack_store.volumes.store.delete(pack.vid, name.as_bytes(), pack.info.fid)?;
    Ok(())
}
