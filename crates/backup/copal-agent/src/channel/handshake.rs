//! The two messages after which both sides have keys: who connects speaks first.

use super::{Secret, timed};
use snow::{Builder, HandshakeState, StatelessTransportState};
use std::{io, net::TcpStream, time::Instant};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Both sides mix it into their keys, so that no other protocol with this secret can be mistaken for this
/// one.
const PROLOGUE: &[u8] = b"copal agent 1";
/// A public key and a tag.
const HANDSHAKE_BYTES: usize = 32 + 16;

/// Stands in place of the second message where the accepting side has no place for the connection. Not
/// encrypted, since the peer has not shown that it holds the secret; it says nothing but that.
pub(super) const CROWDED: &[u8; HANDSHAKE_BYTES] = b"copal agent: too many connections, come back    ";

/// What a handshake came to.
pub(super) enum Shaken {
    /// Both sides have keys.
    Keys(StatelessTransportState),
    /// The peer does not hold the secret; it was told nothing.
    Stranger,
    /// The peer has no place for this connection.
    Crowded,
}

/// Which side of a handshake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Connecting,
    Accepting,
}

/// Shakes hands until the deadline.
pub(super) fn run(stream: &TcpStream, side: Side, secret: &Secret, deadline: Instant) -> io::Result<Shaken> {
    let mut state = begin(side, secret).map_err(io::Error::other)?;
    let mut message = [0; HANDSHAKE_BYTES];
    if side == Side::Connecting {
        write(stream, &mut state, &mut message, deadline)?;
    }
    timed::read_exact(stream, &mut message, Some(deadline))?;
    if side == Side::Connecting && message == *CROWDED {
        return Ok(Shaken::Crowded);
    }
    if state.read_message(&message, &mut []).is_err() {
        return Ok(Shaken::Stranger);
    }
    if side == Side::Accepting {
        write(stream, &mut state, &mut message, deadline)?;
    }
    state.into_stateless_transport_mode().map(Shaken::Keys).map_err(io::Error::other)
}

fn begin(side: Side, secret: &Secret) -> Result<HandshakeState, snow::Error> {
    let builder = Builder::new(PATTERN.parse()?).psk(0, secret.bytes())?.prologue(PROLOGUE)?;
    match side {
        Side::Connecting => builder.build_initiator(),
        Side::Accepting => builder.build_responder(),
    }
}

fn write(
    stream: &TcpStream,
    state: &mut HandshakeState,
    message: &mut [u8; HANDSHAKE_BYTES],
    deadline: Instant,
) -> io::Result<()> {
    let len = state.write_message(&[], message).map_err(io::Error::other)?;
    assert_eq!(len, HANDSHAKE_BYTES, "both messages of the pattern are a key and a tag");
    timed::write_all(stream, message, deadline)
}
