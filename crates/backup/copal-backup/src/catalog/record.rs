//! Catalog records and their bytes.
//!
//! Format: docs/formats/backup-catalog.md v2

use super::fields::{DeadList, MAX_SEQUENCE, SessionId, dead, option, put_dead, put_option};
use crate::keys::{Keys, MAC_BYTES};
use crate::pack::PackNumber;
use crate::request::SnapshotId;
use crate::volumes::Home;
use copal_chunk::Profile;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader};
use uuid::Uuid;

pub(crate) const FORMAT: Format = Format {
    magic: *b"COPALREC",
    name: "catalog record",
    oldest: 1,
    version: 2,
    known_flags: 0,
};

/// Longest name of a VM, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Most snapshots or packs one record names.
pub(crate) const MAX_LISTED: usize = 1024;

/// One record. The first two belong to the domain's log, the others to a VM's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The repository was made. Always record 0 of the domain's log.
    Init { domain: Uuid, profile: Profile },
    /// A VM got its name.
    VmAdded { vm: Uuid, name: String },
    /// A session began.
    Open {
        session: SessionId,
        base: Option<SnapshotId>,
    },
    /// A session ended with a snapshot; its manifest has this hash.
    Publish {
        session: SessionId,
        snapshot: SnapshotId,
        sequence: u64,
        manifest: [u8; 32],
        /// What the store's clock showed, in ms since 1970; version 1 does not say.
        clock_ms: Option<u64>,
    },
    /// A session was ended from outside; it can no longer publish.
    Fence { session: SessionId },
    /// Snapshots are no longer visible.
    Forget { snapshots: Vec<SnapshotId> },
    /// The space of forgotten snapshots has been returned.
    Deleted { snapshots: Vec<SnapshotId> },
    /// Every chunk of these snapshots was decoded and is what it was.
    Verified { snapshots: Vec<SnapshotId> },
    /// These snapshots may not be forgotten before this time, in ms since 1970; 0 ends their hold.
    Hold {
        snapshots: Vec<SnapshotId>,
        until_ms: u64,
    },
    /// A prune is about to remove these packs. In the layout solo it stands in a file of its own, in a fleet in the VM's log.
    Removing { packs: Vec<PackPlace> },
    /// These packs are gone from all servers.
    Removed { packs: Vec<PackPlace> },
    /// What only these forgotten snapshots referred to stands in a list of dead frames, whose file has this hash: nobody
    /// refers to any of it from now on. `dead` `None`: nothing is dead that is still there.
    Freed {
        snapshots: Vec<SnapshotId>,
        dead: Option<DeadList>,
    },
    /// The VM goes with all that it has: nobody backs it up any more.
    Retired,
    /// Nothing of a VM is there any more.
    VmRemoved { vm: Uuid },
    /// As `Init`, of a fleet.
    InitFleet {
        domain: Uuid,
        profile: Profile,
        /// How much of all unique chunks may be popular.
        popular_millionths: u32,
    },
}

/// Where a pack lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackPlace {
    pub(crate) home: Home,
    pub(crate) volume: u32,
    pub(crate) pack: PackNumber,
}

impl Record {
    fn code(&self) -> u8 {
        match self {
            Record::Init { .. } => 1,
            Record::VmAdded { .. } => 2,
            Record::Open { .. } => 3,
            Record::Publish { .. } => 4,
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
        }
    }

    /// The file of this record at `place`, the name of the file.
    pub(crate) fn encode(&self, place: &str, keys: &Keys) -> Vec<u8> {
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
            Record::Publish {
                session,
                snapshot,
                sequence,
                manifest,
                clock_ms,
            } => {
                bytes.put_bytes(session);
                bytes.put_bytes(&snapshot.0);
                bytes.put_u64(*sequence);
                bytes.put_bytes(manifest);
                bytes.put_u64(clock_ms.unwrap_or(0));
            }
            Record::Fence { session } => bytes.put_bytes(session),
            Record::Forget { snapshots } | Record::Deleted { snapshots } | Record::Verified { snapshots } => {
                put_listed(&mut bytes, snapshots)
            }
            Record::Hold { snapshots, until_ms } => {
                bytes.put_u64(*until_ms);
                put_listed(&mut bytes, snapshots);
            }
            Record::Removing { packs } | Record::Removed { packs } => put_packs(&mut bytes, packs),
            Record::Retired => {}
            Record::VmRemoved { vm } => bytes.put_bytes(vm.as_bytes()),
            Record::Freed { snapshots, dead } => {
                put_dead(&mut bytes, dead.as_ref());
                put_listed(&mut bytes, snapshots);
            }
            Record::InitFleet {
                domain,
                profile,
                popular_millionths,
            } => {
                bytes.put_bytes(domain.as_bytes());
                bytes.put_u8(profile.code());
                bytes.put_u32(*popular_millionths);
            }
        }
        let mac = keys.mac(place, &bytes[ENVELOPE_LEN..]);
        bytes.put_bytes(&mac);
        Envelope::seal(&FORMAT, 0, 0, &mut bytes);
        bytes
    }

    /// Reads the record at `place`.
    pub(crate) fn decode(bytes: &[u8], place: &str, keys: &Keys) -> Result<Record, String> {
        let (envelope, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
        let at = body
            .len()
            .checked_sub(MAC_BYTES)
            .ok_or("it is too short for a record")?;
        let (content, mac) = body.split_at(at);
        if !keys.mac_fits(place, content, mac) {
            return Err("its seal does not fit: it was changed, or belongs elsewhere".into());
        }
        let mut input = Reader::new(content);
        let record = parse(&mut input, envelope.version)?;
        input.finish().map_err(|error| error.to_string())?;
        Ok(record)
    }
}

/// Reads the fields of a record of this version.
pub(crate) fn parse(input: &mut Reader<'_>, version: u16) -> Result<Record, String> {
    let text = |error: DecodeError| error.to_string();
    let code = input.u8().map_err(text)?;
    input.zeros(3).map_err(text)?;
    let mut fields = || -> Result<Result<Record, String>, DecodeError> {
        Ok(Ok(match code {
            1 | 12 => {
                let domain = Uuid::from_bytes(input.array()?);
                let profile = input.u8()?;
                let Some(profile) = Profile::from_code(profile) else {
                    let detail = format!("chunking profile {profile} is not known; use a newer copal");
                    return Ok(Err(detail));
                };
                match code {
                    1 => Record::Init { domain, profile },
                    _ => Record::InitFleet {
                        domain,
                        profile,
                        popular_millionths: input.u32()?.min(1_000_000),
                    },
                }
            }
            2 => {
                let vm = Uuid::from_bytes(input.array()?);
                match std::str::from_utf8(input.prefixed(MAX_NAME_BYTES)?) {
                    Ok(name) => Record::VmAdded {
                        vm,
                        name: name.to_owned(),
                    },
                    Err(error) => return Ok(Err(format!("the name of a VM is not text: {error}"))),
                }
            }
            3 => Record::Open {
                session: input.array()?,
                base: option(input)?,
            },
            4 => Record::Publish {
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
            },
            5 => Record::Fence {
                session: input.array()?,
            },
            6 => Record::Forget {
                snapshots: listed(input)?,
            },
            7 => Record::Deleted {
                snapshots: listed(input)?,
            },
            8 => Record::Verified {
                snapshots: listed(input)?,
            },
            9 => Record::Hold {
                until_ms: input.u64()?,
                snapshots: listed(input)?,
            },
            10 => Record::Removing { packs: packs(input)? },
            11 => Record::Removed { packs: packs(input)? },
            14 => Record::Retired,
            15 => Record::VmRemoved {
                vm: Uuid::from_bytes(input.array()?),
            },
            13 => Record::Freed {
                dead: dead(input)?,
                snapshots: listed(input)?,
            },
            other => {
                return Ok(Err(format!(
                    "records of kind {other} are not known; use a newer copal"
                )));
            }
        }))
    };
    fields().map_err(text)?
}

fn put_listed(bytes: &mut Vec<u8>, snapshots: &[SnapshotId]) {
    bytes.put_varint(snapshots.len() as u64);
    snapshots.iter().for_each(|snapshot| bytes.put_bytes(&snapshot.0));
}

fn listed(input: &mut Reader<'_>) -> Result<Vec<SnapshotId>, DecodeError> {
    let count = input.bounded(MAX_LISTED)?;
    (0..count).map(|_| input.array().map(SnapshotId)).collect()
}

/// Packs: how many, then each with its home: what of whom.
pub(super) fn put_packs(bytes: &mut Vec<u8>, packs: &[PackPlace]) {
    bytes.put_varint(packs.len() as u64);
    for place in packs {
        let (code, vm) = match place.home {
            Home::Shared => (0, None),
            Home::Recipes(vm) => (1, Some(vm)),
            Home::Private(vm) => (2, Some(vm)),
        };
        bytes.put_u8(code);
        if let Some(vm) = vm {
            bytes.put_bytes(vm.as_bytes());
        }
        bytes.put_u32(place.volume);
        bytes.put_u64(place.pack.0);
    }
}

/// Reads what [`put_packs`] wrote.
pub(super) fn packs(input: &mut Reader<'_>) -> Result<Vec<PackPlace>, DecodeError> {
    let count = input.bounded(MAX_LISTED)?;
    let place = |_| {
        Ok(PackPlace {
            home: match input.bounded(2)? {
                0 => Home::Shared,
                1 => Home::Recipes(Uuid::from_bytes(input.array()?)),
                _ => Home::Private(Uuid::from_bytes(input.array()?)),
            },
            volume: input.u32()?,
            pack: PackNumber(input.u64()?),
        })
    };
    (0..count).map(place).collect()
}
