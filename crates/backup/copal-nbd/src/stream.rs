//! Socket of a connection: TCP or unix, with separate handles for reading and writing.

use crate::{NbdError, ServerAddress};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    sync::{Arc, mpsc::sync_channel},
    time::{Duration, Instant},
};

/// Least transfer rate of a peer. Beyond one time limit, a slower peer is disconnected.
pub(crate) const LEAST_BYTES_PER_S: u64 = 64 << 10;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum SocketStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl SocketStream {
    /// Connects. Blocks up to `limit`, since a full accept queue, a name server or an unreachable host may
    /// never answer.
    pub(crate) fn connect(address: &ServerAddress, limit: Duration) -> Result<SocketStream, NbdError> {
        let failed = |source| NbdError::Connect { address: address.to_string(), source: Arc::new(source) };
        let (sender, connected) = sync_channel(1);
        let to = address.clone();
        let connecting = std::thread::Builder::new().name("nbd-connect".to_owned());
        let started = connecting.spawn(move || {
            // After the limit the result is dropped, and the socket with it.
            let _ = sender.send(SocketStream::connect_to(&to, limit));
        });
        started.map_err(failed)?;
        let connected = connected.recv_timeout(limit);
        connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))).map_err(failed)
    }

    fn connect_to(address: &ServerAddress, limit: Duration) -> io::Result<SocketStream> {
        let (host, port) = match address {
            ServerAddress::Unix(path) => return UnixStream::connect(path).map(SocketStream::Unix),
            ServerAddress::Tcp(host, port) => (host.as_str(), *port),
        };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(SocketStream::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The IP address of the peer; `None` for a unix socket.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        match self {
            SocketStream::Tcp(stream) => Some(stream.peer_addr().ok()?.ip()),
            SocketStream::Unix(_) => None,
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<SocketStream> {
        Ok(match self {
            SocketStream::Tcp(stream) => SocketStream::Tcp(stream.try_clone()?),
            SocketStream::Unix(stream) => SocketStream::Unix(stream.try_clone()?),
        })
    }

    /// Time limit of one read on the socket; shared by all clones.
    pub(crate) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            SocketStream::Tcp(stream) => stream.set_read_timeout(limit),
            SocketStream::Unix(stream) => stream.set_read_timeout(limit),
        }
    }

    /// Time limit of one write on the socket; shared by all clones.
    pub(crate) fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            SocketStream::Tcp(stream) => stream.set_write_timeout(limit),
            SocketStream::Unix(stream) => stream.set_write_timeout(limit),
        }
    }

    /// Closes both directions for all clones; a reader blocked in another thread wakes up.
    pub(crate) fn shutdown(&self) {
        // The peer may have disconnected already.
        let _ = match self {
            SocketStream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            SocketStream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for SocketStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            SocketStream::Tcp(stream) => stream.read(buf),
            SocketStream::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for SocketStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            SocketStream::Tcp(stream) => stream.write(buf),
            SocketStream::Unix(stream) => stream.write(buf),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection with one time limit for all reads and writes through it.
pub(crate) struct LimitedStream<'a> {
    stream: &'a mut SocketStream,
    until: Instant,
}

impl<'a> LimitedStream<'a> {
    pub(crate) fn new(stream: &'a mut SocketStream, limit: Duration) -> LimitedStream<'a> {
        LimitedStream { stream, until: Instant::now() + limit }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for LimitedStream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buf)
    }
}

impl Write for LimitedStream<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends all parts. The peer must receive them at the least rate; `limit` is the socket's own limit of one
/// write.
/// # Errors
/// `TimedOut`; those of the socket.
pub(crate) fn send_all<W: Write>(to: &mut W, parts: &[&[u8]], limit: Duration) -> io::Result<()> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let most = limit + Duration::from_secs(length as u64 / LEAST_BYTES_PER_S);
    let began = Instant::now();
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            match to.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if !rest.is_empty() && began.elapsed() > most {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
    Ok(())
}
