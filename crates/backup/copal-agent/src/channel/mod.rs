//! Connections between agents: encrypted, authenticated on both sides by one secret, blocking, over TCP.
//!
//! Noise `NNpsk0` with the domain's secret as the pre-shared key. The first message of a handshake is sealed
//! with it already: who does not hold the secret is not answered, and who answers has shown that it does.
//!
//! On the wire: frames of a length (2 bytes) and that many bytes of Noise. In the frames of one direction
//! stand messages one after another, each begun by its length (4 bytes) at the start of a frame.
//!
//! Invariants
//! - No length that a peer sends sizes anything before it is checked: frames against [`FRAME_BYTES`],
//!   messages against [`MESSAGE_BYTES`], and a message grows only as its frames open.
//! - Nothing but a waiting peer may take its time: a frame or message that has begun ends within the time
//!   limit.
//! - The secret appears in no log and no `Debug` output.
//!
//! Not here: what the messages say (`wire`), who the peer is among the members (`greeting`).

mod connection;
mod error;
mod frame;
mod handshake;
mod secret;
mod timed;

#[cfg(test)]
mod tests;

pub use connection::{Channel, ChannelReader, ChannelWriter, Closer, Pushed, Timeouts, Traffic};
pub use error::ChannelError;
pub use secret::Secret;

/// Longest frame, its tag included.
pub const FRAME_BYTES: usize = 16 << 10;
/// Longest message.
pub const MESSAGE_BYTES: usize = 1 << 20;
