//! `copal client`: clients of a cluster that may do only what they were granted.

use clap::Subcommand;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Client {
    /// Let a client in that may do something below one path, and nothing else
    ///
    /// The profile it gets is its credential: whoever has the file is that client. A client that may read and
    /// create, and not delete, is one for backups: what is there it cannot take away.
    #[command(
        after_help = "Example:\n  copal client add nightly --path vms --rights read,create --out nightly.json"
    )]
    Add {
        /// Its name: small letters, digits, dashes
        #[arg(value_name = "NAME")]
        name: String,
        /// The volume below which it may do something; empty: everywhere
        #[arg(long, value_name = "PATH")]
        path: String,
        /// What it may do: read, create, delete, with commas
        #[arg(long, value_name = "RIGHTS")]
        rights: String,
        /// Where its profile is written; a new file, for its owner alone
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// List them
    #[command(after_help = "Example:\n  copal client ls")]
    Ls,
    /// Write a new profile of a client, with a new key, before or after its certificate ends
    ///
    /// A client renews its own profile when half of its time is over, where the file may be written. This
    /// does it from another machine, with a profile that may do everything. The key of the old profile stays
    /// good until its certificate ends; where it may have been read by others, take the client away instead.
    #[command(after_help = "Example:\n  copal client renew nightly --out nightly.json")]
    Renew {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// Where its profile is written: a new file, or its present profile [default: NAME.json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Take one away: within seconds it may do nothing any more
    #[command(after_help = "Example:\n  copal client rm nightly")]
    Rm {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// Show what would be done
        #[arg(long)]
        dry_run: bool,
    },
}
