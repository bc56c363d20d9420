//! Popular packs: entered in log `k` once durable, checked by another agent, then used by all hosts.
//!
//! Design: docs/design/backup.md#popular-chunks BAK-20
//!
//! Paper: low-profile-dedup §2 and §3 (the popular data set).
//! Not here: the choice of popular chunks (`copal-agent`).

pub(crate) mod consolidate;
pub(crate) mod gc;

use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::popular::{EnteredHost, PopularFate, PopularPack, PopularState};
use crate::catalog::record::Record;
use crate::keys::role::KeyId;
use crate::packs::frame_reader::FrameReader;
use crate::packs::home::PackHome;
use crate::packs::pack::FrameLocation;
use crate::packs::pack::PackNumber;
use crate::packs::pack::writer::WrittenPack;
use crate::packs::pack_store::LocatedFrame;
use crate::request::Layout;
use crate::request::error::{Error, Result};
use crate::request::json;
use crate::request::peers::{HostKey, ShortId, Writer};
use crate::request::progress::CancelFlag;
use crate::sessions::parts::RepositoryParts;
use crate::steps::popular::{EnterStep, counts, entering, needs_check, needs_verdict};
use serde::Serialize;

/// A popular pack that no host has checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UncheckedPack {
    /// Its number.
    pub pack: u64,
    /// Name of its writer; any other host may check it.
    pub writer: Writer,
    /// Key of the host that wrote it; `None`: hosts do not sign here, or its writer did not.
    pub host: Option<HostKey>,
}

/// A popular pack with wrong content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoiledPack {
    /// Its number.
    pub pack: u64,
    /// Name of its writer.
    pub writer: Writer,
    /// Role key of the host that wrote it; `None`: hosts do not sign here.
    pub key: Option<KeyId>,
    /// Position of the Spoiled record in the log; positions ascend.
    pub position: u64,
}

/// A pack of popular chunks, as agents index it.
#[derive(Clone, Debug)]
pub struct PopularFrames {
    /// Position in the log; ascends. A pack occurs when it was entered, and again when it was checked.
    pub position: u64,
    /// Ordinal of the first frame; the other frames follow.
    pub first_ordinal: u32,
    /// Ids of its frames, in order.
    pub ids: Vec<ShortId>,
    /// Whether another agent has opened all of it.
    pub is_checked: bool,
}

/// Numbers of the popular chunks of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PopularStatus {
    /// Share of all unique chunks that may be popular, in millionths.
    #[serde(rename = "pds_fraction", serialize_with = "json::share")]
    pub fraction_millionths: u32,
    /// Number of packs.
    pub packs: u64,
    /// Packs that no other agent has opened yet.
    pub unchecked_packs: u64,
    /// Condemned packs: they take no new references until a count shows whether a snapshot needs them.
    pub condemned_packs: u64,
    /// Packs with wrong content: they take no new references.
    pub spoiled_packs: u64,
    /// Frames.
    #[serde(rename = "chunks")]
    pub frames: u64,
    /// Bytes of the packs' files.
    pub bytes: u64,
}

/// Enters a durable pack in the log, unless it is there.
/// # Errors
/// `Fenced`: its writer was taken for dead, and the pack is being removed (BAK-24). `Invalid`: no ordinals
/// are left. Errors of the store.
pub(crate) fn enter(parts: &RepositoryParts, written: &WrittenPack, writer: Writer) -> Result<()> {
    loop {
        let state = parts.catalog().popular()?;
        let frames = written.rows.len() as u32;
        let first_ordinal = match entering(&state, written.number, frames) {
            EnterStep::Append { first_ordinal } => first_ordinal,
            EnterStep::Entered => return Ok(()),
            EnterStep::BeingRemoved => return Err(Error::Fenced),
            EnterStep::NoRoom => {
                return Err(Error::Invalid {
                    reason: "no ordinals for popular chunks are left; make a new repository with a smaller --pds-fraction"
                        .into(),
                });
            }
        };
        let record = Record::Popular {
            volume: written.volume,
            pack: written.number,
            first_ordinal,
            frames,
            writer,
            host: own_host(parts, &state)?,
        };
        if let AppendOutcome::Done = parts.catalog().append(LogName::Popular, state.next_number, &record)? {
            return Ok(());
        }
    }
}

/// The host key with which this handle signs; a handle with the delete role enters its key first.
/// # Errors
/// Errors of the store.
fn own_host(parts: &RepositoryParts, state: &PopularState) -> Result<Option<HostKey>> {
    let keys = &parts.pack_store().keys;
    let Some(host) = keys.host_key().filter(|_| state.needs_hosts()) else {
        return Ok(None);
    };
    let known = state.hosts.iter().rev().find(|entered| entered.host == host);
    let is_entered = state.is_entered(&host);
    if known.is_some() && !is_entered {
        tracing::warn!(
            "the key of this host was removed: other hosts do not use its popular packs; make a new key with `copal key add`"
        );
    } else if !is_entered && keys.can_sign() {
        enter_host(parts, host, KeyId([0; 8]))?;
    } else if !is_entered {
        tracing::warn!(
            "the key of this host was made before hosts had signing keys: other hosts do not use its popular packs; \
             make a new key with `copal key add`"
        );
    }
    Ok(Some(host))
}

/// Enters the key of a host, unless it is there. From the first one on hosts sign their records about popular
/// packs.
/// # Errors
/// Errors of the store.
pub(crate) fn enter_host(parts: &RepositoryParts, host: HostKey, key: KeyId) -> Result<()> {
    loop {
        let state = parts.catalog().popular()?;
        if state.is_entered(&host) {
            return Ok(());
        }
        let record = Record::HostEntered { host, key };
        if let AppendOutcome::Done = parts.catalog().append(LogName::Popular, state.next_number, &record)? {
            return Ok(());
        }
    }
}

/// Ends the hosts whose role keys are not in `kept`: their later records are ignored. A host that uses the
/// password has no role key, and stays.
/// # Errors
/// Errors of the store.
pub(crate) fn remove_hosts(parts: &RepositoryParts, kept: &[KeyId]) -> Result<()> {
    loop {
        let state = parts.catalog().popular()?;
        let is_removed = |entered: &&EnteredHost| {
            entered.removed_at.is_none() && entered.key != KeyId([0; 8]) && !kept.contains(&entered.key)
        };
        let Some(EnteredHost { host, .. }) = state.hosts.iter().find(is_removed) else {
            return Ok(());
        };
        let record = Record::HostRemoved { host: *host };
        // Done, or another record came first: look again.
        parts.catalog().append(LogName::Popular, state.next_number, &record)?;
    }
}

/// Position of the newest entry; 0: there is none.
pub(crate) fn newest(parts: &RepositoryParts) -> Result<u64> {
    Ok(parts.catalog().popular()?.next_number)
}

/// Number that changes whenever packs were condemned, spared or removed; 0: none ever was.
pub(crate) fn generation(parts: &RepositoryParts) -> Result<u64> {
    Ok(parts.catalog().popular()?.generation)
}

/// Visits the entries behind `after`, in order.
pub(crate) fn for_each_since(
    parts: &RepositoryParts,
    after: u64,
    visit: &mut dyn FnMut(PopularFrames) -> Result<()>,
) -> Result<()> {
    let state = parts.catalog().popular()?;
    let mut found = Vec::new();
    // A condemned pack is visited again once it is spared: agents make their index anew with each generation.
    for pack in state
        .packs
        .iter()
        .filter(|pack| pack.frames > 0 && pack.fate == PopularFate::Stays && pack.spoiled_at.is_none())
    {
        let positions = [(Some(pack.entered_at), false), (pack.checked_at, true)];
        for (at, is_checked) in positions {
            // Positions begin with 1, so that 0 stands before all.
            found.extend(at.map(|at| at + 1).filter(|at| *at > after).map(|at| (at, is_checked, *pack)));
        }
    }
    found.sort_unstable_by_key(|(position, ..)| *position);
    for (position, is_checked, pack) in found {
        let ids = match parts.pack_store().footer(PackHome::Shared, pack.volume, pack.pack) {
            Ok(Some((footer, _))) => footer.rows.iter().map(|row| row.id).collect(),
            Ok(None) => Vec::new(),
            // A pack that cannot be read is never the answer to a question.
            Err(error) if error.is_corruption() => Vec::new(),
            Err(error) => return Err(error),
        };
        visit(PopularFrames { position, first_ordinal: pack.first_ordinal, ids, is_checked })?;
    }
    Ok(())
}

/// Packs that no host has checked.
pub(crate) fn unchecked(parts: &RepositoryParts) -> Result<Vec<UncheckedPack>> {
    let state = parts.catalog().popular()?;
    let unchecked = state.packs.iter().filter(|pack| needs_check(&state, pack.pack));
    let named =
        unchecked.map(|pack| UncheckedPack { pack: pack.pack.0, writer: pack.writer, host: pack.host });
    Ok(named.collect())
}

/// Packs that were recorded as spoiled after position `after`.
pub(crate) fn spoiled_since(parts: &RepositoryParts, after: u64) -> Result<Vec<SpoiledPack>> {
    let state = parts.catalog().popular()?;
    let key_of = |host: HostKey| state.hosts.iter().find(|entered| entered.host == host);
    let spoiled = state.packs.iter().filter_map(|pack| {
        let position = pack.spoiled_at? + 1;
        (position > after).then(|| SpoiledPack {
            pack: pack.pack.0,
            writer: pack.writer,
            key: pack.host.and_then(key_of).map(|entered| entered.key),
            position,
        })
    });
    Ok(spoiled.collect())
}

/// Decrypts every frame of a pack and compares it with its id. If all are right the pack counts as checked,
/// else as spoiled for all. `false`: it is spoiled. The host that wrote the pack records nothing.
pub(crate) fn check(parts: &RepositoryParts, number: u64, cancel: &CancelFlag) -> Result<bool> {
    let number = PackNumber(number);
    let state = parts.catalog().popular()?;
    let Some(pack) = state.pack(number).copied() else {
        return Ok(false);
    };
    // A failed check is repeated once: the fault may be in this host's memory, and the verdict is final.
    let is_right = opens(parts, &pack, cancel)? || opens(parts, &pack, cancel)?;
    loop {
        let state = parts.catalog().popular()?;
        let host = own_host(parts, &state)?;
        let known = state.pack(number);
        let record = match is_right {
            true if !needs_check(&state, number) => return Ok(counts(&state, number)),
            true if known.is_some_and(|known| !state.may_check(known, host)) => return Ok(true),
            true => Record::Checked { pack: number, host },
            false if !needs_verdict(&state, number) || !state.may_spoil(host) => return Ok(false),
            false => Record::Spoiled { pack: number, host },
        };
        if let AppendOutcome::Done = parts.catalog().append(LogName::Popular, state.next_number, &record)? {
            return Ok(is_right);
        }
    }
}

/// Whether every frame of a pack decrypts to its id.
fn opens(parts: &RepositoryParts, pack: &PopularPack, cancel: &CancelFlag) -> Result<bool> {
    let (pack_store, number) = (parts.pack_store(), pack.pack);
    let found = match pack_store.footer(PackHome::Shared, pack.volume, number) {
        Err(error) if error.is_corruption() => None,
        found => found?,
    };
    let Some((footer, vid)) = found.filter(|(footer, _)| footer.rows.len() as u32 == pack.frames) else {
        return Ok(false);
    };
    let mut frames = FrameReader::new(pack_store)?;
    let place = |slot: usize| {
        let slot = slot as u32;
        FrameLocation { home: PackHome::Shared, volume: pack.volume, pack: number, slot }
    };
    let mut ahead = 0;
    for (slot, row) in footer.rows.iter().enumerate() {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled { kept_bytes: None });
        }
        if slot == ahead {
            let rows = footer.rows.iter().enumerate().skip(slot);
            ahead += frames.read_ahead(rows.map(|(slot, row)| (place(slot), row.id)))?;
        }
        let location = place(slot);
        let footer = footer.clone();
        let located = LocatedFrame { footer, vid, location };
        match frames.raw(&located) {
            Ok(raw) if pack_store.keys.id.id(raw).short() == row.id => {}
            Ok(_) => return Ok(false),
            Err(error) if error.is_corruption() => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Counts the popular packs and chunks.
/// # Errors
/// `Denied`: the layout has no popular chunks.
pub(crate) fn status(parts: &RepositoryParts) -> Result<PopularStatus> {
    let Layout::Fleet { popular_millionths } = parts.pack_store().layout else {
        return Err(Error::Denied {
            reason: "a repository of the layout solo has no popular chunks: all of them are shared".into(),
        });
    };
    let state = parts.catalog().popular()?;
    let volumes = &parts.pack_store().volumes;
    let mut bytes = 0;
    for (_, vid) in volumes.numbers(PackHome::Shared)? {
        crate::packs::volumes::for_each_file(&*volumes.store, vid, b"", |_, info| {
            bytes += info.size;
            Ok(())
        })?;
    }
    Ok(PopularStatus {
        fraction_millionths: popular_millionths,
        packs: state.packs.iter().filter(|pack| !pack.is_removed()).count() as u64,
        unchecked_packs: unchecked(parts)?.len() as u64,
        condemned_packs: state.condemned().count() as u64,
        spoiled_packs: state
            .packs
            .iter()
            .filter(|pack| pack.spoiled_at.is_some() && !pack.is_removed())
            .count() as u64,
        frames: state.packs.iter().filter(|pack| !pack.is_removed()).map(|pack| u64::from(pack.frames)).sum(),
        bytes,
    })
}
