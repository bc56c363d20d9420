//! The data server: operations and reads of clients, each in the epoch that the client names.
//!
//! Not here: heartbeats and views (`heartbeat`), resync (`group_resync`), snapshots of donors (`snapshots`).

use crate::net::messages::{blocking, encoded, read};
use crate::net::status::{Status, expired};
use crate::replica::file_head::{PIECE_BYTES, new_head};
use crate::replica::heartbeat::ServerRefusal;
use crate::replica::host::{DataOptions, ReplicaHost, StoreSpace};
use crate::resync::{anti_entropy, gossip, group_resync, repair};
use crate::security::authority::AuthorityError;
use crate::security::caller::{CallerPermit, denial};
use bytes::Bytes;
use copal_client::{ConnectionPool, Masters, current_deadline, machine};
use copal_codec::crc32c;
use copal_data::{
    BodySource, FileState, GroupOperation, MemberIdentity, MemberStore, OperationError, StagedPiece,
    VerifySpan, VolumeNotice,
};
use copal_proto::{
    Method, RANGES_MAX, id,
    messages::{self, failure::Code},
    of_id, role_of,
};
use copal_volume::{
    FileId, FileInfo, OpId, VolumeError, VolumeId, check_file_name,
    group::{Epoch, GroupId, Role, Term},
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of a master's answer whether a volume exists.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(8);
/// Heads in one reply.
const MAX_LISTED: usize = 1000;

/// A data server. See the module.
pub struct DataServer {
    pub(crate) host: Arc<ReplicaHost>,
    /// Highest volume number that a master has confirmed, by group.
    known_volumes: Mutex<BTreeMap<GroupId, u64>>,
}

impl DataServer {
    /// A server on a store that has booted (`MemberStore::boot`).
    /// # Errors
    /// The authority's certificate cannot be read.
    pub fn new(
        store: MemberStore,
        identity: MemberIdentity,
        options: DataOptions,
        space: Box<dyn StoreSpace>,
        masters: Masters,
        connections: ConnectionPool,
    ) -> Result<Arc<DataServer>, AuthorityError> {
        let host = ReplicaHost::new(store, identity, options, space, masters, connections)?;
        Ok(Arc::new(DataServer { host: Arc::new(host), known_volumes: Mutex::default() }))
    }

    /// Runs all background tasks of a data server: heartbeat, resync, repair, gossip and anti-entropy. Ends
    /// when the task is dropped.
    /// # Errors
    /// As [`DataServer::run_heartbeat`].
    pub async fn run(self: Arc<Self>) -> Result<(), ServerRefusal> {
        machine::spawn(Arc::clone(&self).run_resync());
        machine::spawn(repair::run(Arc::clone(&self.host)));
        machine::spawn(Arc::clone(&self).run_gossip());
        machine::spawn(anti_entropy::run(Arc::clone(&self.host)));
        self.run_heartbeat().await
    }

    /// Resyncs groups that are not in sync, until the task is dropped.
    pub async fn run_resync(self: Arc<Self>) {
        group_resync::run(Arc::clone(&self.host)).await;
    }

    /// Seals due buckets and exchanges gossip, until the task is dropped.
    pub async fn run_gossip(self: Arc<Self>) {
        gossip::run(Arc::clone(&self.host)).await;
    }

    /// Sends heartbeats until the task is dropped.
    /// # Errors
    /// The master refuses this server: it was declared lost, or its directory is not the one that joined.
    pub async fn run_heartbeat(self: Arc<Self>) -> Result<(), ServerRefusal> {
        Arc::clone(&self.host).run_heartbeat().await
    }

    /// Applies an operation of a caller, if its permit still holds when its turn comes.
    pub(crate) async fn operate(
        self: &Arc<Self>,
        caller: &CallerPermit,
        group: u32,
        epoch: u64,
        operation: Result<GroupOperation, Status>,
    ) -> Result<Bytes, Status> {
        let (group, epoch, operation) = (GroupId(group), Epoch(epoch), operation?);
        if vid_of(&operation).birth_group() != group {
            return Err(Status::new(Code::Invalid, "the volume belongs to another group"));
        }
        self.host.require_epoch(group, epoch).await?;
        self.require_known_volume(vid_of(&operation)).await?;
        let may_run = self.may_run(caller.clone());
        match self.host.apply_if(group, epoch, operation, may_run).await? {
            Ok(role) => Ok(encoded(&messages::Accepted { role: role_of(role).into() })),
            Err(refusal) => Err(self.refusal_of(group, refusal)),
        }
    }

    /// Repeats the permit check where the operation is applied.
    fn may_run(
        self: &Arc<Self>,
        caller: CallerPermit,
    ) -> impl Fn() -> Result<(), OperationError> + Send + use<> {
        let this = Arc::clone(self);
        move || {
            let now_ms = this.host.map.now_ms();
            this.host.access.recheck(&caller, now_ms).map_err(|refusal| denial(&refusal))
        }
    }

    fn refusal_of(&self, group: GroupId, refusal: OperationError) -> Status {
        match refusal {
            OperationError::Refused(answer) => answer.into(),
            OperationError::OtherEpoch { .. } | OperationError::NotMember => self.host.stale(group),
            OperationError::Cancelled => expired(),
            OperationError::Denied { reason } => Status::new(Code::Denied, reason),
            OperationError::Failed(VolumeError::NoSpace) => Status::new(Code::NoSpace, "the disk is full"),
            OperationError::Failed(error) => {
                self.host.report_damage(group, &error);
                error.into()
            }
        }
    }

    /// Refuses a volume that no master has created. Volume numbers of a group ascend: a master is asked once
    /// about a number above the known ones.
    async fn require_known_volume(&self, vid: VolumeId) -> Result<(), Status> {
        let group = vid.birth_group();
        let highest = self.known_volumes.lock().get(&group).copied().unwrap_or(0);
        if (1..=highest).contains(&vid.sequence()) {
            return Ok(());
        }
        // A volume with files exists, even if no master answers.
        let store = self.host.store.clone();
        let listed = blocking(move || Ok(store.list(vid, b"", None, 1)?));
        if listed.await?.is_empty() {
            let left =
                current_deadline().map_or(KNOWN_TIMEOUT, |end| end.saturating_duration_since(machine::now()));
            let request = messages::Known { volume: vid.0 };
            let asked = self
                .host
                .masters
                .call::<messages::KnownReply>(Method::Known, &request, left.min(KNOWN_TIMEOUT))
                .await;
            match asked {
                Ok(reply) if reply.known => {}
                Ok(_) => return Err(Status::new(Code::VolumeGone, "no such volume was ever created")),
                Err(error) => {
                    let reason = format!("no master answers whether the volume exists: {error}");
                    return Err(Status::new(Code::Unavailable, reason));
                }
            }
        }
        let mut made = self.known_volumes.lock();
        let known = made.entry(group).or_default();
        *known = (*known).max(vid.sequence());
        Ok(())
    }

    /// Runs a read in its epoch. A member that is not in sync answers `NotAuthoritative` in place of
    /// `NotFound`.
    async fn read_in_epoch<T: Send + 'static>(
        self: &Arc<Self>,
        (group, epoch): (u32, u64),
        vid: VolumeId,
        read: impl FnOnce(&MemberStore) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<(T, Role), Status> {
        if vid.birth_group() != GroupId(group) {
            return Err(Status::new(Code::Invalid, "the volume belongs to another group"));
        }
        let begin = self.host.begin_read(GroupId(group), Epoch(epoch)).await?;
        let this = Arc::clone(self);
        blocking(move || match (read(&this.host.store), this.host.role_of_read(&begin)?) {
            (Ok(value), role) => Ok((value, role)),
            (Err(VolumeError::NotFound), role) if !role.is_in_sync() => {
                Err(Status::new(Code::NotAuthoritative, "this member is not in sync: it may lack operations"))
            }
            (Err(error), _) => {
                this.host.report_damage(vid.birth_group(), &error);
                Err(error.into())
            }
        })
        .await
    }

    pub(crate) async fn answer_read(
        self: Arc<Self>,
        method: Method,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        match method {
            Method::Get => {
                let request: messages::Get = read(message)?;
                let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
                let most = PIECE_BYTES as u64;
                let end = request.end.min(request.start.saturating_add(most));
                let name = checked(request.name)?;
                let if_file = request.if_file.map(|fid| FileId(id(Some(fid))));
                let get = move |store: &MemberStore| store.get(vid, &name, request.start..end, if_file);
                let ((bytes, info), role) = self.read_in_epoch(at, vid, get).await?;
                Ok(encoded(&messages::GetReply {
                    bytes,
                    head: Some(head_of(&info)),
                    role: role_of(role).into(),
                }))
            }
            Method::GetRanges => self.answer_ranges(read(message)?).await,
            Method::Stat => {
                let request: messages::Stat = read(message)?;
                let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
                let name = checked(request.name)?;
                let if_file = request.if_file.map(|fid| FileId(id(Some(fid))));
                let stat = move |store: &MemberStore| store.stat(vid, &name, if_file);
                let (info, role) = self.read_in_epoch(at, vid, stat).await?;
                Ok(encoded(&messages::StatReply { head: Some(head_of(&info)), role: role_of(role).into() }))
            }
            Method::List => {
                let request: messages::List = read(message)?;
                let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
                let limit = (request.limit as usize).min(MAX_LISTED);
                let list = move |store: &MemberStore| {
                    let after = request.has_after.then_some(&*request.after);
                    store.list(vid, &request.prefix, after, limit)
                };
                let (files, role) = self.read_in_epoch(at, vid, list).await?;
                require_in_sync(role)?;
                let more = files.len() == limit;
                let listed = |(name, info): (Bytes, FileInfo)| messages::ListedFile {
                    name,
                    head: Some(head_of(&info)),
                };
                Ok(encoded(&messages::ListReply {
                    files: files.into_iter().map(listed).collect(),
                    more,
                    role: role_of(role).into(),
                }))
            }
            Method::Find => {
                let request: messages::Find = read(message)?;
                let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
                let fid = FileId(id(request.fid));
                let find = move |store: &MemberStore| match request.buried_only {
                    true if store.is_deleted(vid, fid)? => Ok(FileState::Deleted),
                    true => Ok(FileState::Unknown),
                    false => store.find(vid, fid),
                };
                let (known, role) = self.read_in_epoch(at, vid, find).await?;
                let mut found =
                    messages::FindReply { role: role_of(role).into(), ..messages::FindReply::default() };
                match known {
                    FileState::Live { name, info, op } => {
                        // With the id of the create: another member takes over the same operation.
                        let head = messages::FileHead { op: Some(of_id(op.0)), ..head_of(&info) };
                        (found.live, found.name, found.head) = (true, name, Some(head));
                    }
                    FileState::Deleted => found.buried = true,
                    FileState::Unknown => {}
                }
                Ok(encoded(&found))
            }
            Method::Totals => {
                let request: messages::VolumeTotals = read(message)?;
                let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
                let (totals, role) = self.read_in_epoch(at, vid, move |store| store.totals(vid)).await?;
                require_in_sync(role)?;
                Ok(encoded(&messages::Totals {
                    files: totals.files,
                    bytes: totals.bytes,
                    role: role_of(role).into(),
                }))
            }
            _ => self.verify(read(message)?).await,
        }
    }

    async fn answer_ranges(self: Arc<Self>, request: messages::GetRanges) -> Result<Bytes, Status> {
        let bytes: u64 = request.lengths.iter().map(|length| u64::from(*length)).sum();
        if request.lengths.len() > RANGES_MAX || bytes > PIECE_BYTES as u64 {
            return Err(Status::new(
                Code::TooLarge,
                "at most 1024 ranges of 4 MiB together are read at once",
            ));
        }
        if request.starts.len() != request.lengths.len() {
            return Err(Status::new(Code::Invalid, "each range has a start and a length"));
        }
        let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
        let name = checked(request.name)?;
        let if_file = request.if_file.map(|fid| FileId(id(Some(fid))));
        let ranges: Vec<Range<u64>> = request
            .starts
            .iter()
            .zip(&request.lengths)
            .map(|(start, length)| *start..start.saturating_add(u64::from(*length)))
            .collect();
        let get = move |store: &MemberStore| store.get_ranges(vid, &name, &ranges, if_file);
        let ((answers, info), role) = self.read_in_epoch(at, vid, get).await?;
        if answers.iter().any(Option::is_none) {
            self.host.damage.report(vid.birth_group());
        }
        let ranges = answers.into_iter().map(|answer| messages::RangeBytes {
            corrupt: answer.is_none(),
            bytes: answer.unwrap_or_default(),
        });
        Ok(encoded(&messages::GetRangesReply {
            head: Some(head_of(&info)),
            role: role_of(role).into(),
            ranges: ranges.collect(),
        }))
    }

    async fn verify(self: Arc<Self>, request: messages::Verify) -> Result<Bytes, Status> {
        const MOST: u32 = 10_000;
        let group = GroupId(request.group);
        let begin = self.host.begin_read(group, Epoch(request.epoch)).await?;
        let this = Arc::clone(&self);
        let verified = blocking(move || {
            let key = |key: &Bytes| Some(key.clone()).filter(|key| !key.is_empty());
            let (after, until) = (key(&request.after), key(&request.until));
            let span = VerifySpan {
                after: after.as_deref(),
                until: until.as_deref(),
                limit: request.limit.min(MOST) as usize,
            };
            let verified = this.host.store.verify(group, span, request.deep)?;
            Ok((verified, this.host.role_of_read(&begin)?))
        });
        let (verified, role) = verified.await?;
        if !verified.damaged.is_empty() {
            self.host.damage.report(group);
        }
        Ok(encoded(&messages::Verified {
            files: verified.files,
            bytes: verified.bytes,
            digest: Some(of_id(verified.digest)),
            last: verified.last,
            more: verified.more,
            damaged: verified.damaged,
            role: role_of(role).into(),
        }))
    }

    /// Stages a piece of a file that the caller creates later.
    pub(crate) async fn stage(
        self: Arc<Self>,
        caller: &CallerPermit,
        request: messages::PutPiece,
    ) -> Result<Bytes, Status> {
        if request.bytes.is_empty() || request.bytes.len() > PIECE_BYTES {
            return Err(Status::new(Code::TooLarge, "a piece has 1 byte to 4 MiB"));
        }
        let vid = VolumeId(request.volume);
        if vid.birth_group() != GroupId(request.group) {
            return Err(Status::new(Code::Invalid, "the volume belongs to another group"));
        }
        if self.host.store.membership(vid.birth_group())?.is_none() {
            self.host.require_epoch(vid.birth_group(), Epoch(request.epoch)).await?;
        }
        let fid = FileId(id(request.fid));
        caller.require_own_id(fid)?;
        self.require_known_volume(vid).await?;
        let piece = StagedPiece {
            vid,
            fid,
            index: request.index,
            bytes: request.bytes,
            origin: caller.upload_origin(fid),
            has_all_rights: caller.is_unrestricted(),
        };
        let may_run = self.may_run(caller.clone());
        let this = Arc::clone(&self);
        blocking(move || {
            if crc32c(0, &piece.bytes) != request.crc32c {
                return Err(Status::new(Code::Corrupt, "the checksum of the piece does not match its bytes"));
            }
            let staged = this.host.store.stage_while(piece, may_run);
            staged.map_err(|refusal| this.refusal_of(vid.birth_group(), refusal))
        })
        .await?;
        Ok(encoded(&messages::Done {}))
    }

    pub(crate) async fn staged_piece(self: Arc<Self>, request: messages::GetPiece) -> Result<Bytes, Status> {
        let (vid, fid) = (VolumeId(request.volume), FileId(id(request.fid)));
        let this = Arc::clone(&self);
        let bytes = blocking(move || Ok(this.host.store.staged_piece(vid, fid, request.index)?));
        Ok(encoded(&messages::Piece { bytes: bytes.await? }))
    }

    pub(crate) async fn set_volume_state(
        self: Arc<Self>,
        request: messages::VolumeState,
    ) -> Result<Bytes, Status> {
        let this = Arc::clone(&self);
        let state = match messages::volume_state::State::try_from(request.state) {
            Ok(messages::volume_state::State::Live) => {
                VolumeNotice::Live { quota_bytes: request.has_quota.then_some(request.quota_bytes) }
            }
            Ok(messages::volume_state::State::Removing) => VolumeNotice::Removing,
            Ok(messages::volume_state::State::Gone) => VolumeNotice::Removed,
            Err(_) => return Err(Status::new(Code::Invalid, "no state of a volume")),
        };
        let has_files = blocking(move || {
            this.host.require_term(Term(request.term))?;
            Ok(this.host.store.note_volume(VolumeId(request.volume), state)?)
        });
        Ok(encoded(&messages::VolumeStateReply { has_files: has_files.await? }))
    }
}

fn vid_of(operation: &GroupOperation) -> VolumeId {
    match operation {
        GroupOperation::Create { vid, .. }
        | GroupOperation::Confirm { vid, .. }
        | GroupOperation::Delete { vid, .. }
        | GroupOperation::CopyCreate { vid, .. }
        | GroupOperation::CopyDelete { vid, .. }
        | GroupOperation::RecordCreate { vid, .. } => *vid,
    }
}

/// The create of a request.
pub(crate) fn create(caller: &CallerPermit, request: messages::Put) -> Result<GroupOperation, Status> {
    let name = checked(request.name)?;
    let head = new_head(request.head)?;
    let body = match request.staged {
        true => BodySource::StagedBy(caller.upload_origin(head.fid)),
        false => {
            let body = request.body;
            if body.len() as u64 != head.size || body.len() > PIECE_BYTES {
                return Err(Status::new(Code::Invalid, "the length of the body differs from its head"));
            }
            if crc32c(0, &body) != head.crc32c {
                return Err(Status::new(Code::Corrupt, "the checksum of the body does not match its bytes"));
            }
            BodySource::Attached(body)
        }
    };
    Ok(GroupOperation::Create { vid: VolumeId(request.volume), name, head, body })
}

/// The confirm of a request.
pub(crate) fn confirm_of(request: messages::Confirm) -> Result<GroupOperation, Status> {
    Ok(GroupOperation::Confirm {
        vid: VolumeId(request.volume),
        name: checked(request.name)?,
        head: new_head(request.head)?,
    })
}

/// The delete of a request.
pub(crate) fn delete_of(request: messages::Delete) -> Result<GroupOperation, Status> {
    Ok(GroupOperation::Delete {
        vid: VolumeId(request.volume),
        name: checked(request.name)?,
        fid: FileId(id(request.fid)),
        op: OpId(id(request.op)),
    })
}

pub(crate) fn checked(name: Bytes) -> Result<Bytes, Status> {
    check_file_name(&name)?;
    Ok(name)
}

fn require_in_sync(role: Role) -> Result<(), Status> {
    match role.is_in_sync() {
        true => Ok(()),
        false => {
            Err(Status::new(Code::NotAuthoritative, "this member is not in sync: it may lack operations"))
        }
    }
}

/// A file's head as a message. Its operation id carries only the creation time.
fn head_of(info: &FileInfo) -> messages::FileHead {
    messages::FileHead {
        fid: Some(of_id(info.fid.0)),
        op: Some(of_id(FileId::new(info.created_ms, 0, 0).0)),
        size: info.size,
        crc32c: info.crc32c,
        metadata: info.metadata.clone(),
    }
}

#[cfg(test)]
mod tests;
