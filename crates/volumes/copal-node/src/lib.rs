//! One process on one store: connects the arguments of a program with the layers below it.
//!
//! A program names a directory or a block device.
//! - [`StoreLocation`] finds the store there.
//! - [`UnfinishedStore`] makes a new one; after a crash it is complete or absent.
//! - [`Stack`] opens objects, engine and volumes on it, and closes them in reverse order.
//! - [`ProbePlace`] has the range in which a probe of a disk may write.
//! - [`IdleMarker`] marks an idle store as cleanly ended.
//! - [`MemoryShares`] divides the memory of the process.
//!
//! ```no_run
//! use copal_node::{Access, Patience, Stack, StoreLocation, StoreOptions};
//!
//! let options = StoreOptions::default();
//! let location = StoreLocation::find("/backup/copal".as_ref())?;
//! let opened = location.open(Access::Write, &options, &Patience::none())?;
//! let stack = Stack::open(location.path(), opened, Access::Write, 32 << 20)?;
//! println!("{:?}", stack.volumes().uuid()?);
//! stack.close(|_| ())?;
//! # Ok::<(), copal_node::NodeError>(())
//! ```
//!
//! Invariants
//! - One process at a time has a store open for writing; others learn its holder.
//! - A store whose creation was interrupted is never found as a store.
//!
//! Not here: contents of the volumes, exit codes, messages with command-line options.

mod device_signature;
mod directory_lock;
mod error;
mod holder;
mod idle_marker;
mod location;
mod member_stack;
mod memory_shares;
mod patience;
mod stack;
mod unfinished_store;

pub use directory_lock::DirectoryLock;
pub use error::{MissingStore, NodeError};
pub use holder::{LockHolder, holders};
pub use idle_marker::IdleMarker;
pub use location::probe_place::ProbePlace;
pub use location::{Access, OpenedStore, StoreLocation, StoreOptions, refuse_taken};
pub use member_stack::MemberStack;
pub use memory_shares::{MemoryShares, PairShares};
pub use patience::Patience;
pub use stack::Stack;
pub use unfinished_store::{NewStore, UnfinishedStore};
