//! The engine on the real object layer over memory and fault devices. No layer in between is faked.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod basics;
mod budget;
mod closing;
mod commit;
mod crash;
mod dump;
mod emulated;
mod files;
mod filters;
mod flips;
mod full;
mod gate;
mod golden;
mod heads;
mod history;
mod iterators;
mod kill;
mod leftovers;
mod metamorphic;
mod model;
mod multi_get;
mod page_cache_log;
mod poison;
mod quarantine;
mod space;
mod support;
mod threads;
mod value_ranges;
mod verify;
mod without_threads;
