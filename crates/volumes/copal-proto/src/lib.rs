//! Wire protocol between the processes of a cluster.
//!
//! Messages are specified in `proto/copal/*.proto` and generated into [`messages`]. A [`WireFrame`] carries one
//! message with the number of its request, its [`Method`] and a checksum. `convert` converts ids, views and
//! refusals of the group protocol. Replies to operators are JSON of the structs of [`administration`].
//!
//! Format: docs/formats/wire-frame.md
//! Invariants
//! - A frame is used only after its checksum was verified.
//! - No memory is allocated for a length before the length was bounded.
//!
//! Not here: sockets, TLS, deadlines (`copal-server`, `copal-client`).

pub mod administration;
mod chain;
mod class;
mod convert;
mod frame;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod method;
mod permit;

#[allow(missing_docs, clippy::all, unreachable_pub, unused_qualifications, reason = "generated")]
pub mod messages;

pub use chain::{CHAIN_BYTES, CHAIN_PART_BYTES, ChainBody, ChainError, checked_hops};
pub use class::{CallClass, CallCost, RANGES_MAX, SMALL_BYTES};
pub use convert::{answer_of, failure_of, id, is_in_sync, of_id, of_view, role, role_of, view_of};
pub use frame::{FRAME_HEADER_LEN, FrameError, MAX_FRAME_BYTES, MAX_PERMIT_BYTES, WireFrame};
pub use method::{Method, UNKNOWN_CALL};
pub use permit::{RightSet, incarnation_prefix, signed_part, volume_of};
