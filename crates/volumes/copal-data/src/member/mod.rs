//! What a data server keeps of the groups its disk is a member of.
//!
//! The rows of files are those of the embedded store; beside them stand what was deleted, a journal of every
//! operation, and what the member knows about itself. The rules (`copal_volume::group`) decide; here their
//! facts are looked up and their decisions written, one batch for many operations of a group.
//!
//! Design: docs/design/cluster.md#rules VOL-10, VOL-11, VOL-13, VOL-14
//! Invariants
//! - An operation and its journal row are one batch; Ok is said when it is durable (VOL-13).
//! - A file that stands among the deleted is never written again.
//! - An id of a file belongs to one name of one volume (VOL-72).
//! - The epoch of a group never falls.
//!
//! Not here: who sends operations and learns their answers, which views there are (`copal-server`).

mod apply;
mod closing;
mod damage;
mod depth;
mod digests;
mod facts;
mod file_ids;
mod identity;
mod journal_entry;
mod line;
mod member_clock;
mod operation;
mod reads;
mod recent_files;
mod roles;
mod room;
mod rows;
mod stage;
mod store;
mod union;
mod upload_expiry;
mod upload_rows;
mod uploads;
mod verify;
mod volumes;
mod whole;
mod work;

pub use closing::Disputed;
pub use damage::{GivenUp, Scrubbing};
pub use depth::JournalDepth;
pub use journal_entry::JournalEntry;
pub use operation::{Body, NewHead, NotHeld, Operation, Reply};
pub use reads::Known;
pub use roles::{Membership, ToldView};
pub use stage::Piece;
pub use store::MemberStore;
pub use union::{GroupSnapshot, SnapshotEntry};
pub use uploads::UploadOrigin;
pub use verify::{Span, Verified};
pub use volumes::Told;
pub use whole::Taken;
pub use work::Work;

#[cfg(test)]
mod tests;
