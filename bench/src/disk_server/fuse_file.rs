//! `FuseFile`: a disk as a file, by our own NBD server and nbdfuse in front of it.

use super::{DeviceDisk, DiskExport};
use anyhow::{Context, Result, bail};
use copal_nbd::{ServerAddress, server::Server};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

const PROGRAM: &str = "nbdfuse";
const PATIENCE: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A served disk. The drop unmounts the file and ends the server.
pub(crate) struct FuseFile {
    file: PathBuf,
    fuse: Child,
    mount: PathBuf,
    is_ended: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl FuseFile {
    /// Reason why this machine has no such files; `None` if it has.
    pub(crate) fn obstacle() -> Option<String> {
        let directories = std::env::var_os("PATH").unwrap_or_default();
        let has_program =
            std::env::split_paths(&directories).any(|directory| directory.join(PROGRAM).exists());
        let has_fuse = Path::new("/dev/fuse").exists();
        (!has_fuse)
            .then(|| "the kernel has no FUSE".to_owned())
            .or_else(|| (!has_program).then(|| format!("{PROGRAM} is not installed")))
    }

    /// Serves `disk` as a file below `home`, over this number of connections. Over one, commands reach the disk
    /// in the order of the kernel.
    pub(crate) fn serve(disk: DeviceDisk, home: &Path, connections: u32) -> Result<FuseFile> {
        let (socket, mount) = (home.join("nbd.socket"), home.join("nbd"));
        fs::create_dir_all(&mount)?;
        let server = Server::bind(&ServerAddress::Unix(socket.clone()))?;
        let is_ended = Arc::new(AtomicBool::new(false));
        let exports = DiskExport(Arc::new(disk));
        let ended = is_ended.clone();
        let serving = std::thread::Builder::new().spawn(move || {
            if let Err(error) = server.run(&exports, || ended.load(Ordering::Relaxed)) {
                eprintln!("the disk's server: {error}");
            }
        })?;
        let fuse = Command::new(PROGRAM)
            .args(["-C", &connections.to_string()])
            .arg(mount.join("disk"))
            .arg("--unix")
            .arg(&socket)
            .stdin(Stdio::null())
            .spawn()
            .context("starting nbdfuse")?;
        let file = mount.join("disk");
        let served = FuseFile { file, fuse, mount, is_ended, server: Some(serving) };
        let begin = Instant::now();
        while !served.file.exists() {
            if begin.elapsed() > PATIENCE {
                bail!("nbdfuse serves no file");
            }
            pause(POLL_INTERVAL);
        }
        Ok(served)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.file
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        // After an error, the first error is the one to report.
        let _ = Command::new("fusermount3").arg("-u").arg(&self.mount).status();
        let _ = self.fuse.wait();
        self.is_ended.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "no event exists to wait for")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
