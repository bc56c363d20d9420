//! Catalog records and their encoding.
//!
//! Format: docs/formats/backup-catalog.md v4
//! In a repository that has had role keys, the delete role signs each record that removes something (BAK-19);
//! such a record has version 3. Records about popular packs are signed with the key of the host (BAK-20) and
//! have version 4.

use super::fields::{
    DeadList, MAX_SEQUENCE, MovedList, SessionId, dead, moved, option, put_dead, put_moved, put_option,
};
use crate::keys::role::{KeyId, Role};
use crate::keys::signature::{PUBLIC_BYTES, SIGNATURE_BYTES};
use crate::keys::{DomainKeys, MAC_BYTES, is_signed_by};
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::request::SnapshotId;
use crate::request::open_session::HolderId;
use crate::request::peers::{HostKey, Writer};
use copal_chunk::ChunkProfile;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader};
use uuid::Uuid;

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALREC", name: "catalog record", oldest: 1, version: 4, known_flags: 0 };

/// Records signed by the delete role.
pub(crate) const SIGNED: Format = Format { version: 3, ..FORMAT };
/// Records without a signature keep the older version, so their bytes do not change.
const UNSIGNED: Format = Format { version: 2, ..FORMAT };
/// Bytes before the MAC of a record that a host signed: its public key and the signature.
const HOST_SEAL_BYTES: usize = PUBLIC_BYTES + SIGNATURE_BYTES;

/// Longest name of a VM, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Most snapshots or packs in one record.
pub(crate) const MAX_LISTED: usize = 1024;

/// One record. The first two belong to the domain's log, the others to a VM's unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Record {
    /// The repository was created. Always record 0 of the domain's log.
    Init { domain: Uuid, profile: ChunkProfile },
    /// A VM got its name.
    VmAdded { vm: Uuid, name: String },
    /// A session began.
    Open { session: SessionId, base: Option<SnapshotId> },
    /// A session ended with a snapshot; its manifest has this hash.
    Publish {
        session: SessionId,
        snapshot: SnapshotId,
        sequence: u64,
        manifest: [u8; 32],
        /// Time of the store's clock, in ms since 1970, or of the origin of a copy; absent in version 1.
        clock_ms: Option<u64>,
        /// The delete role signed it, so its time counts in a repository with role keys too.
        is_dated: bool,
    },
    /// A session was ended by another process; it can no longer publish.
    Fence { session: SessionId },
    /// Snapshots are no longer visible.
    Forget { snapshots: Vec<SnapshotId> },
    /// The space of forgotten snapshots was freed.
    Deleted { snapshots: Vec<SnapshotId> },
    /// Every chunk of these snapshots was decoded and had its id.
    Verified { snapshots: Vec<SnapshotId> },
    /// These snapshots may not be forgotten before this time, in ms since 1970; 0 ends the hold.
    Hold { snapshots: Vec<SnapshotId>, until_ms: u64 },
    /// A prune is about to remove these packs. In the layout solo it is a file of its own, in a fleet a
    /// record of the VM's log.
    Removing { packs: Vec<PackPlace> },
    /// These packs were removed from all servers.
    Removed { packs: Vec<PackPlace> },
    /// All frames that only these forgotten snapshots referred to are in the list of dead frames whose file
    /// has this hash. From now on no process adds a reference to them. `dead` `None`: no dead frame exists.
    Freed { snapshots: Vec<SnapshotId>, dead: Option<DeadList> },
    /// The VM is being removed with all its data, and cannot be backed up any more.
    Retired,
    /// All data of the VM was removed.
    VmRemoved { vm: Uuid },
    /// Log of popular packs: this pack is durable, and its frames have the ordinals from `first_ordinal` on.
    Popular {
        volume: u32,
        pack: PackNumber,
        first_ordinal: u32,
        frames: u32,
        /// The host that wrote it, by its name.
        writer: Writer,
        /// The host that signed the record; `None`: not signed.
        host: Option<HostKey>,
    },
    /// Log of popular packs: an agent other than the writer's has opened all frames of this pack.
    Checked {
        pack: PackNumber,
        /// As in `Popular`.
        host: Option<HostKey>,
    },
    /// Log of popular packs: the content of this pack is wrong. No process adds a reference to it, despite any
    /// other record.
    Spoiled {
        pack: PackNumber,
        /// As in `Popular`.
        host: Option<HostKey>,
    },
    /// Log of popular packs: this key belongs to a host of the fleet, and its signatures count.
    HostEntered { host: HostKey, key: KeyId },
    /// Log of popular packs: the role key of this host was removed. Records that it signs from here on are
    /// ignored.
    HostRemoved { host: HostKey },
    /// As `Init`, of a fleet.
    InitFleet {
        domain: Uuid,
        profile: ChunkProfile,
        /// Share of all unique chunks that may be popular.
        popular_millionths: u32,
    },
    /// From here on each record that removes something is signed. As a file of its own beside the logs it
    /// holds for all of them.
    Roles,
    /// A record of this kind without its necessary signature: it has no effect. Never written.
    Void { code: u8 },
    /// A heartbeat of a holder of sessions. A file of its own, in no log.
    Beat { name: String, address: String, progress: u64 },
    /// As `Open`, by a holder that writes heartbeats.
    OpenHeld { session: SessionId, base: Option<SnapshotId>, holder: HolderId },
    /// Chunks of the VM that several VMs have now resolve to the popular frames in the lists `moved`, which
    /// are all its lists. The VM's own frames of these chunks are in `dead`.
    Moved {
        moved: Vec<MovedList>,
        dead: Option<DeadList>,
        /// Snapshots below this sequence have no chunk without an answer.
        resolved_below: u64,
    },
    /// Log of popular packs: these packs take no new references until a count shows whether a snapshot needs
    /// them.
    Condemned { packs: Vec<PackNumber> },
    /// Log of popular packs: these packs were condemned, and a snapshot needs them.
    Spared { packs: Vec<PackNumber> },
    /// Log of popular packs: these packs were condemned, no snapshot needs them, and they are being removed.
    Gone { packs: Vec<PackNumber> },
    /// An agent of the fleet, and the VMs of its plan. A file of its own, in no log.
    AgentListed {
        name: String,
        /// The run of the agent that wrote the record.
        holder: HolderId,
        /// Names of its VMs, at most `MAX_LISTED`.
        vms: Vec<String>,
        /// VMs of its plan that are not in `vms`.
        more_vms: u32,
    },
    /// The agent of this name was retired. A file of its own, in no log.
    AgentRetired { name: String },
    /// A person has accepted these snapshots despite the warnings in their manifests.
    Accepted { snapshots: Vec<SnapshotId> },
    /// Log of a VM: a count of references to popular packs begins. A record behind this one must follow the
    /// log of popular packs as it was when this one was appended, or later.
    Counted,
}

/// Location of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PackPlace {
    pub(crate) home: PackHome,
    pub(crate) volume: u32,
    pub(crate) pack: PackNumber,
}

impl Record {
    fn code(&self) -> u8 {
        match self {
            Record::Init { .. } => 1,
            Record::VmAdded { .. } => 2,
            Record::Open { .. } => 3,
            Record::Publish { is_dated: false, .. } => 4,
            Record::Fence { .. } => 5,
            Record::Forget { .. } => 6,
            Record::Deleted { .. } => 7,
            Record::Verified { .. } => 8,
            Record::Hold { .. } => 9,
            Record::Removing { .. } => 10,
            Record::Removed { .. } => 11,
            Record::InitFleet { .. } => 12,
            Record::Freed { .. } => 13,
            Record::Retired => 14,
            Record::VmRemoved { .. } => 15,
            Record::Popular { .. } => 16,
            Record::Checked { .. } => 17,
            Record::Beat { .. } => 18,
            Record::Roles => 19,
            Record::OpenHeld { .. } => 20,
            Record::Moved { .. } => 21,
            Record::Condemned { .. } => 22,
            Record::Spared { .. } => 23,
            Record::Gone { .. } => 24,
            Record::Counted => 25,
            Record::AgentListed { .. } => 26,
            Record::AgentRetired { .. } => 27,
            Record::HostEntered { .. } => 28,
            Record::Spoiled { .. } => 29,
            Record::Accepted { .. } => 30,
            Record::HostRemoved { .. } => 31,
            Record::Publish { is_dated: true, .. } => 32,
            Record::Void { code } => *code,
        }
    }

    /// The role that may write it. The backup role writes only records that a backup needs.
    pub(crate) fn role(&self) -> Role {
        match self {
            Record::Init { .. }
            | Record::InitFleet { .. }
            | Record::VmAdded { .. }
            | Record::Open { .. }
            | Record::OpenHeld { .. }
            | Record::Beat { .. }
            | Record::AgentListed { .. }
            | Record::Publish { is_dated: false, .. }
            | Record::Fence { .. }
            | Record::Popular { .. }
            | Record::Checked { .. }
            | Record::Spoiled { .. }
            // Only states that packs named by a signed list were removed.
            | Record::Removed { .. } => Role::Backup,
            Record::Forget { .. }
            | Record::Deleted { .. }
            // Retention may forget others in favour of a verified snapshot.
            | Record::Verified { .. }
            // The same holds for an accepted one.
            | Record::Accepted { .. }
            | Record::Hold { .. }
            | Record::Removing { .. }
            | Record::Freed { .. }
            | Record::Moved { .. }
            | Record::Condemned { .. }
            | Record::Spared { .. }
            | Record::Gone { .. }
            | Record::Counted
            // Retiring an agent hides that its VMs are not backed up.
            | Record::AgentRetired { .. }
            | Record::HostEntered { .. }
            | Record::HostRemoved { .. }
            | Record::Retired
            | Record::VmRemoved { .. }
            | Record::Roles
            // Retention goes by the times of snapshots.
            | Record::Publish { is_dated: true, .. }
            | Record::Void { .. } => Role::Delete,
        }
    }

    /// The host that signs it.
    fn host(&self) -> Option<&HostKey> {
        match self {
            Record::Popular { host, .. } | Record::Checked { host, .. } | Record::Spoiled { host, .. } => {
                host.as_ref()
            }
            _ => None,
        }
    }

    /// Encodes the record file named `place`.
    pub(crate) fn encode(&self, place: &str, keys: &DomainKeys) -> Vec<u8> {
        let mut bytes = vec![0; ENVELOPE_LEN];
        bytes.put_u8(self.code());
        bytes.put_zeros(3);
        match self {
            Record::Init { domain, profile } => {
                bytes.put_bytes(domain.as_bytes());
                bytes.put_u8(profile.code());
            }
            Record::VmAdded { vm, name } => {
                bytes.put_bytes(vm.as_bytes());
                bytes.put_prefixed(name.as_bytes());
            }
            Record::Open { session, base } => {
                bytes.put_bytes(session);
                put_option(&mut bytes, *base);
            }
            Record::OpenHeld { session, base, holder } => {
                bytes.put_bytes(session);
                put_option(&mut bytes, *base);
                bytes.put_bytes(&holder.0);
            }
            Record::Beat { name, address, progress } => {
                bytes.put_prefixed(name.as_bytes());
                bytes.put_prefixed(address.as_bytes());
                bytes.put_u64(*progress);
            }
            Record::Publish { session, snapshot, sequence, manifest, clock_ms, is_dated: _ } => {
                bytes.put_bytes(session);
                bytes.put_bytes(&snapshot.0);
                bytes.put_u64(*sequence);
                bytes.put_bytes(manifest);
                bytes.put_u64(clock_ms.unwrap_or(0));
            }
            Record::Fence { session } => bytes.put_bytes(session),
            Record::Forget { snapshots }
            | Record::Deleted { snapshots }
            | Record::Verified { snapshots }
            | Record::Accepted { snapshots } => put_listed(&mut bytes, snapshots),
            Record::Hold { snapshots, until_ms } => {
                bytes.put_u64(*until_ms);
                put_listed(&mut bytes, snapshots);
            }
            Record::Removing { packs } | Record::Removed { packs } => put_packs(&mut bytes, packs),
            Record::Condemned { packs } | Record::Spared { packs } | Record::Gone { packs } => {
                bytes.put_varint(packs.len() as u64);
                packs.iter().for_each(|pack| bytes.put_u64(pack.0));
            }
            Record::Counted | Record::Retired | Record::Roles | Record::Void { .. } => {}
            Record::VmRemoved { vm } => bytes.put_bytes(vm.as_bytes()),
            Record::AgentListed { name, holder, vms, more_vms } => {
                bytes.put_prefixed(name.as_bytes());
                bytes.put_bytes(&holder.0);
                bytes.put_u32(*more_vms);
                bytes.put_varint(vms.len() as u64);
                vms.iter().for_each(|vm| bytes.put_prefixed(vm.as_bytes()));
            }
            Record::AgentRetired { name } => bytes.put_prefixed(name.as_bytes()),
            Record::Popular { volume, pack, first_ordinal, frames, writer, host: _ } => {
                bytes.put_u32(*volume);
                bytes.put_u64(pack.0);
                bytes.put_u32(*first_ordinal);
                bytes.put_u32(*frames);
                bytes.put_u64(writer.0);
            }
            Record::Checked { pack, host: _ } | Record::Spoiled { pack, host: _ } => bytes.put_u64(pack.0),
            Record::HostEntered { host, key } => {
                bytes.put_bytes(&host.0);
                bytes.put_bytes(&key.0);
            }
            Record::HostRemoved { host } => bytes.put_bytes(&host.0),
            Record::Freed { snapshots, dead } => {
                put_dead(&mut bytes, dead.as_ref());
                put_listed(&mut bytes, snapshots);
            }
            Record::Moved { moved, dead, resolved_below } => {
                put_dead(&mut bytes, dead.as_ref());
                bytes.put_u64(*resolved_below);
                put_moved(&mut bytes, moved);
            }
            Record::InitFleet { domain, profile, popular_millionths } => {
                bytes.put_bytes(domain.as_bytes());
                bytes.put_u8(profile.code());
                bytes.put_u32(*popular_millionths);
            }
        }
        let content = &bytes[ENVELOPE_LEN..];
        let by_host = self.host().and_then(|host| Some((host, keys.sign_as(host, place, content)?)));
        let signature = match self.role() {
            Role::Backup => None,
            Role::Delete | Role::Admin => keys.sign(place, content),
        };
        let format = match (&by_host, &signature) {
            (Some((host, signature)), _) => {
                bytes.put_bytes(&host.0);
                bytes.put_bytes(signature);
                &FORMAT
            }
            (None, Some(signature)) => {
                bytes.put_bytes(signature);
                &SIGNED
            }
            (None, None) => &UNSIGNED,
        };
        let mac = keys.mac(place, &bytes[ENVELOPE_LEN..]);
        bytes.put_bytes(&mac);
        Envelope::seal(format, 0, 0, &mut bytes);
        bytes
    }

    /// Decodes the record file named `place`; `Void` if it lacks a necessary signature.
    pub(crate) fn decode(bytes: &[u8], place: &str, keys: &DomainKeys) -> Result<Record, String> {
        let (envelope, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
        let at = body.len().checked_sub(MAC_BYTES).ok_or("it is too short for a record")?;
        let (content, mac) = body.split_at(at);
        if !keys.mac_fits(place, content, mac) {
            return Err("its MAC does not match: it was changed, or moved from another place".into());
        }
        let is_by_host = envelope.version == FORMAT.version;
        let (content, host) = split_host(content, place, is_by_host)?;
        let (content, signature) = split_signature(content, envelope.version == SIGNED.version)?;
        let mut input = Reader::new(content);
        let mut record = parse(&mut input, envelope.version)?;
        input.finish().map_err(|error| error.to_string())?;
        match &mut record {
            Record::Popular { host: by, .. }
            | Record::Checked { host: by, .. }
            | Record::Spoiled { host: by, .. } => {
                *by = host;
            }
            _ if is_by_host => return Err("no host signs records of its kind".into()),
            _ => {}
        }
        match record.role() {
            Role::Backup => Ok(record),
            Role::Delete | Role::Admin if keys.counts(place, content, signature) => Ok(record),
            Role::Delete | Role::Admin => Ok(Record::Void { code: record.code() }),
        }
    }
}

/// Splits off the signature of a host. The host is `None` if its signature does not match.
fn split_host<'a>(
    content: &'a [u8],
    place: &str,
    is_by_host: bool,
) -> Result<(&'a [u8], Option<HostKey>), String> {
    if !is_by_host {
        return Ok((content, None));
    }
    let at = content.len().checked_sub(HOST_SEAL_BYTES);
    let (content, seal) = content.split_at(at.ok_or("it is too short for a host's signature")?);
    let (host, signature) =
        seal.split_first_chunk::<PUBLIC_BYTES>().ok_or("it is too short for a host's signature")?;
    let host = HostKey(*host);
    Ok((content, is_signed_by(&host, place, content, signature).then_some(host)))
}

/// Splits off the signature of the delete role, if there is one.
pub(super) fn split_signature(content: &[u8], is_signed: bool) -> Result<(&[u8], Option<&[u8]>), String> {
    if !is_signed {
        return Ok((content, None));
    }
    let at = content.len().checked_sub(SIGNATURE_BYTES).ok_or("it is too short for a signature")?;
    let (content, signature) = content.split_at(at);
    Ok((content, Some(signature)))
}

/// Parses the fields of a record of this version.
pub(crate) fn parse(input: &mut Reader<'_>, version: u16) -> Result<Record, String> {
    let text = |error: DecodeError| error.to_string();
    let code = input.u8().map_err(text)?;
    input.zeros(3).map_err(text)?;
    let mut fields = || -> Result<Result<Record, String>, DecodeError> {
        Ok(Ok(match code {
            1 | 12 => {
                let domain = Uuid::from_bytes(input.array()?);
                let profile = input.u8()?;
                let Some(profile) = ChunkProfile::from_code(profile) else {
                    let detail = format!("chunking profile {profile} is not known; use a newer copal");
                    return Ok(Err(detail));
                };
                match code {
                    1 => Record::Init { domain, profile },
                    _ => {
                        Record::InitFleet { domain, profile, popular_millionths: input.u32()?.min(1_000_000) }
                    }
                }
            }
            2 => {
                let vm = Uuid::from_bytes(input.array()?);
                match std::str::from_utf8(input.prefixed(MAX_NAME_BYTES)?) {
                    Ok(name) => Record::VmAdded { vm, name: name.to_owned() },
                    Err(error) => return Ok(Err(format!("the name of a VM is not text: {error}"))),
                }
            }
            3 => Record::Open { session: input.array()?, base: option(input)? },
            4 | 32 => Record::Publish {
                session: input.array()?,
                snapshot: SnapshotId(input.array()?),
                sequence: match input.u64()? {
                    number if number <= MAX_SEQUENCE => number,
                    number => return Ok(Err(format!("the sequence {number} is above any snapshot's"))),
                },
                manifest: input.array()?,
                clock_ms: match version {
                    1 => None,
                    _ => Some(input.u64()?),
                },
                is_dated: code == 32,
            },
            5 => Record::Fence { session: input.array()? },
            6 => Record::Forget { snapshots: listed(input)? },
            7 => Record::Deleted { snapshots: listed(input)? },
            8 => Record::Verified { snapshots: listed(input)? },
            9 => Record::Hold { until_ms: input.u64()?, snapshots: listed(input)? },
            10 => Record::Removing { packs: packs(input)? },
            11 => Record::Removed { packs: packs(input)? },
            14 => Record::Retired,
            19 => Record::Roles,
            15 => Record::VmRemoved { vm: Uuid::from_bytes(input.array()?) },
            16 => Record::Popular {
                volume: input.u32()?,
                pack: PackNumber(input.u64()?),
                first_ordinal: input.u32()?,
                frames: input.u32()?,
                writer: Writer(input.u64()?),
                host: None,
            },
            17 => Record::Checked { pack: PackNumber(input.u64()?), host: None },
            28 => Record::HostEntered { host: HostKey(input.array()?), key: KeyId(input.array()?) },
            31 => Record::HostRemoved { host: HostKey(input.array()?) },
            29 => Record::Spoiled { pack: PackNumber(input.u64()?), host: None },
            13 => Record::Freed { dead: dead(input)?, snapshots: listed(input)? },
            18 => {
                let name = std::str::from_utf8(input.prefixed(MAX_NAME_BYTES)?);
                let address = std::str::from_utf8(input.prefixed(MAX_NAME_BYTES)?);
                match (name, address) {
                    (Ok(name), Ok(address)) => Record::Beat {
                        name: name.to_owned(),
                        address: address.to_owned(),
                        progress: input.u64()?,
                    },
                    (Err(error), _) | (_, Err(error)) => {
                        return Ok(Err(format!("the name of a holder of sessions is not text: {error}")));
                    }
                }
            }
            20 => Record::OpenHeld {
                session: input.array()?,
                base: option(input)?,
                holder: HolderId(input.array()?),
            },
            21 => Record::Moved {
                dead: dead(input)?,
                resolved_below: input.u64()?.min(MAX_SEQUENCE),
                moved: moved(input)?,
            },
            22 => Record::Condemned { packs: numbers(input)? },
            23 => Record::Spared { packs: numbers(input)? },
            24 => Record::Gone { packs: numbers(input)? },
            25 => Record::Counted,
            26 => {
                let name = text_of(input)?;
                let holder = HolderId(input.array()?);
                let more_vms = input.u32()?;
                let count = input.bounded(MAX_LISTED)?;
                let vms: Option<Vec<String>> =
                    (0..count).map(|_| text_of(input)).collect::<Result<_, _>>()?;
                match (name, vms) {
                    (Some(name), Some(vms)) => Record::AgentListed { name, holder, vms, more_vms },
                    _ => return Ok(Err("the name of an agent or VM is not text".to_owned())),
                }
            }
            27 => match text_of(input)? {
                Some(name) => Record::AgentRetired { name },
                None => return Ok(Err("the name of an agent is not text".to_owned())),
            },
            30 => Record::Accepted { snapshots: listed(input)? },
            other => {
                return Ok(Err(format!("records of kind {other} are not known; use a newer copal")));
            }
        }))
    };
    fields().map_err(text)?
}

/// A name; `None`: it is not UTF-8.
fn text_of(input: &mut Reader<'_>) -> Result<Option<String>, DecodeError> {
    let bytes = input.prefixed(MAX_NAME_BYTES)?;
    Ok(std::str::from_utf8(bytes).ok().map(str::to_owned))
}

fn put_listed(bytes: &mut Vec<u8>, snapshots: &[SnapshotId]) {
    bytes.put_varint(snapshots.len() as u64);
    snapshots.iter().for_each(|snapshot| bytes.put_bytes(&snapshot.0));
}

fn listed(input: &mut Reader<'_>) -> Result<Vec<SnapshotId>, DecodeError> {
    let count = input.bounded(MAX_LISTED)?;
    (0..count).map(|_| input.array().map(SnapshotId)).collect()
}

fn numbers(input: &mut Reader<'_>) -> Result<Vec<PackNumber>, DecodeError> {
    let count = input.bounded(MAX_LISTED)?;
    (0..count).map(|_| input.u64().map(PackNumber)).collect()
}

/// Encodes packs: their count, then each with its home.
pub(super) fn put_packs(bytes: &mut Vec<u8>, packs: &[PackPlace]) {
    bytes.put_varint(packs.len() as u64);
    for place in packs {
        let (code, vm) = match place.home {
            PackHome::Shared => (0, None),
            PackHome::Recipes(vm) => (1, Some(vm)),
            PackHome::Private(vm) => (2, Some(vm)),
        };
        bytes.put_u8(code);
        if let Some(vm) = vm {
            bytes.put_bytes(vm.as_bytes());
        }
        bytes.put_u32(place.volume);
        bytes.put_u64(place.pack.0);
    }
}

/// Decodes the output of [`put_packs`].
pub(super) fn packs(input: &mut Reader<'_>) -> Result<Vec<PackPlace>, DecodeError> {
    let count = input.bounded(MAX_LISTED)?;
    let place = |_| {
        Ok(PackPlace {
            home: match input.bounded(2)? {
                0 => PackHome::Shared,
                1 => PackHome::Recipes(Uuid::from_bytes(input.array()?)),
                _ => PackHome::Private(Uuid::from_bytes(input.array()?)),
            },
            volume: input.u32()?,
            pack: PackNumber(input.u64()?),
        })
    };
    (0..count).map(place).collect()
}
