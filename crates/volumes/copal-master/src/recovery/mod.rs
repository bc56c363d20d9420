//! The recovery queue: waiting and running copies, their rate, and the saved orders of administrators.

pub(crate) mod copy_progress;
pub(crate) mod recovery_state;
pub(crate) mod saved_tasks;
