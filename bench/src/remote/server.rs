//! A private MinIO with an empty bucket.

use crate::cluster::s3::{Connection, Key, REGION};
use anyhow::{Context, Result, bail, ensure};
use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

pub(super) const BUCKET: &str = "bench";
/// It has only this process's clients, on this machine.
pub(super) const KEY_ID: &str = "bench-key";
pub(super) const SECRET: &str = "bench-secret";

/// A running server; it ends when dropped.
pub(super) struct Minio {
    child: Child,
    address: String,
}

impl Minio {
    /// Starts one over a directory. Blocks until it answers.
    pub(super) fn start(binary: &Path, directory: &Path) -> Result<Minio> {
        ensure!(binary.exists(), "{} is missing: run scripts/install-clients.sh minio", binary.display());
        fs::create_dir_all(directory)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let log = File::create(directory.with_extension("log"))?;
        let child = Command::new(binary)
            .args(["server", "--quiet", "--address", &address])
            .arg(directory)
            .env("MINIO_ROOT_USER", KEY_ID)
            .env("MINIO_ROOT_PASSWORD", SECRET)
            .env("MINIO_REGION", REGION)
            .env("MINIO_BROWSER", "off")
            .env("MINIO_UPDATE", "off")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting MinIO")?;
        let server = Minio { child, address };
        let key = Key { id: KEY_ID.to_owned(), secret: SECRET.to_owned() };
        for _ in 0..300 {
            let made = TcpStream::connect(&server.address)
                .ok()
                .and_then(|_| Connection::open(&server.address, BUCKET, &key).ok())
                .and_then(|mut connection| connection.request("PUT", "", &[]).ok());
            if matches!(made, Some((200, _))) {
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(100));
        }
        bail!("MinIO makes no bucket; see {}", directory.with_extension("log").display())
    }

    /// `HOST:PORT`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        // It has ended by itself, or ends now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
