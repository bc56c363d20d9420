//! The client against `qemu-nbd` and against scripted servers, correct and faulty ones; the server against
//! clients.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod fuzz;
mod qemu;
mod script;
mod scripted;
mod server;
