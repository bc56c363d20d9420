//! A private `moto_server`: S3 as another implementation understands it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Longest wait for the server to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a free port of 127.0.0.1 with its buckets in memory. The drop ends it.
#[derive(Debug)]
pub struct MotoServer {
    child: Child,
    url: String,
}

impl MotoServer {
    /// The installed program: that of `COPAL_TEST_MOTO`, else that of `scripts/install-clients.sh`. `None` after a message:
    /// there is none, and the test is skipped.
    ///
    /// # Panics
    /// There is none, and `COPAL_TEST_REQUIRE_MOTO` is set.
    #[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
    pub fn program() -> Option<PathBuf> {
        let installed =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.cache/clients/moto/bin/moto_server");
        let program = std::env::var_os("COPAL_TEST_MOTO").map_or(installed, PathBuf::from);
        if program.exists() {
            return Some(program);
        }
        assert!(
            std::env::var_os("COPAL_TEST_REQUIRE_MOTO").is_none(),
            "moto_server is missing: scripts/install-clients.sh"
        );
        eprintln!("SKIPPED: moto_server is missing; scripts/install-clients.sh installs it");
        None
    }

    /// Starts a server; `None` as of [`MotoServer::program`].
    ///
    /// # Panics
    /// The server does not start.
    pub fn start() -> Option<MotoServer> {
        let mut child = Command::new(MotoServer::program()?)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("moto_server starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let (ready, address) = mpsc::channel();
        // Reads as long as the server writes; otherwise a full pipe would block it.
        let read = move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, url)) = line.split_once("Running on ") {
                    let _ = ready.send(url.trim().to_owned());
                }
            }
        };
        thread::Builder::new().name("moto output".into()).spawn(read).expect("a thread");
        let url = address.recv_timeout(PATIENCE);
        let server = MotoServer { child, url: url.unwrap_or_default() };
        assert!(!server.url.is_empty(), "moto_server does not listen");
        Some(server)
    }

    /// Creates a bucket.
    ///
    /// # Panics
    /// The server does not answer.
    pub fn create_bucket(&self, name: &str) {
        let address = self.url.trim_start_matches("http://");
        let request = format!(
            "PUT /{name} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let mut answer = String::new();
        let mut stream = TcpStream::connect(address).expect("a connection to moto_server");
        let sent = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        assert!(sent.is_ok() && answer.contains(" 200 "), "{answer}");
    }

    /// Such as `http://127.0.0.1:40001`.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for MotoServer {
    fn drop(&mut self) {
        // It keeps nothing on disk, and it may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
