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
//! - `donor` is the serving side: it answers members that resync, and serves the snapshots of `anti_entropy`.
//! - `fetch` transfers the bytes of one file. `group_resync` and `roll_forward` call it.
//! - `anti_entropy` compares files once an hour. It reports a missing file as damage, which wakes `repair`.
//! - `repair` also takes up damage that reads and scrubs find. It drops unreadable rows and wakes
//!   `group_resync`.
//! - `force_accept` replaces a resync by an operator's order. It ends like a resync, with `mark_in_sync`.
//!
//! Rows that a resync persists, and the report between them, in this order
//! 1. `begin_resync`, before the copy, on a member that is not covered: the donor's stable point and seal.
//! 2. `record_in_sync`, after the copy: the donor's seal, "covered", and the epoch of the present view as the
//!    newest epoch in which the member has everything.
//! 3. `BecomeWhole` reports that epoch to the leader. The leader deletes the member's missed epoch.
//! 4. `confirm_in_sync`, after the leader's reply: role N.
//!
//! Words
//! - *Bucket*: operations of one group whose ids lie in the same ten seconds.
//! - *Seal*: end of all buckets below a number. A member accepts no operation of a sealed bucket from
//!   clients. Copies from other members still enter it.
//! - *Stable point*: first bucket of a group that is not yet sealed and equal on all members. Members that
//!   are down count as well.
//! - *Covered* (`is_covered`): the member has every operation below its own stable point. A member becomes
//!   covered in a view in which it is in sync, and by `record_in_sync`. It stays covered while it is down or
//!   recovering. A new member is not covered, and `note_damage` ends the state.
//! - *Generation*: number of repairs of a group since the process started. A repair that begins during a
//!   resync changes the number, and then that resync does not count.
//! - *Missed epoch*: newest epoch in which operations could complete without the member. The leader stores it
//!   until the member's report, and sends it with each view (VOL-15).
//! - *Up*, *takes part*: in role N, R or M in the leader's view. An operation needs the acknowledgement of
//!   every such member.
//! - *Claim*: a live file of a name, with its create. A name with two or more claims is *disputed*.
//!
//! Some names of messages differ: `horizon` is the stable point, `closed_below` the seal, and `whole` means
//! in sync. `BecomeWhole` is the report of step 3, and `gone` means removed.
//!
//! Design: docs/design/cluster.md#resync

pub(crate) mod anti_entropy;
pub(crate) mod donor;
pub(crate) mod fetch;
pub(crate) mod force_accept;
pub(crate) mod gossip;
pub(crate) mod group_resync;
pub(crate) mod in_sync;
pub(crate) mod repair;
pub(crate) mod roll_forward;
