//! The client against a real `qemu-nbd` and against servers that follow a script, honest and not.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod fuzz;
mod qemu;
mod script;
mod scripted;
mod server;
