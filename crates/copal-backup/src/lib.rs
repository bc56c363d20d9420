//! VM backup: packs, recipes, snapshots, restore, verification, deletion.
#![allow(unused_variables, clippy::todo)]

pub mod error;
pub mod progress;
pub mod repository;
pub mod request;
pub mod retention;
pub mod source;
pub mod target;

pub use copal_chunk::Profile;
pub use error::{Error, Result};
pub use progress::{CancelFlag, Progress, Silent, Stage};
pub use repository::{IndexHome, Repository};
pub use request::*;
