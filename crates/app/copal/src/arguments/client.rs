//! Arguments of `copal client`: clients of a cluster with restricted rights.

use clap::Subcommand;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Create a client with restricted rights below one path
    ///
    /// The profile is the credential of the client: any holder of the file can act as that client. A client
    /// for backups needs only the rights read and create: without the right delete it cannot remove backups.
    #[command(
        after_help = "Example:\n  copal client add nightly --path vms --rights read,create --out nightly.json"
    )]
    Add {
        /// Name of the client: lower-case letters, digits, dashes
        #[arg(value_name = "NAME")]
        name: String,
        /// Volume below which the rights apply; empty: all volumes
        #[arg(long, value_name = "PATH")]
        path: String,
        /// Rights of the client, separated by commas: read, create, delete
        #[arg(long, value_name = "RIGHTS")]
        rights: String,
        /// New file for the profile, readable by its owner alone
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// List the clients
    #[command(after_help = "Example:\n  copal client ls")]
    Ls,
    /// Write a new profile of a client, with a new key, before or after its certificate expires
    ///
    /// A client renews its own profile after half of its lifetime, if the file is writable. This command renews
    /// it from another machine, with a profile that has all rights. The key of the old profile remains valid
    /// until its certificate expires. If others may have read the old profile, remove the client instead.
    #[command(after_help = "Example:\n  copal client renew nightly --out nightly.json")]
    Renew {
        /// Name of the client
        #[arg(value_name = "NAME")]
        name: String,
        /// File for the profile: a new file, or the present profile of the client [default: NAME.json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Remove a client: within seconds its rights end
    #[command(after_help = "Example:\n  copal client rm nightly")]
    Rm {
        /// Name of the client
        #[arg(value_name = "NAME")]
        name: String,
        /// Show the effect, change nothing
        #[arg(long)]
        dry_run: bool,
    },
}
