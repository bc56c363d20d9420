//! The socket of a connection: TCP or unix, split into a half that reads and one that writes.

use crate::{Address, NbdError};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(crate) fn connect(address: &Address) -> Result<Stream, NbdError> {
        let connected = match address {
            Address::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).and_then(|stream| {
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }),
            Address::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
        };
        connected.map_err(|source| NbdError::Connect {
            address: address.to_string(),
            source: Arc::new(source),
        })
    }

    pub(crate) fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
        })
    }

    /// Limit of one read or write on the socket; shared by all clones.
    pub(crate) fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(limit)?;
        self.set_write_timeout(limit)
    }

    /// Limit of one read on the socket; shared by all clones.
    pub(crate) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(limit),
            Stream::Unix(stream) => stream.set_read_timeout(limit),
        }
    }

    /// Limit of one write on the socket; shared by all clones.
    pub(crate) fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(limit),
            Stream::Unix(stream) => stream.set_write_timeout(limit),
        }
    }

    /// Ends both directions, for all clones; a reader blocked in another thread wakes up.
    pub(crate) fn shutdown(&self) {
        // The peer may have gone already, which is what we want.
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
