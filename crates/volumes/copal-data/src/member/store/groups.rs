//! API of a disk's groups: identity, views, seals, resync state and removed volumes.
//!
//! Not here: the mechanisms; each method calls the function of its module.

use super::MemberStore;
use crate::format::MemberIdentity;
use crate::member::{
    AssignedView, DisputedName, GroupMembership, JournalDepth, JournalEntry, ResyncedGroup, VolumeNotice,
    identity, in_sync, journal_depth, roles, seal, volumes,
};
use copal_volume::{
    FileId, VolumeError, VolumeId,
    group::{Bucket, BucketSeal, Epoch, GroupId, NameClaim, OperationDigest, PeerStatus, Role, Term},
};
use std::collections::BTreeMap;

impl MemberStore {
    /// Removed volumes of a group, for a new member.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn removed_volumes(&self, group: GroupId) -> Result<Vec<VolumeId>, VolumeError> {
        volumes::removed_volumes(&self.core, group)
    }

    /// Applies a notice durably. Returns whether the volume has files here. Blocks until no operation of its
    /// group is under way.
    /// # Errors
    /// `Corrupt`, `NoSpace`, `Failed`.
    pub fn note_volume(&self, vid: VolumeId, notice: VolumeNotice) -> Result<bool, VolumeError> {
        volumes::note_volume(&self.core, vid, notice)
    }

    /// Seals the due buckets of all groups that have operations in them, or that others have sealed further:
    /// `peer_seals` has those seals by group. The earlier of the cluster's clock and this machine's own determines
    /// the due buckets (VOL-42). It is one durable write, or none if nothing changes, so an idle group costs
    /// nothing. Expired uploads are freed. Returns groups with a journal.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn seal_due(&self, peer_seals: &BTreeMap<GroupId, BucketSeal>) -> Result<Vec<GroupId>, VolumeError> {
        seal::seal_due(&self.core, peer_seals)
    }

    /// The status of this member for its peers, with digests from the stable point on; `None`: not a member.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn peer_status(&self, group: GroupId, seed: u64) -> Result<Option<PeerStatus>, VolumeError> {
        seal::peer_status(&self.core, group, seed)
    }

    /// Digest of all operations from a bucket on, unsealed ones included, for the comparison after a member's
    /// return.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn digest_from(
        &self,
        group: GroupId,
        from: Bucket,
        seed: u64,
    ) -> Result<OperationDigest, VolumeError> {
        seal::digest_from(&self.core, group, from, seed)
    }

    /// Raises the stable point of a group, at most to its seal, and cuts rows well below it, in several
    /// batches.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn raise_stable_point(&self, group: GroupId, stable_point: Bucket) -> Result<(), VolumeError> {
        seal::raise_stable_point(&self.core, group, stable_point)
    }

    /// Prepares the copy of everything from a donor. Below the donor's stable point files are copied instead
    /// of operations, and this member's own operations there are discarded. From now on it accepts nothing
    /// from clients in buckets that the donor has sealed.
    /// # Errors
    /// `Corrupt`, `NoSpace`, `Failed`.
    pub fn begin_resync(
        &self,
        group: GroupId,
        stable_point: Bucket,
        closed: BucketSeal,
    ) -> Result<(), VolumeError> {
        seal::begin_resync(&self.core, group, stable_point, closed)
    }

    /// Up to `limit` operations of one bucket above a key.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn bucket_operations(
        &self,
        group: GroupId,
        bucket: Bucket,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<JournalEntry>, VolumeError> {
        seal::bucket_operations(&self.core, group, bucket, after, limit)
    }

    /// The live file of a name, with its create.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn claim(&self, vid: VolumeId, name: &[u8]) -> Result<Option<NameClaim>, VolumeError> {
        seal::claim(&self.core, vid, name)
    }

    /// Up to `limit` names of a group with more than one live file, each with all its files.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn disputed_names(&self, group: GroupId, limit: usize) -> Result<Vec<DisputedName>, VolumeError> {
        seal::disputed_names(&self.core, group, limit)
    }

    /// Whether a file can never be live again: it has a tombstone, or its volume was removed.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn is_deleted_or_removed(&self, vid: VolumeId, fid: FileId) -> Result<bool, VolumeError> {
        seal::is_deleted_or_removed(&self.core, vid, fid)
    }

    /// As [`MemberStore::is_deleted_or_removed`], for a file with a known name: a tombstone under another
    /// name does not count.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn is_deleted_or_removed_by_name(
        &self,
        vid: VolumeId,
        name: &[u8],
        fid: FileId,
    ) -> Result<bool, VolumeError> {
        seal::is_deleted_or_removed_by_name(&self.core, vid, name, fid)
    }

    /// Whether this journal lacks an operation of another member. Operations that every member has do not
    /// count.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn lacks_operation(&self, group: GroupId, entry: &JournalEntry) -> Result<bool, VolumeError> {
        seal::lacks_operation(&self.core, group, entry)
    }

    /// Whether any group has a seal in the future of the cluster's clock. The next view ignores such a seal.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn has_future_seals(&self) -> Result<bool, VolumeError> {
        seal::has_future_seals(&self.core)
    }

    /// Whether a seal from another member is in the future of the cluster's clock.
    pub fn is_seal_in_future(&self, seal: BucketSeal) -> bool {
        seal::is_peer_seal_in_future(&self.core, seal)
    }

    /// All groups of this disk.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn memberships(&self) -> Result<Vec<GroupMembership>, VolumeError> {
        roles::memberships(&self.core)
    }

    /// The state of this disk in a group; `None`: it is not a member.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn membership(&self, group: GroupId) -> Result<Option<GroupMembership>, VolumeError> {
        roles::membership(&self.core, group)
    }

    /// Flushes the memtables, so that [`MemberStore::group_bytes`] counts their rows. Blocks.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn flush(&self) -> Result<(), VolumeError> {
        roles::flush(&self.core)
    }

    /// Approximate bytes of a group's files, without keys that are in memory only. Reads nothing from the
    /// device.
    pub fn group_bytes(&self, group: GroupId) -> u64 {
        roles::group_bytes(&self.core, group)
    }

    /// Enters a newer view. Returns when no operation of an older view is under way and the new state is
    /// durable. An older view changes nothing.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn enter_view(
        &self,
        group: GroupId,
        epoch: Epoch,
        role: Role,
    ) -> Result<GroupMembership, VolumeError> {
        roles::enter_view(&self.core, group, epoch, role)
    }

    /// Enters many newer views with the roles of the rules (`own_role`), in one durable write. Returns the
    /// new ones.
    /// # Errors
    /// As [`MemberStore::enter_view`].
    pub fn enter_views(&self, views: &[AssignedView]) -> Result<Vec<GroupMembership>, VolumeError> {
        roles::enter_views(&self.core, views)
    }

    /// Leaves a group. All of its rows are deleted, so none of them decides anything if the disk joins the
    /// group again.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn leave(&self, group: GroupId) -> Result<(), VolumeError> {
        roles::leave(&self.core, group)
    }

    /// Sets a damaged group out of sync until its next resync.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn note_damage(&self, group: GroupId) -> Result<(), VolumeError> {
        roles::note_damage(&self.core, group)
    }

    /// Counts up to `limit` operations in the journals of all groups. Reads their keys from the device.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn journal_depth(&self, limit: u64) -> Result<JournalDepth, VolumeError> {
        journal_depth::journal_depth(&self.core, limit)
    }

    /// Persists that this member has everything of these groups in its present epoch, in one durable write.
    /// Since the snapshots, no operation could complete without this member. It is persisted before the report
    /// to the leader, since the reply may be lost (VOL-16). The seals of the donors become this member's
    /// (VOL-17). Returns the groups to report: none with two files of a name, and none with another epoch.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn persist_has_everything(&self, resynced: &[ResyncedGroup]) -> Result<Vec<GroupId>, VolumeError> {
        in_sync::persist_has_everything(&self.core, resynced)
    }

    /// Sets these groups in sync after the leader has recorded that. A group stays out of sync if a name has
    /// two files by now, if damage was found since, or if the epoch has changed. Returns the state in each.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn confirm_in_sync(
        &self,
        recorded: &[(GroupId, Epoch)],
    ) -> Result<Vec<GroupMembership>, VolumeError> {
        in_sync::confirm_in_sync(&self.core, recorded)
    }

    /// The identity of the disk; `None`: it belongs to no server yet.
    /// # Errors
    /// `Corrupt`, also for the store of an embedded node; `Failed`.
    pub fn identity(&self) -> Result<Option<MemberIdentity>, VolumeError> {
        identity::read_identity(&self.core)
    }

    /// Assigns the disk to a server, before its first boot.
    /// # Errors
    /// `Denied`: it belongs to a server. `NoSpace`, `Failed`.
    pub fn assign(&self, identity: &MemberIdentity) -> Result<(), VolumeError> {
        identity::assign(&self.core, identity)
    }

    /// Begins a boot with a new incarnation, durable before it is sent anywhere. `drawn` is random.
    /// # Errors
    /// `Corrupt`: the disk belongs to no server. `NoSpace`, `Failed`.
    pub fn boot(&self, drawn: u64) -> Result<MemberIdentity, VolumeError> {
        identity::boot(&self.core, drawn)
    }

    /// Stores the term of a leader, durably, before any of its orders is executed. `false`: the term is older
    /// than an accepted one, and its orders must be refused.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn accept_term(&self, term: Term) -> Result<bool, VolumeError> {
        identity::accept_term(&self.core, term)
    }

    /// The newest accepted term; 0: none.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn term(&self) -> Result<Term, VolumeError> {
        identity::term(&self.core)
    }
}
