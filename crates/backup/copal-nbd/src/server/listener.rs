//! Listener: a private unix socket, or TCP.

use crate::{NbdError, ServerAddress, stream::SocketStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::ErrorKind,
    net::TcpListener,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// A listening socket. The file of a unix socket is removed on drop.
pub(crate) enum ServerListener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        path: PathBuf,
        /// Device and inode number of the own socket file.
        file: (u64, u64),
    },
}

impl ServerListener {
    /// Listens. The socket file of a process that has ended is replaced.
    pub(crate) fn bind(address: &ServerAddress) -> Result<ServerListener, NbdError> {
        let failed = |source| NbdError::Listen { address: address.to_string(), source: Arc::new(source) };
        match address {
            ServerAddress::Tcp(host, port) => {
                let listener = TcpListener::bind((host.as_str(), *port)).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(ServerListener::Tcp(listener))
            }
            ServerAddress::Unix(path) => {
                remove_stale(path).map_err(failed)?;
                bind_private(path).map_err(failed)
            }
        }
    }

    /// The address for clients, with the port that the system has chosen.
    pub(crate) fn address(&self) -> Result<ServerAddress, NbdError> {
        match self {
            ServerListener::Tcp(listener) => {
                let local = listener.local_addr()?;
                Ok(ServerAddress::Tcp(local.ip().to_string(), local.port()))
            }
            ServerListener::Unix { path, .. } => Ok(ServerAddress::Unix(path.clone())),
        }
    }

    /// Waits up to `most` for the next connection.
    pub(crate) fn accept(&self, most: Duration) -> Result<AcceptResult, NbdError> {
        let fd: BorrowedFd<'_> = match self {
            ServerListener::Tcp(listener) => listener.as_fd(),
            ServerListener::Unix { listener, .. } => listener.as_fd(),
        };
        let limit = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(AcceptResult::None),
            polled => polled.map_err(std::io::Error::from)?,
        };
        let accepted = match self {
            ServerListener::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(false)?;
                Ok(SocketStream::Tcp(stream))
            }),
            ServerListener::Unix { listener, .. } => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(false)?;
                Ok(SocketStream::Unix(stream))
            }),
        };
        match accepted {
            Ok(stream) => Ok(AcceptResult::Stream(stream)),
            Err(error) if is_out_of_descriptors(&error) => {
                tracing::warn!(%error, "connection not accepted; raise the limit of open files");
                // The connection is still pending, so the next poll would return at once.
                std::thread::park_timeout(most);
                Ok(AcceptResult::NoRoom)
            }
            // The client has disconnected already.
            Err(error) => {
                tracing::debug!(%error, "connection not accepted");
                Ok(AcceptResult::None)
            }
        }
    }
}

/// Result of a wait for a connection.
pub(crate) enum AcceptResult {
    Stream(SocketStream),
    None,
    /// A connection is pending, and the system has no descriptor for it.
    NoRoom,
}

fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    let number = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(
        number,
        Some(
            rustix::io::Errno::MFILE
                | rustix::io::Errno::NFILE
                | rustix::io::Errno::NOBUFS
                | rustix::io::Errno::NOMEM
        )
    )
}

impl Drop for ServerListener {
    fn drop(&mut self) {
        if let ServerListener::Unix { path, file, .. } = self
            && identity(path).is_ok_and(|there| there == *file)
        {
            // The file may be gone already, and no other action is possible.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    let meta = path.symlink_metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// Removes a socket file without a listener; anything else makes the bind fail.
fn remove_stale(path: &Path) -> std::io::Result<()> {
    let is_socket = path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket
        && matches!(UnixStream::connect(path), Err(error) if error.kind() == ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Binds under a temporary name, sets the mode, and then links the socket to its path.
fn bind_private(path: &Path) -> std::io::Result<ServerListener> {
    if path.symlink_metadata().is_ok() {
        return Err(std::io::Error::new(
            ErrorKind::AddrInUse,
            "the path exists, and is not a socket without a listener",
        ));
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Process ids are not unique among containers that share the directory.
    let number = getrandom::u64().map_err(|error| std::io::Error::other(error.to_string()))?;
    name.push(format!(".{number:016x}"));
    let unnamed = path.with_file_name(name);
    let listener = UnixListener::bind(&unnamed)?;
    let private = std::fs::Permissions::from_mode(0o600);
    let ready = std::fs::set_permissions(&unnamed, private)
        .and_then(|()| listener.set_nonblocking(true))
        .and_then(|()| identity(&unnamed))
        // Fails if another process was faster.
        .and_then(|file| std::fs::hard_link(&unnamed, path).map(|()| file));
    // Either the second name of the socket, or the name of an unused one.
    let removed = std::fs::remove_file(&unnamed);
    let file = ready?;
    removed?;
    Ok(ServerListener::Unix { listener, path: path.to_owned(), file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_private_replaces_a_stale_one_and_is_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        // A socket file of a process that has ended, without a listener.
        drop(UnixListener::bind(&path).unwrap());
        let address = ServerAddress::Unix(path.clone());
        let listener = ServerListener::bind(&address).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        let accepted = listener.accept(Duration::from_secs(60)).unwrap();
        assert!(matches!(accepted, AcceptResult::Stream(_)));
        // Neither a socket with a listener nor a regular file is replaced.
        assert!(matches!(ServerListener::bind(&address), Err(NbdError::Listen { .. })));
        drop(listener);
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::write(&path, b"mine").unwrap();
        assert!(matches!(ServerListener::bind(&address), Err(NbdError::Listen { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
