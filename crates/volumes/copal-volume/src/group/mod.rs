//! Groups of volumes on several members: the rules of client and member, as pure steps.
//!
//! A volume group is a two-phase set of files with unique ids (VOL-10): creates add to one set, deletes to
//! another. A deleted file never comes back, and every merge of two members is a union. There is no primary
//! and no common order. The members agree only on the *view*, by the number of its epoch (VOL-11).
//!
//! Design: docs/design/cluster.md#rules
//! Invariants
//! - The steps do not wait, read a clock or use a network: events go in, actions come out. Servers, the
//!   simulator and the model checker therefore run the same steps.
//!
//! Not here: rows (`copal-data`), messages (`copal-proto`), decisions on views (`copal-master`).

mod client;
mod clocks;
pub mod invariants;
mod member;
mod own_state;
pub mod placement;
pub mod rebalance;
pub mod recovery;
mod role;
mod seal;
mod settle;
mod view;

pub use client::{CallKind, ClientOp, OperationAction, OperationEvent, OperationOutcome, OperationRefusal};
pub use clocks::{
    CLOCK_RIGHT_MS, CLOCK_STEP_MS, MAX_CLOCK_OFF_MS, is_clock_wrong, is_seal_in_future, reference_of,
    without_future,
};
pub use member::{
    AcceptKind, CreateFacts, DeleteFacts, MAX_OP_AGE_MS, MAX_OP_AHEAD_MS, MemberAnswer, check_file_id,
    decide_confirm, decide_copy, decide_create, decide_delete,
};
pub use own_state::{OwnState, own_role};
pub use role::Role;
pub use seal::{
    BUCKET_MS, Bucket, BucketSeal, OperationDigest, OperationRecord, PeerStatus, SEAL_LAG_MS, SealReport,
    stable_point,
};
pub use settle::{NameClaim, RollForward, is_sealed_everywhere, roll_forward, settle_name};
pub use view::{DiskId, Epoch, EpochMatch, GroupId, Incarnation, MAX_GROUP, Term, View, match_epoch};
