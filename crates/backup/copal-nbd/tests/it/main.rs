//! The client against a real `qemu-nbd` and against servers that follow a script, honest and not.

mod fuzz;
mod qemu;
mod script;
mod scripted;
mod server;
