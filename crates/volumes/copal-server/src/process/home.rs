//! Files in the directory of a process: its identity and its addresses, read at each start.

use crate::monitoring::HttpEndpoint;
use crate::security::authority::CertificateAuthority;
use crate::security::token::{hex, unhex};
use copal_client::{TlsIdentity, write_private};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};

/// Version of both files.
const VERSION: u32 = 1;
const SERVER_FILE: &str = "server.json";
const MASTER_FILE: &str = "master.json";
/// Longest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The file does not exist.
    #[error("{} does not exist: no process was ever started in this directory", .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("{}: {source}", .path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The content is not of this release.
    #[error("{} is malformed: {reason}; restore it, or start in an empty directory", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
}

/// Identity and settings of a data server, beside its store.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerHome {
    v: u32,
    /// Name of the server.
    pub name: String,
    /// Address that it listens at.
    pub listen: String,
    /// Address that others reach it at; `None`: the listen address.
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
    /// Limit of its store, bytes.
    pub limit_bytes: Option<u64>,
    /// Limit of copies from and to others, bytes a second; `None`: by its disk.
    #[serde(default)]
    pub recovery_bytes_per_s: Option<u64>,
    /// Memory limit, bytes; `None`: the default of processes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Endpoint for monitors.
    #[serde(default)]
    pub http: HttpEndpoint,
    /// Zone; empty: not given.
    #[serde(default)]
    pub zone: String,
    /// Rack in the zone; empty: not given.
    #[serde(default)]
    pub rack: String,
}

impl ServerHome {
    /// A server that has not joined yet, with random ids.
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
            http: HttpEndpoint::default(),
            recovery_bytes_per_s: None,
            memory_bytes: None,
            zone: String::new(),
            rack: String::new(),
        })
    }

    /// Address that others reach it at.
    pub fn reached_at(&self) -> &str {
        self.advertise.as_deref().unwrap_or(&self.listen)
    }

    /// Reads the file of a directory.
    /// # Errors
    /// All variants.
    pub fn read(directory: &Path) -> Result<ServerHome, HomeError> {
        let path = directory.join(SERVER_FILE);
        let home: ServerHome = read(&path)?;
        let is_valid =
            home.v == VERSION && [&home.server, &home.disk].iter().all(|id| unhex::<16>(id).is_some());
        match is_valid {
            true => Ok(home),
            false => Err(malformed(&path, "its version or its ids are not of this release")),
        }
    }

    /// Writes the file, readable by its owner only.
    /// # Errors
    /// `System`.
    pub fn write(&self, directory: &Path) -> Result<(), HomeError> {
        write(&directory.join(SERVER_FILE), self)
    }

    /// Records that the server has joined.
    pub(crate) fn record_join(&mut self, cluster: [u8; 16], masters: Vec<String>, identity: &TlsIdentity) {
        (self.cluster, self.masters) = (hex(&cluster), masters);
        self.authority.clone_from(&identity.authority);
        self.certificate.clone_from(&identity.certificate);
        self.key.clone_from(&identity.key);
    }

    /// Records a new certificate and its key.
    pub(crate) fn record_renewal(&mut self, identity: &TlsIdentity) {
        self.certificate.clone_from(&identity.certificate);
        self.key.clone_from(&identity.key);
    }

    /// Whether the server has joined.
    pub fn has_joined(&self) -> bool {
        !self.certificate.is_empty()
    }

    /// Id in its certificate's name.
    pub fn server_uuid(&self) -> [u8; 16] {
        unhex(&self.server).unwrap_or_default()
    }

    /// Id of its disk.
    pub fn disk_uuid(&self) -> [u8; 16] {
        unhex(&self.disk).unwrap_or_default()
    }

    /// Id of its cluster; zeros before it has joined.
    pub fn cluster(&self) -> [u8; 16] {
        unhex(&self.cluster).unwrap_or_default()
    }

    /// Its certificate, its key and the authority.
    pub fn identity(&self) -> TlsIdentity {
        TlsIdentity {
            authority: self.authority.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        }
    }
}

/// Identity and settings of a master, beside its database.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MasterHome {
    v: u32,
    /// Address that it listens at.
    pub listen: String,
    /// Address that others reach it at.
    pub advertise: String,
    /// The shared database of several masters, without its password: mysql://USER@HOST:PORT/DATABASE. `None`:
    /// a file in this directory.
    #[serde(default)]
    pub meta: Option<String>,
    /// File with the password of that database.
    #[serde(default)]
    pub meta_password_file: Option<PathBuf>,
    authority: String,
    key: String,
    /// Endpoint for monitors.
    #[serde(default)]
    pub http: HttpEndpoint,
    /// Silence after which a server is lost, ms; `None`: the default of this release.
    #[serde(default)]
    pub permanent_after_ms: Option<u64>,
    /// Groups copied at once; `None`: by the number of servers.
    #[serde(default)]
    pub copies_at_once: Option<u16>,
}

impl MasterHome {
    /// A master of a new cluster.
    pub fn new(listen: &str, advertise: &str, authority: &CertificateAuthority) -> MasterHome {
        MasterHome {
            v: VERSION,
            listen: listen.to_owned(),
            advertise: advertise.to_owned(),
            meta: None,
            meta_password_file: None,
            authority: authority.certificate().to_owned(),
            key: authority.key().to_owned(),
            http: HttpEndpoint::default(),
            permanent_after_ms: None,
            copies_at_once: None,
        }
    }

    /// Reads the file of a directory.
    /// # Errors
    /// All variants.
    pub fn read(directory: &Path) -> Result<MasterHome, HomeError> {
        let path = directory.join(MASTER_FILE);
        let home: MasterHome = read(&path)?;
        match home.v == VERSION {
            true => Ok(home),
            false => Err(malformed(&path, "its version is not of this release")),
        }
    }

    /// Writes the file, readable by its owner only: it holds the authority's key.
    /// # Errors
    /// `System`.
    pub fn write(&self, directory: &Path) -> Result<(), HomeError> {
        write(&directory.join(MASTER_FILE), self)
    }

    /// The cluster's authority.
    pub fn authority(&self) -> CertificateAuthority {
        CertificateAuthority::of_pem(self.authority.clone(), self.key.clone())
    }

    /// Path of the database.
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
    // The error leaves out the text, which may be a key.
    serde_json::from_str(&text)
        .map_err(|error| malformed(path, &format!("line {}, column {}", error.line(), error.column())))
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), HomeError> {
    let system = |source| HomeError::System { path: path.to_owned(), source };
    let text = serde_json::to_string_pretty(value).map_err(|error| system(error.into()))?;
    write_private(path, &text).map_err(system)
}
