//! Volumes and their names: creation, removal, look-up, writer leases.

use crate::master::server::MasterServer;
use crate::net::messages::{blocking, encoded, read};
use crate::net::status::Status;
use bytes::Bytes;
use copal_client::{deadline_passed, machine, name_of_server, without_deadline};
use copal_master::{LeaseRefusal, PathLease, WRITER_LEASE_MS};
use copal_proto::{
    CallClass, Method,
    messages::{self, WriterLeaseReply, failure::Code, writer_lease::Action},
};
use copal_volume::{VolumeError, VolumeId};
use std::{sync::Arc, time::Duration};

/// Time limit of a member's answer about a volume's state.
const STATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an undecided removal is undone.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Creates a volume. Its members learn of a quota before any client can write.
pub(super) async fn mkdir(server: Arc<MasterServer>, request: messages::Mkdir) -> Result<Bytes, Status> {
    let this = Arc::clone(&server);
    let options = request.options.clone();
    let is_obeyed = |wish: &messages::VolumeWish| wish.replicas == 0 && wish.class.is_empty();
    if !options.as_ref().is_none_or(is_obeyed) {
        let reason =
            "this cluster chooses neither replicas nor disks for a single volume; make it without that wish";
        return Err(Status::new(Code::Denied, reason));
    }
    let quota = options.filter(|options| options.has_quota).map(|options| options.quota_bytes);
    let (parent, name) = (request.parent, request.name);
    let vid = blocking(move || Ok(this.master.mkdir(&parent, &name, quota)?));
    let vid = vid.await?;
    if quota.is_some() {
        // A member that misses this call learns it from the map.
        let _ = notify_members(&server, vid, messages::volume_state::State::Live).await;
    }
    Ok(encoded(&messages::Resolved { volume: vid.0, options: request.options }))
}

/// Removes a volume in three steps: its members refuse creates; the master checks for files; the name and the
/// files are deleted.
pub(super) async fn rmdir(server: Arc<MasterServer>, request: messages::Rmdir) -> Result<Bytes, Status> {
    let vid = VolumeId(request.volume);
    let (this, path) = (Arc::clone(&server), request.path);
    let begun = blocking(move || Ok(this.master.begin_rmdir(&path, vid)?));
    let removing = begun.await?;
    let began = machine::now();
    let outcome = notify_members(&server, vid, messages::volume_state::State::Removing).await;
    let is_late = deadline_passed();
    let is_kept = match &outcome {
        // Members forget the state after a minute.
        Ok(_) if machine::since(began) > REMOVAL_TIMEOUT || is_late => true,
        Ok(has_files) => *has_files && !request.with_files,
        Err(_) => true,
    };
    // From here on the removal is completed or undone, even past the deadline of the caller.
    without_deadline(async move {
        let this = Arc::clone(&server);
        if is_kept {
            // A member that misses this call learns it from the map.
            let _ = notify_members(&server, vid, messages::volume_state::State::Live).await;
            blocking(move || Ok(this.master.undo_rmdir(&removing)?)).await?;
            outcome?;
            if machine::since(began) > REMOVAL_TIMEOUT || is_late {
                return Err(Status::new(Code::Unavailable, "the members took too long to answer; try again"));
            }
            return Err(VolumeError::NotEmpty.into());
        }
        blocking(move || Ok(this.master.rmdir(&removing)?)).await?;
        // A member that is down learns it from the map.
        let _ = notify_members(&server, vid, messages::volume_state::State::Gone).await;
        Ok(encoded(&messages::Done {}))
    })
    .await
}

/// Sets the state of a volume at all members that are up. Returns whether any of them has files of it.
async fn notify_members(
    server: &MasterServer,
    vid: VolumeId,
    state: messages::volume_state::State,
) -> Result<bool, Status> {
    let group = vid.birth_group();
    let places = server.master.map().members_up(group);
    let quota = server.master.quota(vid);
    let request = messages::VolumeState {
        group: group.0,
        volume: vid.0,
        state: state.into(),
        term: server.master.term(),
        quota_bytes: quota.unwrap_or(0),
        has_quota: quota.is_some(),
    };
    let mut has_files = false;
    for member in places {
        let called = async {
            let name = name_of_server(&member.server_uuid);
            let connection = server.connections.connect(&member.address, name, CallClass::Control).await?;
            connection.call::<messages::VolumeStateReply>(Method::VolumeState, &request, STATE_TIMEOUT).await
        };
        let reply = called.await.map_err(|error| {
            let name = &member.name;
            let text = format!("{name} does not answer, and its answer is required: {error}; try again");
            Status::new(Code::Unavailable, text)
        })?;
        has_files |= reply.has_files;
    }
    Ok(has_files)
}

/// Takes, renews or releases a writer lease.
pub(super) fn writer_lease(server: &MasterServer, request: messages::WriterLease) -> Result<Bytes, Status> {
    let now_ms = server.now_ms();
    let action = Action::try_from(request.action).unwrap_or_default();
    let messages::WriterLease { path, holder, number, .. } = request;
    let given = match action {
        Action::Take => server.master.take_lease(&path, &holder, now_ms),
        Action::Renew => server.master.renew_lease(&path, &PathLease { number, holder, ends_ms: 0 }, now_ms),
        Action::Release => {
            server.master.release_lease(&path, number);
            return Ok(encoded(&WriterLeaseReply::default()));
        }
        Action::Unspecified => {
            return Err(Status::new(Code::Invalid, "a lease is taken, renewed or released"));
        }
    };
    Ok(encoded(&match given {
        Ok(lease) => WriterLeaseReply {
            number: lease.number,
            milliseconds: WRITER_LEASE_MS,
            ..WriterLeaseReply::default()
        },
        Err(LeaseRefusal::Held { holder, seconds }) => {
            WriterLeaseReply { held_by: holder, seconds, ..WriterLeaseReply::default() }
        }
        Err(LeaseRefusal::Ended) => WriterLeaseReply::default(),
    }))
}

pub(super) fn answer_names(server: &MasterServer, method: Method, message: Bytes) -> Result<Bytes, Status> {
    match method {
        Method::Resolve => {
            let request: messages::Resolve = read(message)?;
            let vid = server.master.resolve(&request.path)?;
            Ok(encoded(&messages::Resolved { volume: vid.0, options: None }))
        }
        Method::Known => {
            let request: messages::Known = read(message)?;
            let known = server.master.was_created(VolumeId(request.volume));
            Ok(encoded(&messages::KnownReply { known }))
        }
        Method::Rename => {
            let request: messages::Rename = read(message)?;
            server.master.rename(&request.from, &request.to)?;
            Ok(encoded(&messages::Done {}))
        }
        Method::ListDirs => {
            const MOST: u32 = 10_000;
            let request: messages::ListDirs = read(message)?;
            let after = request.has_after.then_some(request.after.as_str());
            let limit = request.limit.min(MOST) as usize;
            let found = server.master.list(&request.parent, after, limit)?;
            let entry = |(name, vid): (String, VolumeId)| messages::DirEntry { name, volume: vid.0 };
            Ok(encoded(&messages::DirList { entries: found.into_iter().map(entry).collect() }))
        }
        _ => Err(Status::new(Code::Invalid, "a master does not answer that")),
    }
}
