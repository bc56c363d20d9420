//! The copal command.
fn main() {}
