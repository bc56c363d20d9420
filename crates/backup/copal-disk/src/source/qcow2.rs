//! qcow2 source: an image that is read through its own `qemu-nbd`.
//!
//! The format has backing files, compression, encryption and snapshots, and QEMU reads all of them. One
//! `qemu-nbd --read-only` per image is started on a unix socket in a private directory. It serves this
//! process alone.
//!
//! Invariants
//! - `qemu-nbd` does not outlive this process. It is killed when the source is dropped. It serves one client
//!   and then exits, so it also ends when this process is killed.
//! - The socket listens before `qemu-nbd` starts and is passed to it as an open file, so nothing has to wait
//!   for it. Its directory is removed once the connection stands.
//! - It inherits only the environment variables of `programs`, and so no password.
//! - Every file of the image is watched (`chain`): the server would not detect a change.
//! - Ctrl-C on the terminal does not reach the server: it runs in its own process group.

use super::{
    Extent, Source, SourceError, bitmaps,
    chain::ImageChain,
    nbd::{NbdSource, ReadMode},
    programs,
};
use copal_nbd::{ServerAddress, Uri};
use std::{
    io::Read,
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, net::UnixListener, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

/// Longest directory name of a unix socket; the rest of the path limit is for the file name.
const SOCKET_DIR_BYTES: usize = 80;
/// Bytes of the server's error output that are kept.
const STDERR_BYTES: u64 = 4096;

/// A qcow2 image behind its own `qemu-nbd`.
pub struct Qcow2Source {
    // Dropped first: closing the connection lets the server end by itself.
    export: NbdSource,
    _server: ServerProcess,
    chain: ImageChain,
}

/// Bitmaps that cannot be used, and why.
pub(super) type UnusableBitmaps<'a> = Vec<(&'a str, String)>;

impl Qcow2Source {
    /// Starts `qemu-nbd` for the image and connects to it. If a persistent dirty bitmap is named, it is
    /// exported too.
    ///
    /// # Errors
    /// `qemu-nbd` is not installed, or refuses the image or the bitmap. The message contains its error
    /// output.
    pub(super) fn open(path: &Path, bitmap: Option<&str>) -> Result<Qcow2Source, SourceError> {
        // Opened first, so that an unreadable file is reported by Copal and not by a helper.
        let chain = ImageChain::open(path)?;
        let program = programs::find("qemu-nbd").ok_or_else(|| SourceError::Unusable {
            reason: format!(
                "{} is a qcow2 image, which Copal reads through qemu-nbd, and that is not installed; \
                 run `apt install qemu-utils`",
                path.display()
            ),
        })?;
        // Direct I/O where the file system supports it; otherwise qemu-nbd reports an error.
        let (export, server) = match start(&program, path, bitmap, "none") {
            Err(error) if error.to_string().contains("O_DIRECT") => {
                start(&program, path, bitmap, "writeback")
            }
            other => other,
        }?;
        Ok(Qcow2Source { export, _server: server, chain })
    }

    /// Opens the image and exports the first usable bitmap of those named. Returns the reason for each
    /// unusable one.
    ///
    /// # Errors
    /// As [`Qcow2Source::open`] without a bitmap.
    pub(super) fn open_with_bitmaps<'a>(
        path: &Path,
        wanted: &[&'a str],
    ) -> Result<(Qcow2Source, UnusableBitmaps<'a>), SourceError> {
        let listed = if wanted.is_empty() { None } else { bitmaps::list(path) };
        let check = |name: &&'a str| Some((*name, bitmaps::unusable_reason(listed.as_ref()?, name)?));
        let mut unusable: Vec<_> = wanted.iter().filter_map(check).collect();
        let usable = wanted.iter().find(|name| unusable.iter().all(|(bad, _)| bad != *name));
        let Some(usable) = usable else {
            return Ok((Qcow2Source::open(path, None)?, unusable));
        };
        match Qcow2Source::open(path, Some(usable)) {
            Ok(source) => Ok((source, unusable)),
            // Without the bitmap the image may still be readable.
            Err(error) => {
                let source = Qcow2Source::open(path, None)?;
                unusable.push((usable, error.to_string()));
                Ok((source, unusable))
            }
        }
    }

    /// The export of the server.
    pub(super) fn export(&self) -> &NbdSource {
        &self.export
    }
}

impl Source for Qcow2Source {
    fn size_bytes(&self) -> Option<u64> {
        self.export.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.export.block_bytes()
    }
    fn extent_at(&self, offset: u64) -> Result<Extent, SourceError> {
        self.export.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.export.read_at(offset, buf)
    }
    fn confirm(&self) -> Result<Option<String>, SourceError> {
        // The server reports the size from its start, so only the chain can detect a change.
        self.export.read_end()?;
        self.chain.confirm()
    }
}

/// The running `qemu-nbd`; killed on drop.
struct ServerProcess {
    child: Child,
}

impl ServerProcess {
    /// Ends the server and returns its error output.
    fn stderr_text(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut text = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(STDERR_BYTES).read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn io(action: &'static str, path: &Path, error: std::io::Error) -> SourceError {
    SourceError::Io { action, what: path.display().to_string(), error }
}

fn start(
    program: &Path,
    image: &Path,
    bitmap: Option<&str>,
    cache: &str,
) -> Result<(NbdSource, ServerProcess), SourceError> {
    let dir = private_dir()?;
    let socket = dir.path().join("nbd.sock");
    let listener = UnixListener::bind(&socket).map_err(|error| io("listen on", &socket, error))?;
    let mut server = spawn(program, image, bitmap, cache, listener)?;
    let uri = Uri { address: ServerAddress::Unix(socket), export: String::new() };
    let what = image.display().to_string();
    match NbdSource::connect_to(&what, &uri, bitmap.as_slice(), ReadMode::Still) {
        Ok(export) => Ok((export, server)),
        Err(error) => {
            let stderr_text = server.stderr_text();
            if stderr_text.is_empty() {
                return Err(error);
            }
            Err(SourceError::Unusable {
                reason: format!("qemu-nbd cannot serve {}: {stderr_text}", image.display()),
            })
        }
    }
}

/// A directory that no other user may enter, with a path short enough for a socket.
fn private_dir() -> Result<tempfile::TempDir, SourceError> {
    let base = std::env::temp_dir();
    let base = if base.as_os_str().len() <= SOCKET_DIR_BYTES { base } else { PathBuf::from("/tmp") };
    let mut builder = tempfile::Builder::new();
    builder.prefix("copal-").permissions(std::fs::Permissions::from_mode(0o700));
    builder.tempdir_in(&base).map_err(|error| io("make a directory in", &base, error))
}

/// Starts the server on a listening socket, by the protocol of systemd: the socket is file 3, `LISTEN_FDS` is
/// set, and `LISTEN_PID` is the server's own process id. Only a shell that executes the server can set that
/// id.
fn spawn(
    program: &Path,
    image: &Path,
    bitmap: Option<&str>,
    cache: &str,
    listener: UnixListener,
) -> Result<ServerProcess, SourceError> {
    const HAND_OVER: &str = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let mut command = programs::command("/bin/sh");
    command.args(["-c", HAND_OVER, "qemu-nbd"]).arg(program);
    command.args(["--read-only", "--format=qcow2", "--export-name="]);
    command.arg(format!("--cache={cache}"));
    if let Some(name) = bitmap {
        command.arg(format!("--bitmap={name}"));
    }
    command.arg("--").arg(absolute(image)?);
    command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().map_err(|error| io("start", program, error))?;
    Ok(ServerProcess { child })
}

/// An absolute path, since QEMU takes `nbd:...` or `json:...` as addresses.
fn absolute(image: &Path) -> Result<PathBuf, SourceError> {
    std::path::absolute(image).map_err(|error| io("find", image, error))
}

/// The disk size in the header of an image.
pub(super) fn size_in_header(file: &mut std::fs::File) -> std::io::Result<u64> {
    use std::io::Read;
    let mut header = [0; 32];
    file.read_exact(&mut header)?;
    let (_, size) = header.split_at(24);
    Ok(size.try_into().map_or(0, u64::from_be_bytes))
}
