//! Agreement of replicas: how a member of a group gets the operations that it lacks.
//!
//! The code and the messages call a replica on a disk a *member*, and the leader the *master*.
//!
//! Flow
//! - `gossip` runs every three seconds. It seals buckets, exchanges digests of sealed buckets with the other
//!   members, and raises the stable point. Then it calls `roll_forward` for each group.
//! - `roll_forward` copies operations that all participating members have sealed and that this member lacks.
//! - `group_resync` resyncs each group in which this member is not in sync, from one donor at a time. A new
//!   view, a repair and a timer of one second wake it.
//! - `force_accept` replaces a resync by an operator's order.
//! - `in_sync` ends a resync: it persists that the member has everything, reports this, and sets role N. Its
//!   three callers are the comparison and the copy of `group_resync`, and `force_accept`.
//! - `donor` is the serving side: it answers members that resync, and serves the snapshots of `anti_entropy`.
//! - `fetch` transfers the bytes of one file. `group_resync` and `roll_forward` call it.
//! - `journal_copy` finds the entries of another member that this one lacks, and translates journal entries
//!   from and to messages. All copying and serving modules use it.
//! - `anti_entropy` compares files once an hour. It reports a missing file as damage, which wakes `repair`.
//! - `repair` also takes up damage that reads and scrubs find. If another member replies that it is in sync,
//!   `repair` drops unreadable rows and wakes `group_resync`.
//!
//! Steps of a resync, and the effect of a crash after each
//! 1. `begin_resync`, before the copy, has an effect only on a member that is not covered. It persists the
//!    donor's stable point and seal. After a crash the resync begins again, and copied operations stay.
//! 2. `persist_has_everything`, after the copy, persists the donor's seal, "covered", and the epoch of the
//!    present view: in that epoch the member *has everything* (VOL-14). After a crash the member resyncs
//!    again, and copies only operations that its journal lacks.
//! 3. `BecomeWhole` reports that epoch to the leader. The leader durably deletes the member's missed epoch. If
//!    operations can complete from then on, it stores that members which are down miss them. After a crash
//!    the member takes role N in the next view, if that lists no missed epoch for it.
//! 4. `confirm_in_sync`, after the leader's reply, persists role N. Only now is the member *in sync*.
//!
//! Words
//! - *Bucket*: operations of one group whose ids lie in the same ten seconds.
//! - *Seal*: end of all buckets below a number. A member accepts no operation of a sealed bucket from
//!   clients. Copies from other members still enter it.
//! - *Stable point*: first bucket of a group that is not yet both sealed and equal on all members. Members that
//!   are down count as well.
//! - *Covered* (`is_covered`): the member has every operation below its own stable point. A member becomes
//!   covered in a view in which it is in sync, and in step 2. It stays covered while it is down or
//!   recovering. A new member is not covered, and `note_damage` ends the state.
//! - *Generation*: number of repairs of a group since the process started. A repair that begins during a
//!   resync changes the number, and then that resync does not count.
//! - *Missed epoch*: newest epoch in which operations could complete without the member. The leader stores it
//!   until the member's report, and sends it with each view (VOL-15).
//! - *Up*, *takes part*: in role N, R or M in the leader's view. An operation needs the acknowledgement of
//!   every such member.
//! - *Claim*: a live file of a name, with its create. A name with two or more claims is *disputed*.
//!
//! Some fields of messages have other names: `horizon` is the stable point, `closed_below` the seal, and
//! `gone` means removed. `BecomeWhole` is the report of step 3.
//!
//! Design: docs/design/cluster.md#resync

pub(crate) mod anti_entropy;
pub(crate) mod donor;
pub(crate) mod fetch;
pub(crate) mod force_accept;
pub(crate) mod gossip;
pub(crate) mod group_resync;
pub(crate) mod in_sync;
mod journal_copy;
pub(crate) mod repair;
pub(crate) mod roll_forward;
