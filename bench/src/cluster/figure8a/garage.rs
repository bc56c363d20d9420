//! Garage: three nodes in three zones, three copies, accessed by S3. As it ships it syncs nothing; made
//! durable it syncs metadata and data. It answers when two of three nodes have a file.

use super::{
    System,
    phases::{Client, Clients, Done},
};
use crate::cluster::{running::free_address, s3};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const NODES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(30);
const BUCKET: &str = "files";

/// Running nodes; the drop ends them.
struct Nodes {
    binary: PathBuf,
    directory: PathBuf,
    children: Vec<Child>,
    /// S3 address of each node.
    s3_addresses: Vec<String>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Nodes {
    fn start(binary: &Path, directory: &Path, is_durable: bool) -> Result<Nodes> {
        let mut nodes = Nodes {
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            children: Vec::new(),
            s3_addresses: Vec::new(),
        };
        for at in 0..NODES {
            let own = directory.join(format!("node{at}"));
            fs::create_dir_all(&own)?;
            let (rpc, s3_address) = (free_address()?, free_address()?);
            let secret = "ab".repeat(32);
            let config = format!(
                "metadata_dir = \"{own}/meta\"\ndata_dir = \"{own}/data\"\ndb_engine = \"lmdb\"\n\
                 replication_factor = {NODES}\nmetadata_fsync = {is_durable}\ndata_fsync = {is_durable}\n\
                 rpc_secret = \"{secret}\"\nrpc_bind_addr = \"{rpc}\"\nrpc_public_addr = \"{rpc}\"\n\n\
                 [s3_api]\napi_bind_addr = \"{s3_address}\"\ns3_region = \"{}\"\n",
                s3::REGION,
                own = own.display(),
            );
            fs::write(nodes.config(at), config)?;
            let log = fs::File::create(directory.join(format!("node{at}.log")))?;
            let child = Command::new(binary)
                .arg("-c")
                .arg(nodes.config(at))
                .arg("server")
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
                .with_context(|| format!("starting {}", binary.display()))?;
            nodes.children.push(child);
            nodes.s3_addresses.push(s3_address);
        }
        Ok(nodes)
    }

    fn config(&self, at: usize) -> PathBuf {
        self.directory.join(format!("node{at}.toml"))
    }

    /// Runs an administrative command on a node.
    fn order(&self, at: usize, words: &[&str]) -> Result<String> {
        let ran = Command::new(&self.binary)
            .arg("-c")
            .arg(self.config(at))
            .args(words)
            .stdin(Stdio::null())
            .output()?;
        let stderr = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "garage {}: {stderr}", words.join(" "));
        Ok(String::from_utf8(ran.stdout)?)
    }

    /// Like [`Nodes::order`], repeated until it succeeds.
    fn order_soon(&self, at: usize, words: &[&str]) -> Result<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.order(at, words) {
                Ok(told) => return Ok(told),
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// Joins the nodes to a cluster, and creates a bucket and a key for it.
    fn unite(&self) -> Result<s3::Key> {
        let ids = (0..NODES).map(|at| Ok(self.order_soon(at, &["node", "id", "-q"])?.trim().to_owned()));
        let ids: Vec<String> = ids.collect::<Result<_>>()?;
        for id in &ids[1..] {
            self.order_soon(0, &["node", "connect", id])?;
        }
        for (at, id) in ids.iter().enumerate() {
            let id = id.split('@').next().unwrap_or_default();
            let zone = format!("zone{at}");
            self.order_soon(0, &["layout", "assign", id, "-z", &zone, "-c", "100G"])?;
        }
        self.order(0, &["layout", "apply", "--version", "1"])?;
        self.order_soon(0, &["bucket", "create", BUCKET])?;
        let told = self.order(0, &["key", "create", "bench"])?;
        let word = |name: &str| {
            let line = told.lines().find(|line| line.trim_start().starts_with(name));
            let word = line.and_then(|line| line.split_whitespace().last());
            word.map(str::to_owned).with_context(|| format!("a key without {name}: {told}"))
        };
        let key = s3::Key { id: word("Key ID")?, secret: word("Secret key")? };
        let allow = ["bucket", "allow", "--read", "--write", BUCKET, "--key", &key.id];
        self.order(0, &allow)?;
        Ok(key)
    }
}

/// Garage and its clients.
pub(super) struct Garage {
    clients: Clients<s3::Connection>,
    is_durable: bool,
    _nodes: Nodes,
}

pub(super) fn start(peers: &Path, directory: &Path, clients: usize, is_durable: bool) -> Result<Garage> {
    let binary = peers.join("bin/garage");
    ensure!(
        binary.exists(),
        "there is no {}; `make bench SUITE=beanfs-fig8a` installs it and runs the suite",
        binary.display()
    );
    let nodes = Nodes::start(&binary, directory, is_durable)?;
    let key = nodes.unite()?;
    let clients = (0..clients).map(|at| s3::Connection::open(&nodes.s3_addresses[at % NODES], BUCKET, &key));
    let clients = Clients::new(clients.collect::<Result<_>>()?);
    Ok(Garage { clients, is_durable, _nodes: nodes })
}

impl System for Garage {
    fn name(&self) -> &'static str {
        if self.is_durable { "Garage, fsync" } else { "Garage" }
    }

    fn write(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done> {
        self.clients.write(prefix, bytes, seconds)
    }

    fn read(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done> {
        self.clients.read(prefix, bytes, seconds)
    }
}

impl Client for s3::Connection {
    fn put(&mut self, name: &str, body: Bytes) -> Result<()> {
        let (status, told) = self.request("PUT", name, &body)?;
        match status {
            200 => Ok(()),
            _ => bail!("PUT {name}: {status} {}", String::from_utf8_lossy(&told)),
        }
    }

    fn get(&mut self, name: &str) -> Result<usize> {
        let (status, told) = self.request("GET", name, &[])?;
        match status {
            200 => Ok(told.len()),
            _ => bail!("GET {name}: {status} {}", String::from_utf8_lossy(&told)),
        }
    }
}
