//! A data server behind a socket: operations and reads of clients, each in the epoch that it means.
//!
//! Not here: heartbeats and views (`following`), becoming whole (`syncing`), what a donor shows
//! (`snapshots`).

use crate::{
    access::AccessControl,
    answers::{blocking, encoded, read},
    authority::AuthorityError,
    caller::{Caller, not_held},
    copying::Copying,
    damaged::Repairs,
    heard::Heard,
    own_clock::OwnClock,
    snapshots::Snapshots,
    status::{Status, expired},
};
use bytes::Bytes;
use copal_client::{ConnectionPool, MapCache, Masters, current_deadline, machine, without_deadline};
use copal_codec::crc32c;
use copal_data::{
    Body, Known, MemberIdentity, MemberStore, Membership, NewHead, NotHeld, Operation, Piece, Span, Told,
};
use copal_proto::{
    Method, id,
    messages::{self, failure::Code},
    of_id, of_view, role_of,
};
use copal_volume::{
    FileId, FileIds, FileInfo, OpId, VolumeError, VolumeId, check_file_name, check_metadata,
    group::{DiskId, Epoch, GroupId, Matching, Role, Term, match_epoch},
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Bytes of a piece, and of the longest body that comes with its create.
pub(crate) const PIECE_BYTES: usize = 4 << 20;
/// How long a master may take to say whether a volume was made.
const TO_ASK: Duration = Duration::from_secs(8);
/// Heads in one answer.
const MOST_LISTED: usize = 1000;

/// What a data server knows of the room it has.
pub trait Room: Send + Sync + 'static {
    /// Bytes that are used, and bytes that there are.
    fn bytes(&self) -> (u64, u64);
}

/// See the module.
pub struct DataServer {
    pub(crate) store: MemberStore,
    pub(crate) identity: MemberIdentity,
    pub(crate) address: String,
    /// Zone and rack.
    pub(crate) place: (String, String),
    /// What its disk is: `hdd`, `ssd`; empty: not known.
    pub(crate) medium: String,
    pub(crate) room: Arc<dyn Room>,
    pub(crate) map: Arc<MapCache>,
    pub(crate) masters: Masters,
    pub(crate) connections: ConnectionPool,
    /// Number of the disk, once the master has told it; 0: not yet.
    pub(crate) disk: AtomicU64,
    /// The newest map whose views this server has entered.
    pub(crate) entered: AtomicU64,
    /// States of groups that the master has not heard of yet.
    pub(crate) untold: Mutex<Vec<Membership>>,
    /// One at a time asks for the map and enters its views.
    pub(crate) entering: tokio::sync::Mutex<()>,
    /// When a master took a heartbeat last.
    pub(crate) beaten: Mutex<Option<Instant>>,
    /// What was found out about the own clock.
    pub(crate) clock: Mutex<OwnClock>,
    pub(crate) beat_now: Notify,
    /// A master has refused this server's certificate as ended.
    pub(crate) renew_now: Notify,
    pub(crate) sync_now: Notify,
    /// Other masters are there than before.
    pub(crate) masters_changed: Notify,
    pub(crate) snapshots: Snapshots,
    pub(crate) copying: Copying,
    pub(crate) repairs: Repairs,
    /// What other members told of themselves.
    pub(crate) heard: Heard,
    /// Draws operations of this member's own: burials of files that lose their name.
    pub(crate) ids: Mutex<FileIds>,
    pub(crate) access: AccessControl,
    /// The highest number of a volume that a master has said was made, by group.
    pub(crate) made: Mutex<BTreeMap<GroupId, u64>>,
}

/// How a data server is reached, and whom it believes.
pub struct DataOptions {
    /// host:port.
    pub address: String,
    /// Certificate of the cluster's authority, PEM: what it has signed is believed.
    pub authority: String,
    /// Most bytes a second of copies from and to others.
    pub recovery_bytes_per_s: u64,
    /// Zone and rack in which it stands; empty: not told.
    pub place: (String, String),
    /// What its disk is: `hdd`, `ssd`; empty: not known.
    pub medium: String,
}

impl DataServer {
    /// A server whose store has booted (`MemberStore::boot`).
    /// # Errors
    /// The authority's certificate cannot be read.
    pub fn new(
        store: MemberStore,
        identity: MemberIdentity,
        options: DataOptions,
        room: Box<dyn Room>,
        masters: Masters,
        connections: ConnectionPool,
    ) -> Result<Arc<DataServer>, AuthorityError> {
        let mut disk = [0; 8];
        disk.copy_from_slice(&identity.disk[..8]);
        let drawn = u64::from_be_bytes(disk) ^ identity.incarnation.0;
        let map = Arc::new(MapCache::default());
        store.go_by(Arc::clone(&map) as _);
        let room: Arc<dyn Room> = Arc::from(room);
        let watched = Arc::clone(&room);
        store.watch_room(move || watched.bytes());
        Ok(Arc::new(DataServer {
            access: AccessControl::new(identity.cluster, &options.authority)?,
            made: Mutex::default(),
            heard: Heard::default(),
            ids: Mutex::new(FileIds::new(drawn, 0)),
            snapshots: Snapshots::default(),
            copying: Copying::new(options.recovery_bytes_per_s),
            repairs: Repairs::default(),
            store,
            identity,
            address: options.address,
            place: options.place,
            medium: options.medium,
            room,
            map,
            masters,
            connections,
            disk: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            untold: Mutex::default(),
            entering: tokio::sync::Mutex::default(),
            beaten: Mutex::default(),
            clock: Mutex::default(),
            beat_now: Notify::new(),
            renew_now: Notify::new(),
            sync_now: Notify::new(),
            masters_changed: Notify::new(),
        }))
    }

    /// Since a master took a heartbeat; `None`: none has.
    pub(crate) fn silence(&self) -> Option<Duration> {
        (*self.beaten.lock()).map(machine::since)
    }

    pub(crate) fn disk(&self) -> DiskId {
        DiskId(self.disk.load(Ordering::Relaxed) as u32)
    }

    /// Matches the epoch of a request, and learns a newer view where the request knows of one.
    /// # Errors
    /// `Stale` with the newer view; `Newer`, `Unavailable`.
    pub(crate) async fn matched(&self, group: GroupId, epoch: Epoch) -> Result<Membership, Status> {
        if self.entered.load(Ordering::Acquire) == 0 {
            // In the view of an earlier boot it would take a second file of a name that it knows is taken; if
            // all members did, nobody would be left who is whole.
            return Err(Status::new(Code::Busy, "this server has heard of no view since it was started"));
        }
        for is_last in [false, true] {
            let membership = self.store.membership(group)?;
            let own = membership.map_or(Epoch(0), |membership| membership.epoch);
            match (match_epoch(own, epoch), membership) {
                (Matching::Run, Some(membership)) => return Ok(membership),
                (Matching::Stale, _) => return Err(self.stale(group)),
                _ if is_last => break,
                // The view of the request is newer, or this disk does not know yet that it is a member.
                // Views are entered for all, however short the time of who asked.
                _ => without_deadline(self.refresh()).await,
            }
        }
        match self.map.view(group) {
            Some(view) if view.epoch > epoch => Err(self.stale(group)),
            _ => Err(Status::new(
                Code::Newer,
                "this server is not in the view that is meant, and the master does not tell it a newer one",
            )),
        }
    }

    fn stale(&self, group: GroupId) -> Status {
        let view = self.map.view(group).map(|view| of_view(&view));
        Status::new(Code::Stale, "there is a newer view of the group").with_view(view)
    }

    /// Does what a caller asks for, if the caller still may when its turn has come.
    pub(crate) async fn operate(
        self: &Arc<Self>,
        caller: &Caller,
        group: u32,
        epoch: u64,
        operation: Result<Operation, Status>,
    ) -> Result<Bytes, Status> {
        let (group, epoch, operation) = (GroupId(group), Epoch(epoch), operation?);
        if vid_of(&operation).birth_group() != group {
            return Err(Status::new(Code::Invalid, "the volume is of another group"));
        }
        self.matched(group, epoch).await?;
        self.must_be_made(vid_of(&operation)).await?;
        let may_run = self.may_run(caller.clone());
        match self.apply_if(group, epoch, operation, may_run).await? {
            Ok(role) => Ok(encoded(&messages::Accepted { role: role_of(role).into() })),
            Err(refusal) => Err(self.refusal_of(group, refusal)),
        }
    }

    /// Whether a caller may still do what it was let through for before; asked where it is done.
    fn may_run(self: &Arc<Self>, caller: Caller) -> impl Fn() -> Result<(), NotHeld> + Send + use<> {
        let this = Arc::clone(self);
        move || {
            let now_ms = this.map.now_ms();
            this.access.check_again(&caller, now_ms).map_err(|refusal| not_held(&refusal))
        }
    }

    fn refusal_of(&self, group: GroupId, refusal: NotHeld) -> Status {
        match refusal {
            NotHeld::Refused(answer) => answer.into(),
            NotHeld::OtherEpoch { .. } | NotHeld::NoMember => self.stale(group),
            NotHeld::Unwanted => expired(),
            NotHeld::Denied { reason } => Status::new(Code::Denied, reason),
            NotHeld::Failed(VolumeError::NoSpace) => Status::new(Code::NoSpace, "the disk is full"),
            NotHeld::Failed(error) => {
                self.note_if_damaged(group, &error);
                error.into()
            }
        }
    }

    /// Refuses a volume that no master has made: numbers of a group's volumes are given in their order. A
    /// master is asked for the first file of a volume with a number above those that are known.
    async fn must_be_made(&self, vid: VolumeId) -> Result<(), Status> {
        let group = vid.birth_group();
        let highest = self.made.lock().get(&group).copied().unwrap_or(0);
        if (1..=highest).contains(&vid.sequence()) {
            return Ok(());
        }
        // A volume that has files was made, whether or not a master is there to say so.
        let store = self.store.clone();
        let listed = blocking(move || Ok(store.list(vid, b"", None, 1)?));
        if listed.await?.is_empty() {
            let left = current_deadline().map_or(TO_ASK, |end| end.saturating_duration_since(machine::now()));
            let request = messages::Known { volume: vid.0 };
            let asked =
                self.masters.call::<messages::KnownReply>(Method::Known, &request, left.min(TO_ASK)).await;
            match asked {
                Ok(reply) if reply.known => {}
                Ok(_) => return Err(Status::new(Code::VolumeGone, "no such volume was ever made")),
                Err(error) => {
                    let reason = format!("no master says whether the volume was made: {error}");
                    return Err(Status::new(Code::Unavailable, reason));
                }
            }
        }
        let mut made = self.made.lock();
        let known = made.entry(group).or_default();
        *known = (*known).max(vid.sequence());
        Ok(())
    }

    /// Hands an operation of this server itself in, and waits for it.
    pub(crate) async fn apply(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: Operation,
    ) -> Result<Result<Role, NotHeld>, Status> {
        self.apply_if(group, epoch, operation, || Ok(())).await
    }

    /// Hands an operation in, and waits for it; the queue of its group is served where that may block.
    async fn apply_if(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: Operation,
        may_run: impl Fn() -> Result<(), NotHeld> + Send + 'static,
    ) -> Result<Result<Role, NotHeld>, Status> {
        let (tell, told) = oneshot::channel();
        let end = current_deadline();
        let may_run = move || match end.is_none_or(|end| machine::now() < end) {
            true => may_run(),
            false => Err(NotHeld::Unwanted),
        };
        let submitted = self.store.submit_if(group, epoch, operation, may_run, move |reply| {
            // Whoever asked may have given up.
            let _ = tell.send(reply);
        });
        if let Some(work) = submitted? {
            machine::spawn_blocking(move || work.run());
        }
        told.await.map_err(|_| Status::new(Code::Internal, "the operation was dropped; try again"))
    }

    /// Runs a read in its epoch; a member that is not whole says so.
    async fn reading<T: Send + 'static>(
        self: &Arc<Self>,
        (group, epoch): (u32, u64),
        vid: VolumeId,
        read: impl FnOnce(&MemberStore) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<(T, Role), Status> {
        if vid.birth_group() != GroupId(group) {
            return Err(Status::new(Code::Invalid, "the volume is of another group"));
        }
        let membership = self.matched(GroupId(group), Epoch(epoch)).await?;
        let this = Arc::clone(self);
        let role = membership.role;
        blocking(move || match read(&this.store) {
            Ok(value) => Ok((value, role)),
            Err(VolumeError::NotFound) if !role.is_in_sync() => Err(Status::new(
                Code::NotAuthoritative,
                "this member is not whole: it may lack what others have",
            )),
            Err(error) => {
                this.note_if_damaged(vid.birth_group(), &error);
                Err(error.into())
            }
        })
        .await
    }

    /// What cannot be read here comes back from another member.
    pub(crate) fn note_if_damaged(&self, group: GroupId, error: &VolumeError) {
        if error.is_corruption() {
            self.repairs.met(group);
        }
    }

    pub(crate) async fn read_call(self: Arc<Self>, method: Method, message: Bytes) -> Result<Bytes, Status> {
        match method {
            Method::Get => {
                let request: messages::Get = read(message)?;
                let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
                let most = PIECE_BYTES as u64;
                let end = request.end.min(request.start.saturating_add(most));
                let name = checked(request.name)?;
                let if_file = request.if_file.map(|fid| FileId(id(Some(fid))));
                let get = move |store: &MemberStore| store.get(vid, &name, request.start..end, if_file);
                let ((bytes, info), role) = self.reading(at, vid, get).await?;
                Ok(encoded(&messages::GetReply {
                    bytes,
                    head: Some(head_of(&info)),
                    role: role_of(role).into(),
                }))
            }
            Method::Stat => {
                let request: messages::Stat = read(message)?;
                let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
                let name = checked(request.name)?;
                let if_file = request.if_file.map(|fid| FileId(id(Some(fid))));
                let stat = move |store: &MemberStore| store.stat(vid, &name, if_file);
                let (info, role) = self.reading(at, vid, stat).await?;
                Ok(encoded(&messages::StatReply { head: Some(head_of(&info)), role: role_of(role).into() }))
            }
            Method::List => {
                let request: messages::List = read(message)?;
                let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
                let limit = (request.limit as usize).min(MOST_LISTED);
                let list = move |store: &MemberStore| {
                    let after = request.has_after.then_some(&*request.after);
                    store.list(vid, &request.prefix, after, limit)
                };
                let (files, role) = self.reading(at, vid, list).await?;
                whole(role)?;
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
                    true if store.is_deleted(vid, fid)? => Ok(Known::Buried),
                    true => Ok(Known::Nothing),
                    false => store.find(vid, fid),
                };
                let (known, role) = self.reading(at, vid, find).await?;
                let mut found =
                    messages::FindReply { role: role_of(role).into(), ..messages::FindReply::default() };
                match known {
                    Known::Live { name, info, op } => {
                        // Whoever brings it to others brings it as it was created.
                        let head = messages::FileHead { op: Some(of_id(op.0)), ..head_of(&info) };
                        (found.live, found.name, found.head) = (true, name, Some(head));
                    }
                    Known::Buried => found.buried = true,
                    Known::Nothing => {}
                }
                Ok(encoded(&found))
            }
            Method::Totals => {
                let request: messages::VolumeTotals = read(message)?;
                let (vid, at) = (VolumeId(request.volume), (request.group, request.epoch));
                let (totals, role) = self.reading(at, vid, move |store| store.totals(vid)).await?;
                whole(role)?;
                Ok(encoded(&messages::Totals {
                    files: totals.files,
                    bytes: totals.bytes,
                    role: role_of(role).into(),
                }))
            }
            _ => self.verify(read(message)?).await,
        }
    }

    async fn verify(self: Arc<Self>, request: messages::Verify) -> Result<Bytes, Status> {
        const MOST: u32 = 10_000;
        let group = GroupId(request.group);
        let membership = self.matched(group, Epoch(request.epoch)).await?;
        let this = Arc::clone(&self);
        let verified = blocking(move || {
            let key = |key: &Bytes| Some(key.clone()).filter(|key| !key.is_empty());
            let (after, until) = (key(&request.after), key(&request.until));
            let span = Span {
                after: after.as_deref(),
                until: until.as_deref(),
                limit: request.limit.min(MOST) as usize,
            };
            Ok(this.store.verify(group, span, request.deep)?)
        });
        let verified = verified.await?;
        if !verified.damaged.is_empty() {
            self.repairs.met(group);
        }
        Ok(encoded(&messages::Verified {
            files: verified.files,
            bytes: verified.bytes,
            digest: Some(of_id(verified.digest)),
            last: verified.last,
            more: verified.more,
            damaged: verified.damaged,
            role: role_of(membership.role).into(),
        }))
    }

    /// Keeps a piece of a caller's file to come.
    pub(crate) async fn stage(
        self: Arc<Self>,
        caller: &Caller,
        request: messages::PutPiece,
    ) -> Result<Bytes, Status> {
        if request.bytes.is_empty() || request.bytes.len() > PIECE_BYTES {
            return Err(Status::new(Code::TooLarge, "a piece has 1 byte to 4 MiB"));
        }
        let vid = VolumeId(request.volume);
        if vid.birth_group() != GroupId(request.group) {
            return Err(Status::new(Code::Invalid, "the volume is of another group"));
        }
        if self.store.membership(vid.birth_group())?.is_none() {
            self.matched(vid.birth_group(), Epoch(request.epoch)).await?;
        }
        let fid = FileId(id(request.fid));
        caller.must_have_drawn(fid)?;
        self.must_be_made(vid).await?;
        let piece = Piece {
            vid,
            fid,
            index: request.index,
            bytes: request.bytes,
            origin: caller.origin(fid),
            may_do_everything: caller.may_do_everything(),
        };
        let may_run = self.may_run(caller.clone());
        let this = Arc::clone(&self);
        blocking(move || {
            if crc32c(0, &piece.bytes) != request.crc32c {
                return Err(Status::new(Code::Corrupt, "a piece is not the one whose checksum came with it"));
            }
            let staged = this.store.stage_while(piece, may_run);
            staged.map_err(|refusal| this.refusal_of(vid.birth_group(), refusal))
        })
        .await?;
        Ok(encoded(&messages::Done {}))
    }

    pub(crate) async fn staged_piece(self: Arc<Self>, request: messages::GetPiece) -> Result<Bytes, Status> {
        let (vid, fid) = (VolumeId(request.volume), FileId(id(request.fid)));
        let this = Arc::clone(&self);
        let bytes = blocking(move || Ok(this.store.staged_piece(vid, fid, request.index)?));
        Ok(encoded(&messages::Piece { bytes: bytes.await? }))
    }

    pub(crate) async fn tell_volume(
        self: Arc<Self>,
        request: messages::VolumeState,
    ) -> Result<Bytes, Status> {
        let this = Arc::clone(&self);
        let told = match messages::volume_state::State::try_from(request.state) {
            Ok(messages::volume_state::State::Live) => {
                Told::Live { quota_bytes: request.has_quota.then_some(request.quota_bytes) }
            }
            Ok(messages::volume_state::State::Removing) => Told::Removing,
            Ok(messages::volume_state::State::Gone) => Told::Gone,
            Err(_) => return Err(Status::new(Code::Invalid, "no state of a volume")),
        };
        let has_files = blocking(move || {
            this.must_obey(Term(request.term))?;
            Ok(this.store.tell_volume(VolumeId(request.volume), told)?)
        });
        Ok(encoded(&messages::VolumeStateReply { has_files: has_files.await? }))
    }

    /// Whether an order is of the newest master that was heard of. Blocks.
    pub(crate) fn must_obey(&self, term: Term) -> Result<(), Status> {
        match self.store.hear(term)? {
            true => Ok(()),
            false => Err(Status::new(Code::Fenced, "a newer master has spoken")),
        }
    }
}

fn vid_of(operation: &Operation) -> VolumeId {
    match operation {
        Operation::Create { vid, .. }
        | Operation::Confirm { vid, .. }
        | Operation::Delete { vid, .. }
        | Operation::TakeOver { vid, .. }
        | Operation::TakeOverDelete { vid, .. }
        | Operation::Record { vid, .. } => *vid,
    }
}

/// A create as a caller sends it.
pub(crate) fn create(caller: &Caller, request: messages::Put) -> Result<Operation, Status> {
    let name = checked(request.name)?;
    let head = new_head(request.head)?;
    let body = match request.staged {
        true => Body::StagedBy(caller.origin(head.fid)),
        false => {
            let body = request.body;
            if body.len() as u64 != head.size || body.len() > PIECE_BYTES {
                return Err(Status::new(Code::Invalid, "a body is not as long as its head says"));
            }
            if crc32c(0, &body) != head.crc32c {
                return Err(Status::new(Code::Corrupt, "a body is not the one whose checksum came with it"));
            }
            Body::Here(body)
        }
    };
    Ok(Operation::Create { vid: VolumeId(request.volume), name, head, body })
}

/// A head as a client or another member sends it.
pub(crate) fn new_head(head: Option<messages::FileHead>) -> Result<NewHead, Status> {
    let head = head.ok_or_else(|| Status::new(Code::Invalid, "the head of the file is missing"))?;
    check_metadata(&head.metadata)?;
    if head.size > copal_volume::MAX_FILE_BYTES {
        return Err(Status::new(Code::TooLarge, "a file has at most 64 GiB"));
    }
    Ok(NewHead {
        fid: FileId(id(head.fid)),
        op: OpId(id(head.op)),
        size: head.size,
        crc32c: head.crc32c,
        metadata: head.metadata,
    })
}

pub(crate) fn checked(name: Bytes) -> Result<Bytes, Status> {
    check_file_name(&name)?;
    Ok(name)
}

fn whole(role: Role) -> Result<(), Status> {
    match role.is_in_sync() {
        true => Ok(()),
        false => {
            Err(Status::new(Code::NotAuthoritative, "this member is not whole: it may lack what others have"))
        }
    }
}

/// A file's head as a message; the create's id has the file's creation time.
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
