//! Socket of a connection: TCP or unix, with separate handles for reading and writing.

use crate::{Address, NbdError};
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
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects. Blocks up to `limit`, since a full accept queue, a name server or an unreachable host may
    /// never answer.
    pub(crate) fn connect(address: &Address, limit: Duration) -> Result<Stream, NbdError> {
        let failed = |source| NbdError::Connect { address: address.to_string(), source: Arc::new(source) };
        let (sender, connected) = sync_channel(1);
        let to = address.clone();
        let connecting = std::thread::Builder::new().name("nbd-connect".to_owned());
        let started = connecting.spawn(move || {
            // After the limit the result is dropped, and the socket with it.
            let _ = sender.send(Stream::connect_to(&to, limit));
        });
        started.map_err(failed)?;
        let connected = connected.recv_timeout(limit);
        connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))).map_err(failed)
    }

    fn connect_to(address: &Address, limit: Duration) -> io::Result<Stream> {
        let (host, port) = match address {
            Address::Unix(path) => return UnixStream::connect(path).map(Stream::Unix),
            Address::Tcp(host, port) => (host.as_str(), *port),
        };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Stream::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The IP address of the peer; `None` for a unix socket.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        match self {
            Stream::Tcp(stream) => Some(stream.peer_addr().ok()?.ip()),
            Stream::Unix(_) => None,
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
        })
    }

    /// Time limit of one read on the socket; shared by all clones.
    pub(crate) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(limit),
            Stream::Unix(stream) => stream.set_read_timeout(limit),
        }
    }

    /// Time limit of one write on the socket; shared by all clones.
    pub(crate) fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(limit),
            Stream::Unix(stream) => stream.set_write_timeout(limit),
        }
    }

    /// Closes both directions for all clones; a reader blocked in another thread wakes up.
    pub(crate) fn shutdown(&self) {
        // The peer may have disconnected already.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buf),
            Stream::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(buf),
            Stream::Unix(stream) => stream.write(buf),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection with one time limit for all reads and writes through it.
pub(crate) struct Limited<'a> {
    stream: &'a mut Stream,
    until: Instant,
}

impl<'a> Limited<'a> {
    pub(crate) fn new(stream: &'a mut Stream, limit: Duration) -> Limited<'a> {
        Limited { stream, until: Instant::now() + limit }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Limited<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buf)
    }
}

impl Write for Limited<'_> {
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
