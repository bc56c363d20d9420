//! A connection: made or accepted, then taken apart into a half that reads, a half that writes, and what ends
//! both.

use super::{
    ChannelError, FRAME_BYTES, Secret,
    frame::{self, Opener, Partial, Refusal, Sealer},
    handshake::{self, Shaken, Side},
    timed,
};
use std::{
    fmt,
    io::{self, ErrorKind},
    net::{Shutdown, TcpStream, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For reaching an address.
    pub connect: Duration,
    /// For the handshake, and for saying who one is after it.
    pub handshake: Duration,
    /// For a message, from its first byte to its last.
    pub message: Duration,
    /// For a message that is written, until the system has taken all of it.
    pub write: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(5),
            handshake: Duration::from_secs(10),
            message: Duration::from_secs(30),
            write: Duration::from_secs(10),
        }
    }
}

/// How often the system asks an idle peer whether it lives, and after how much silence first.
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_TRIES: u32 = 3;

/// Bytes that went over connections, frames and tags included.
#[derive(Debug, Default)]
pub struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Traffic {
    /// Bytes sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes received.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// A connection whose peer holds the secret.
pub struct Channel {
    /// The half that reads.
    pub reader: ChannelReader,
    /// The half that writes.
    pub writer: ChannelWriter,
    /// Ends both halves, from any thread.
    pub closer: Closer,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("address", &self.reader.address).finish_non_exhaustive()
    }
}

impl Channel {
    /// Reaches `address` (host:port) and shakes hands. Blocks up to the limits of `timeouts` for each.
    /// # Errors
    /// `Connect`: nobody is there. `Secret`: the peer ended the handshake, as it does when secrets differ.
    /// `Crowded`: it has no place for another connection now.
    pub fn connect(
        address: &str,
        secret: &Secret,
        timeouts: &Timeouts,
        traffic: &Arc<Traffic>,
    ) -> Result<Channel, ChannelError> {
        let stream = reach(address, timeouts.connect)
            .map_err(|source| ChannelError::Connect { address: address.to_owned(), source })?;
        Channel::begin(Arc::new(stream), address.to_owned(), Side::Connecting, secret, timeouts, traffic)
    }

    /// Shakes hands with a peer that has connected.
    /// # Errors
    /// `Secret`: it does not hold ours; it was told nothing. `TimedOut`: it said too little in time.
    pub fn accept(
        stream: impl Into<Arc<TcpStream>>,
        secret: &Secret,
        timeouts: &Timeouts,
        traffic: &Arc<Traffic>,
    ) -> Result<Channel, ChannelError> {
        let stream = stream.into();
        let address =
            stream.peer_addr().map_or_else(|_| "an unknown peer".to_owned(), |peer| peer.to_string());
        Channel::begin(stream, address, Side::Accepting, secret, timeouts, traffic)
    }

    /// Tells a peer that has not shaken hands that there is no place for it, and ends the connection. Never
    /// waits.
    pub(crate) fn turn_away(stream: &TcpStream) {
        use rustix::net::{SendFlags, send};
        // The peer learns it or not; the connection ends either way.
        let _ = send(stream, handshake::CROWDED, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn begin(
        stream: Arc<TcpStream>,
        address: String,
        side: Side,
        secret: &Secret,
        timeouts: &Timeouts,
        traffic: &Arc<Traffic>,
    ) -> Result<Channel, ChannelError> {
        let deadline = Instant::now() + timeouts.handshake;
        let found = prepare(&stream).and_then(|()| handshake::run(&stream, side, secret, deadline));
        let keys = match found {
            Ok(Shaken::Keys(keys)) => Arc::new(keys),
            Ok(Shaken::Stranger) => return Err(ChannelError::Secret { address }),
            Ok(Shaken::Crowded) => return Err(ChannelError::Crowded { address }),
            // An agent says nothing to whom it does not know.
            Err(error) if side == Side::Connecting && is_end(&error) => {
                return Err(ChannelError::Secret { address });
            }
            Err(error) => {
                let seconds = timeouts.handshake.as_secs();
                return Err(ChannelError::of_io(error, &address, "the handshake", seconds));
            }
        };
        let address: Arc<str> = address.into();
        Ok(Channel {
            reader: ChannelReader {
                stream: Arc::clone(&stream),
                address: Arc::clone(&address),
                opener: Opener::new(Arc::clone(&keys)),
                frame: Vec::new(),
                plain: Vec::new(),
                limit: timeouts.message,
                traffic: Arc::clone(traffic),
            },
            writer: ChannelWriter {
                stream: Arc::clone(&stream),
                address,
                sealer: Sealer::new(keys),
                sealed: Vec::new(),
                written: 0,
                limit: timeouts.write,
                traffic: Arc::clone(traffic),
            },
            closer: Closer(stream),
        })
    }
}

fn reach(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for socket in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_TRIES)?;
    Ok(())
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// The half of a connection that reads. Keeps 32 KiB and a message while one comes, and nothing while none
/// does: most connections of a large fleet are idle.
pub struct ChannelReader {
    stream: Arc<TcpStream>,
    address: Arc<str>,
    opener: Opener,
    frame: Vec<u8>,
    plain: Vec<u8>,
    limit: Duration,
    traffic: Arc<Traffic>,
}

impl ChannelReader {
    /// The peer, as it was given or as it connected.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for a message to begin, for ever or up to `patience`, then for its end up to the time limit of
    /// messages.
    /// # Errors
    /// After any, the connection is of no use.
    pub fn receive(&mut self, patience: Option<Duration>) -> Result<Vec<u8>, ChannelError> {
        let begin = patience.map(|patience| Instant::now() + patience);
        let mut head = [0; frame::LENGTH_BYTES];
        timed::read_exact(&self.stream, &mut head[..1], begin)
            .map_err(|error| self.failed(error, patience.unwrap_or_default()))?;
        let end = Some(Instant::now() + self.limit);
        let mut message = Partial::default();
        let mut known = 1;
        while !message.is_whole() {
            timed::read_exact(&self.stream, &mut head[known..], end)
                .map_err(|error| self.failed(error, self.limit))?;
            known = 0;
            self.open_frame(u16::from_le_bytes(head), end, &mut message)?;
        }
        (self.frame, self.plain) = (Vec::new(), Vec::new());
        Ok(message.bytes)
    }

    fn open_frame(
        &mut self,
        len: u16,
        end: Option<Instant>,
        message: &mut Partial,
    ) -> Result<(), ChannelError> {
        let len = usize::from(len);
        let broken = |what| ChannelError::Broken { address: self.address.to_string(), what };
        if !(frame::TAG_BYTES..=FRAME_BYTES).contains(&len) {
            return Err(broken("length of a frame"));
        }
        self.frame.resize(FRAME_BYTES, 0);
        self.plain.resize(FRAME_BYTES, 0);
        let frame = &mut self.frame[..len];
        timed::read_exact(&self.stream, frame, end)
            .map_err(|error| ChannelError::of_io(error, &self.address, "a message", self.limit.as_secs()))?;
        self.traffic.received.fetch_add((frame::LENGTH_BYTES + len) as u64, Ordering::Relaxed);
        let opened = self.opener.open(frame, &mut self.plain, message);
        opened.map_err(|refusal| match refusal {
            Refusal::Seal => broken("seal of a frame"),
            Refusal::Shape => broken("frame"),
            Refusal::TooLong(len) => ChannelError::TooLong {
                address: self.address.to_string(),
                len: u64::from(len),
                max: super::MESSAGE_BYTES as u64,
            },
        })
    }

    fn failed(&self, error: io::Error, limit: Duration) -> ChannelError {
        ChannelError::of_io(error, &self.address, "a message", limit.as_secs())
    }
}

/// The half of a connection that writes.
pub struct ChannelWriter {
    stream: Arc<TcpStream>,
    address: Arc<str>,
    sealer: Sealer,
    /// Frames, of which the first `written` bytes are gone.
    sealed: Vec<u8>,
    written: usize,
    limit: Duration,
    traffic: Arc<Traffic>,
}

/// What [`ChannelWriter::push`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// Nothing is left.
    All,
    /// Some bytes went, some are left.
    Some,
    /// The peer takes nothing now.
    Nothing,
}

impl ChannelWriter {
    /// Seals `message` and writes all of it, up to the time limit.
    /// # Errors
    /// After any, the connection is of no use.
    ///
    /// # Panics
    /// When the message is longer than any may be: our own bug.
    pub fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        self.seal(message);
        let deadline = Instant::now() + self.limit;
        timed::write_all(&self.stream, &self.sealed[self.written..], deadline).map_err(|error| {
            ChannelError::of_io(error, &self.address, "taking a message", self.limit.as_secs())
        })?;
        self.count(self.sealed.len() - self.written);
        self.forget();
        Ok(())
    }

    /// Seals `message` behind what is not written yet.
    ///
    /// # Panics
    /// As [`ChannelWriter::send`].
    pub fn seal(&mut self, message: &[u8]) {
        self.sealer.seal(message, &mut self.sealed);
    }

    /// Bytes that are sealed and not written.
    #[must_use]
    pub fn unwritten_bytes(&self) -> usize {
        self.sealed.len() - self.written
    }

    /// Writes what the peer takes at once; never waits.
    /// # Errors
    /// After any, the connection is of no use.
    pub fn push(&mut self) -> Result<Pushed, ChannelError> {
        if self.unwritten_bytes() == 0 {
            return Ok(Pushed::All);
        }
        use rustix::net::{SendFlags, send};
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&*self.stream, &self.sealed[self.written..], flags) {
            Ok(sent) => {
                self.count(sent);
                self.written += sent;
                if self.unwritten_bytes() > 0 {
                    return Ok(Pushed::Some);
                }
                self.forget();
                Ok(Pushed::All)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Pushed::Nothing),
            Err(error) => {
                let seconds = self.limit.as_secs();
                Err(ChannelError::of_io(error.into(), &self.address, "taking a message", seconds))
            }
        }
    }

    /// Announces a message of `len` bytes and sends one of them: what no agent does.
    #[cfg(test)]
    pub(crate) fn announce(&mut self, len: u32) -> Result<(), ChannelError> {
        let [a, b, c, d] = len.to_le_bytes();
        self.sealer.frame(&[a, b, c, d, 1], &mut self.sealed);
        self.push().map(drop)
    }

    fn count(&self, sent: usize) {
        self.traffic.sent.fetch_add(sent as u64, Ordering::Relaxed);
    }

    /// A large message is rare: its memory is not kept.
    fn forget(&mut self) {
        self.sealed.clear();
        self.sealed.shrink_to(2 * FRAME_BYTES);
        self.written = 0;
    }
}

/// Ends a connection: whoever reads or writes it is woken with an error.
#[derive(Clone, Debug)]
pub struct Closer(Arc<TcpStream>);

impl Closer {
    /// Ends it. Again is nothing.
    pub fn close(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
