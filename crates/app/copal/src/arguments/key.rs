//! What can be typed behind `copal key`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `copal key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyWord {
    /// Make a key file for somebody who may do less than whoever has the password
    #[command(after_help = "\
A backup key backs up and restores and takes nothing away. A delete key also forgets, holds, deletes, prunes, removes VMs and repairs. An admin key does all that the password does. Whoever has the file has the key: keep it for its owner alone. Use it with --key FILE or COPAL_KEY_FILE, in the place of a password.

The first key of a repository changes it: what takes something away is signed from then on, and older programs no longer open it. Where files of the repository can be deleted without Copal, a key keeps nobody from that: in a cluster give backups a client without the right to delete (`copal client add`).

Examples:
  copal key add --role backup --out /root/web.key
  copal --key /root/web.key backup --vm web /var/lib/images/web.raw")]
    Add(KeyAdd),
    /// List the keys of the repository, passwords too
    #[command(after_help = "\
Example:
  copal key ls")]
    Ls,
    /// Remove a key: its file opens the repository no more
    #[command(after_help = "\
What was read with it before stays read, and whoever made a copy of what it opened keeps the use of that: where that is to be feared, make a new repository. The last key or password that opens everything is not removed. In a fleet, what the host of the key says of popular packs counts no more from then on; what it said before stands.

Example:
  copal key rm 5c1d5f2b")]
    Rm(KeyRm),
}

#[derive(Debug, Args)]
pub(crate) struct KeyAdd {
    /// What the key is for
    #[arg(long, value_enum)]
    pub(crate) role: RoleWord,
    /// Where the key is written; a new file, for its owner alone
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct KeyRm {
    /// Its id, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleWord {
    /// Backs up and reads; takes nothing away
    Backup,
    /// Also forgets, holds and frees snapshots, removes VMs, repairs
    Delete,
    /// Everything, keys too
    Admin,
}
