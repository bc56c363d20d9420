//! Arguments of the processes of a cluster: masters, data servers, and both in one process for a trial.

use super::backend::BackendArgs;
use crate::human;
use clap::Args;
use copal_server::HttpEndpoint;
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Args)]
#[command(after_help = "\
The first start of a cluster takes --new: it creates the cluster's authority, and DIR/client.json for its clients. Later \
starts need only --dir. Several masters share a database, and one of them leads: the first takes --new and --meta, each \
further one --meta and --join with a token of `copal node token --master`.

Example:
  copal master --dir /srv/copal/master --listen 10.0.0.1:7400 --new")]
pub(crate) struct MasterArgs {
    /// Directory of the master, for its database and the authority
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Address to listen at, HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Address that others use, if it differs from the one of --listen
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// Create a new cluster
    #[arg(long)]
    pub(crate) new: bool,
    /// Database that several masters share: mysql://USER@HOST:PORT/DATABASE (default: a file in DIR, for one
    /// master)
    #[arg(long, value_name = "URL")]
    pub(crate) meta: Option<String>,
    /// File with the password of that database
    #[arg(long, value_name = "FILE", requires = "meta")]
    pub(crate) meta_password_file: Option<PathBuf>,
    /// Token of `copal node token --master`, valid once, for ten minutes; `-` reads it from standard input
    #[arg(long, value_name = "TOKEN", requires = "meta", conflicts_with = "new")]
    pub(crate) join: Option<String>,
    /// Number of groups of volumes in a new cluster; it cannot be changed later
    #[arg(long, value_name = "NUMBER", default_value_t = 64, requires = "new",
        value_parser = clap::value_parser!(u32).range(1..=1_048_575))]
    pub(crate) groups: u32,
    /// Number of replicas of each group in a new cluster
    #[arg(long, value_name = "NUMBER", default_value_t = 3, requires = "new",
        value_parser = clap::value_parser!(u8).range(1..=7))]
    pub(crate) replicas: u8,
    /// Number of data servers that a new cluster waits for; its groups are spread over these. Servers that join
    /// later hold no group until `copal rebalance apply`. Saved for later starts [default: as many as replicas]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) first_servers: Option<u16>,
    /// Number of groups that are copied at once after a loss of servers; saved for later starts [default: half
    /// the number of servers]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) copies_at_once: Option<u16>,
    /// Lead with a restored or outdated database: continue with numbers above those that were lost. All data
    /// servers must run; the data of a server that does not run is treated as outdated
    #[arg(long, conflicts_with_all = ["new", "join"])]
    pub(crate) after_restore: bool,
    #[command(flatten)]
    pub(crate) times: TimeArgs,
    #[command(flatten)]
    pub(crate) monitored: MonitorArgs,
    #[command(flatten)]
    pub(crate) child: ChildArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TimeArgs {
    /// A server that is down for this long counts as lost, and its groups are copied from others; saved for
    /// later starts [default: 30m]
    #[arg(long, value_name = "DURATION", value_parser = human::parse_duration)]
    pub(crate) permanent_after: Option<Duration>,
}

/// Options for monitoring a process.
#[derive(Clone, Debug, Args)]
pub(crate) struct MonitorArgs {
    /// Address of the HTTP pages for monitoring (/metrics, /health, /ready), or `none`; saved for later starts
    /// [default: on loopback, at the process's port plus 200]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<HttpEndpoint>,
}

/// Options for processes that `copal serve` starts.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChildArgs {
    /// End when the parent process, which has this number, ends
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) end_with_parent: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The first start joins a cluster with a token of `copal node token`, and makes the store; on a disk that turns, give --backend log. Later \
starts need only --dir.

Examples:
  copal data --dir /srv/copal/data1 --name data1 --listen 10.0.0.2:7401 --join \"$(copal node token)\"
  copal data --dir /srv/copal/data1 --rack r7 --zone north
  copal data --dir /srv/copal/data1 --listen 0.0.0.0:7401 --advertise 10.0.0.2:7401")]
pub(crate) struct DataArgs {
    /// Directory of the server, for its store and its identity
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Name of a new server, unique in the cluster
    #[arg(long, value_name = "NAME", requires = "join")]
    pub(crate) name: Option<String>,
    /// Address to listen at, HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Address that others use, if it differs from the one of --listen; saved for later starts
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// Most bytes per second for copies to and from other servers; saved for later starts (default: 200M, on a
    /// rotating disk 40M)
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) recovery_rate: Option<u64>,
    /// Token of `copal node token`, valid once, for ten minutes; `-` reads it from standard input
    #[arg(long, value_name = "TOKEN", requires = "name")]
    pub(crate) join: Option<String>,
    /// Most bytes that the store may use; saved for later starts (default: the limit of its file system)
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// Rack of the server, a name within its zone: replicas of a group are placed in different racks. Saved for
    /// later starts; '' clears it
    #[arg(long, value_name = "NAME", value_parser = parse_site)]
    pub(crate) rack: Option<String>,
    /// Zone of the server, a set of racks: replicas are placed in different zones if there are enough. Saved for
    /// later starts; '' clears it
    #[arg(long, value_name = "NAME", value_parser = parse_site)]
    pub(crate) zone: Option<String>,
    #[command(flatten)]
    pub(crate) monitored: MonitorArgs,
    #[command(flatten)]
    pub(crate) child: ChildArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Runs a master and data servers as separate processes on this machine, for tests: a killed process is really gone. No process is \
restarted automatically; each printed line shows the command for it. Ctrl-C ends all of them.

Example:
  copal serve --dev --dir /tmp/c --servers 3
  export COPAL_CLUSTER=/tmp/c/client.json")]
pub(crate) struct ServeArgs {
    /// Run a cluster on loopback; so far the only mode
    #[arg(long, required = true)]
    pub(crate) dev: bool,
    /// Directory of the cluster
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Number of data servers
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) servers: u16,
    /// Number of data servers over which the groups of a new cluster are spread [default: all]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) first_servers: Option<u16>,
    /// Number of masters; more than one requires --meta
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=7))]
    pub(crate) masters: u16,
    /// Database that the masters share: mysql://USER@HOST:PORT/DATABASE
    #[arg(long, value_name = "URL")]
    pub(crate) meta: Option<String>,
    /// File with the password of that database
    #[arg(long, value_name = "FILE", requires = "meta")]
    pub(crate) meta_password_file: Option<PathBuf>,
    /// Port of the master; data servers use the ports after it, further masters those from 70 after it
    #[arg(long, value_name = "PORT", default_value_t = 7400, value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub(crate) port: u16,
    /// Most bytes that each store may use
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// Most bytes per second on each server for copies to and from others
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) recovery_rate: Option<u64>,
    #[command(flatten)]
    pub(crate) times: TimeArgs,
}

/// Name of a rack or a zone; an empty one clears it.
fn parse_site(name: &str) -> Result<String, String> {
    let is_good = name.is_empty() || copal_volume::check_volume_name(name).is_ok();
    match is_good && name.len() <= copal_server::SITE_NAME_BYTES {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "the name of a rack or zone has at most {} bytes and no slashes",
            copal_server::SITE_NAME_BYTES
        )),
    }
}
