//! What the processes of a cluster say to each other.
//!
//! Messages are specified in `proto/copal/*.proto` and generated into [`messages`]; a [`WireFrame`] carries one
//! of them with the number of its request, its [`Method`] and a checksum. Ids, views and refusals of the
//! rules become messages and come back in `convert`. Replies to operators are JSON of the structs of
//! [`administration`].
//!
//! Format: docs/formats/wire-frame.md
//! Invariants
//! - A frame is believed only after its checksum, and nothing is allocated for a length that was not bounded
//!   before.
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
pub use class::{CallClass, CallCost, SMALL_BYTES};
pub use convert::{answer_of, failure_of, id, is_in_sync, of_id, of_view, role, role_of, view_of};
pub use frame::{FRAME_HEADER_LEN, FrameError, MAX_FRAME_BYTES, MAX_PERMIT_BYTES, WireFrame};
pub use method::{Method, UNKNOWN_CALL};
pub use permit::{RightSet, incarnation_prefix, signed_part, volume_of};
