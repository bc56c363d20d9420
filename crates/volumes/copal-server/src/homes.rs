//! What a process of a cluster finds in its directory when it starts again: who it is, and where it listens.

use crate::{
    authority::Authority,
    monitoring::HttpAt,
    token::{hex, unhex},
};
use copal_client::{TlsIdentity, write_private};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};

/// Version of both files.
const VERSION: u32 = 1;
const SERVER_FILE: &str = "server.json";
const MASTER_FILE: &str = "master.json";
/// Longest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// A directory that says nothing that can be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Nothing there says who the process is.
    #[error("{} does not say who this process is: it was never started there", .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("{}: {source}", .path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not what this release writes.
    #[error("{} cannot be understood: {reason}; put back what was there, or start in an empty directory", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// What a data server keeps about itself, beside its store.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerHome {
    v: u32,
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub listen: String,
    /// Where others reach it; none: where it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    server: String,
    disk: String,
    cluster: String,
    /// Masters: host:port.
    pub masters: Vec<String>,
    authority: String,
    certificate: String,
    key: String,
    /// Most bytes that its store may take.
    pub limit_bytes: Option<u64>,
    /// Bytes a second that copies from and to others may take; none: as its disk allows.
    #[serde(default)]
    pub recovery_bytes_per_s: Option<u64>,
    /// Most memory that it may take; none: as any process.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Where it answers monitors; none: behind its own port.
    #[serde(default)]
    pub http: HttpAt,
    /// Zone in which it stands; empty: not told.
    #[serde(default)]
    pub zone: String,
    /// Rack in that zone; empty: not told.
    #[serde(default)]
    pub rack: String,
}

impl ServerHome {
    /// A server that has not joined yet; its ids are drawn.
    /// # Errors
    /// The operating system gives no randomness.
    pub fn draw(name: &str, listen: &str, limit_bytes: Option<u64>) -> Result<ServerHome, String> {
        let draw = || {
            let mut id = [0; 16];
            getrandom::fill(&mut id).map_err(|error| error.to_string())?;
            Ok::<String, String>(hex(&id))
        };
        Ok(ServerHome {
            v: VERSION,
            name: name.to_owned(),
            listen: listen.to_owned(),
            advertise: None,
            server: draw()?,
            disk: draw()?,
            cluster: String::new(),
            masters: Vec::new(),
            authority: String::new(),
            certificate: String::new(),
            key: String::new(),
            limit_bytes,
            http: HttpAt::default(),
            recovery_bytes_per_s: None,
            memory_bytes: None,
            zone: String::new(),
            rack: String::new(),
        })
    }

    /// Where others reach it.
    pub fn reached_at(&self) -> &str {
        self.advertise.as_deref().unwrap_or(&self.listen)
    }

    /// Reads what a directory says.
    /// # Errors
    /// All of them.
    pub fn read(directory: &Path) -> Result<ServerHome, HomeError> {
        let path = directory.join(SERVER_FILE);
        let home: ServerHome = read(&path)?;
        let is_whole =
            home.v == VERSION && [&home.server, &home.disk].iter().all(|id| unhex::<16>(id).is_some());
        match is_whole {
            true => Ok(home),
            false => Err(malformed(&path, "its version or its ids are none of this release")),
        }
    }

    /// Writes it, for its owner alone.
    /// # Errors
    /// `System`.
    pub fn write(&self, directory: &Path) -> Result<(), HomeError> {
        write(&directory.join(SERVER_FILE), self)
    }

    /// The server has joined.
    pub(crate) fn joined(&mut self, cluster: [u8; 16], masters: Vec<String>, identity: &TlsIdentity) {
        (self.cluster, self.masters) = (hex(&cluster), masters);
        self.authority.clone_from(&identity.authority);
        self.certificate.clone_from(&identity.certificate);
        self.key.clone_from(&identity.key);
    }

    /// It has another certificate, for another key.
    pub(crate) fn renewed(&mut self, identity: &TlsIdentity) {
        self.certificate.clone_from(&identity.certificate);
        self.key.clone_from(&identity.key);
    }

    /// Whether it has.
    pub fn has_joined(&self) -> bool {
        !self.certificate.is_empty()
    }

    /// The name in its certificate.
    pub fn server_uuid(&self) -> [u8; 16] {
        unhex(&self.server).unwrap_or_default()
    }

    /// Its disk.
    pub fn disk_uuid(&self) -> [u8; 16] {
        unhex(&self.disk).unwrap_or_default()
    }

    /// Its cluster; zeros before it has joined.
    pub fn cluster(&self) -> [u8; 16] {
        unhex(&self.cluster).unwrap_or_default()
    }

    /// Who it is.
    pub fn identity(&self) -> TlsIdentity {
        TlsIdentity {
            authority: self.authority.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        }
    }
}

/// What a master keeps about itself, beside its database.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MasterHome {
    v: u32,
    /// Where it listens.
    pub listen: String,
    /// Where others reach it.
    pub advertise: String,
    /// The database that several masters share, without its password: mysql://USER@HOST:PORT/DATABASE. None:
    /// a file here.
    #[serde(default)]
    pub meta: Option<String>,
    /// Where the password of that database is read.
    #[serde(default)]
    pub meta_password_file: Option<PathBuf>,
    authority: String,
    key: String,
    /// Where it answers monitors; none: behind its own port.
    #[serde(default)]
    pub http: HttpAt,
    /// Silence after which a server is given up, ms; none: as this release has it.
    #[serde(default)]
    pub permanent_after_ms: Option<u64>,
    /// Groups that are copied at once; none: as the number of servers says.
    #[serde(default)]
    pub copies_at_once: Option<u16>,
}

impl MasterHome {
    /// A master of a new cluster.
    pub fn new(listen: &str, advertise: &str, authority: &Authority) -> MasterHome {
        MasterHome {
            v: VERSION,
            listen: listen.to_owned(),
            advertise: advertise.to_owned(),
            meta: None,
            meta_password_file: None,
            authority: authority.certificate().to_owned(),
            key: authority.key().to_owned(),
            http: HttpAt::default(),
            permanent_after_ms: None,
            copies_at_once: None,
        }
    }

    /// Reads what a directory says.
    /// # Errors
    /// All of them.
    pub fn read(directory: &Path) -> Result<MasterHome, HomeError> {
        let path = directory.join(MASTER_FILE);
        let home: MasterHome = read(&path)?;
        match home.v == VERSION {
            true => Ok(home),
            false => Err(malformed(&path, "its version is none of this release")),
        }
    }

    /// Writes it, for its owner alone: whoever has it is the cluster.
    /// # Errors
    /// `System`.
    pub fn write(&self, directory: &Path) -> Result<(), HomeError> {
        write(&directory.join(MASTER_FILE), self)
    }

    /// The cluster's authority.
    pub fn authority(&self) -> Authority {
        Authority::of_pem(self.authority.clone(), self.key.clone())
    }

    /// Where the database is.
    pub fn database(directory: &Path) -> PathBuf {
        directory.join("master.db")
    }
}

fn malformed(path: &Path, reason: &str) -> HomeError {
    HomeError::Malformed { path: path.to_owned(), reason: reason.to_owned() }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, HomeError> {
    let system = |source| HomeError::System { path: path.to_owned(), source };
    let length = match path.metadata() {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(HomeError::Missing { path: path.to_owned() });
        }
        Err(error) => return Err(system(error)),
    };
    if length > MOST_BYTES {
        return Err(malformed(path, &format!("it has {length} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(system)?;
    // What is wrong is told without the text, which may be a key.
    serde_json::from_str(&text)
        .map_err(|error| malformed(path, &format!("line {}, column {}", error.line(), error.column())))
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), HomeError> {
    let system = |source| HomeError::System { path: path.to_owned(), source };
    let text = serde_json::to_string_pretty(value).map_err(|error| system(error.into()))?;
    write_private(path, &text).map_err(system)
}
