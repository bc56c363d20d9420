//! A private database server on loopback, made for a test and removed with it.
//!
//! Debian's `mariadb-server-core` starts no service. Its three system SQL files make an empty server in a
//! second.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

const SYSTEM_FILES: [&str; 3] =
    ["mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql"];
/// Time limit of a server's start.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that listens on 127.0.0.1 or a given address; the drop kills it.
pub struct MariaDb {
    child: Child,
    port: u16,
}

/// Host and address of a server outside of loopback, such as in its own network namespace.
#[derive(Clone, Copy, Debug)]
pub struct MariaDbAt<'a> {
    /// Prefix of its command line.
    pub through: &'a [String],
    /// Address on which it listens.
    pub address: &'a str,
    /// A free port there.
    pub port: u16,
}

impl MariaDb {
    /// Makes a server in `directory`, which must be empty, and waits until it accepts connections.
    /// `memory_mib`: its buffer pool.
    /// # Errors
    /// A message: it is not installed, or does not start.
    pub fn start(directory: &Path, memory_mib: u32) -> Result<MariaDb, String> {
        let data = data_directory(directory)?;
        bootstrap(&data, "127.0.0.1")?;
        let mut last = String::new();
        // Another process may take the port after the test found it free and before the server binds it.
        for _ in 0..3 {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let at = MariaDbAt {
                through: &[],
                address: "127.0.0.1",
                port: free.map_err(|error| error.to_string())?.port(),
            };
            match listen(directory, &data, memory_mib, at) {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Like [`MariaDb::start`], on another host; its user may connect from anywhere.
    /// # Errors
    /// A message: it is not installed, or does not start.
    pub fn start_at(directory: &Path, memory_mib: u32, at: MariaDbAt<'_>) -> Result<MariaDb, String> {
        let data = data_directory(directory)?;
        bootstrap(&data, "%")?;
        listen(directory, &data, memory_mib, at)
    }

    /// Its address. The user `copal` with the password `secret` has all rights; the database `copal` exists
    /// and is empty.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL of one of its databases, for the user with all rights.
    pub fn url(&self, database: &str) -> String {
        format!("mysql://copal:secret@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        // The server may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn data_directory(directory: &Path) -> Result<PathBuf, String> {
    let data = directory.join("data");
    for made in [&data, &temporary(&data)] {
        std::fs::create_dir_all(made).map_err(|error| format!("{}: {error}", made.display()))?;
    }
    Ok(data)
}

/// Directory for temporary tables of the server of `data`. A starting server deletes all tables there, also
/// those of another server; so each has its own.
fn temporary(data: &Path) -> PathBuf {
    data.with_file_name("tmp")
}

fn server(data: &Path, through: &[String], words: &[&str]) -> Command {
    let program = ["/usr/sbin/mariadbd", "/usr/sbin/mysqld", "/usr/local/sbin/mariadbd"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .unwrap_or("mariadbd");
    let mut command = match through.split_first() {
        None => Command::new(program),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    };
    // mariadbd runs as root only with this option; started by another user it ignores it.
    command
        .args(["--no-defaults", "--innodb-log-file-size=64M", "--user=root"])
        .arg(format!("--datadir={}", data.display()))
        .arg(format!("--tmpdir={}", temporary(data).display()))
        .args(words);
    command
}

fn bootstrap(data: &Path, from: &str) -> Result<(), String> {
    let mut script = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n".to_owned();
    for name in SYSTEM_FILES {
        let found = ["/usr/share/mysql", "/usr/share/mariadb"]
            .iter()
            .find_map(|folder| std::fs::read_to_string(Path::new(folder).join(name)).ok());
        script += &found.ok_or_else(|| {
            format!(
                "there is no {name}: scripts/install-deps.sh installs MariaDB's server, mariadb-server-core"
            )
        })?;
    }
    script += &format!("FLUSH PRIVILEGES;\nCREATE USER copal@'{from}' IDENTIFIED BY 'secret';\n");
    script += &format!("GRANT ALL ON *.* TO copal@'{from}';\nCREATE DATABASE copal;\n");
    let log = data.with_file_name("bootstrap.log");
    let stderr = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let mut child = server(data, &[], &["--bootstrap", "--log-warnings=0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .map_err(|error| format!("mariadbd does not start ({error}); scripts/install-deps.sh installs it"))?;
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(script.as_bytes()));
    let status = child.wait().map_err(|error| error.to_string())?;
    match written {
        Some(Ok(())) if status.success() => Ok(()),
        _ => {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            Err(format!("mariadbd --bootstrap failed ({status}): {said}"))
        }
    }
}

fn listen(directory: &Path, data: &Path, memory_mib: u32, at: MariaDbAt<'_>) -> Result<MariaDb, String> {
    let port = at.port;
    let bind = format!("--bind-address={}", at.address);
    let mut child = server(data, at.through, &[&bind, "--skip-log-bin", "--skip-name-resolve"])
        .arg(format!("--socket={}", directory.join("socket").display()))
        .arg(format!("--port={port}"))
        .arg(format!("--innodb-buffer-pool-size={memory_mib}M"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let stderr = child.stderr.take().ok_or("no standard error")?;
    let (ready, is_ready) = mpsc::channel();
    // Reads as long as the server writes; otherwise a full pipe would block it.
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if line.contains("ready for connections") {
                let _ = ready.send(());
            }
        }
    });
    let server = MariaDb { child, port };
    match is_ready.recv_timeout(PATIENCE) {
        Ok(()) => Ok(server),
        Err(_) => Err(format!("mariadbd does not listen on port {port}")),
    }
}
