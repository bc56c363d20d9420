//! Arguments of `copal key`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `copal key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key file with restricted rights
    #[command(after_help = "\
A backup key allows backups and restores, and removes nothing. A delete key also allows forget, hold, delete, prune, repair and the removal of VMs. An admin key has all rights of the password. Every reader of the file can use the key, so keep it readable by its owner alone. Give it with --key FILE or COPAL_KEY_FILE, instead of a password. It suits timers and agents: a command with it computes no password hash, which takes most of a short command's time.

The first key changes the repository: from then on removals are signed, and older programs cannot open it. A key does not prevent the deletion of the repository's files without Copal. In a cluster, therefore give backups a client without the right delete (`copal client add`).

Examples:
  copal key add --role backup --out /root/web.key
  copal --key /root/web.key backup --vm web /var/lib/images/web.raw")]
    Add(KeyAdd),
    /// List the keys and passwords of the repository
    #[command(after_help = "\
Example:
  copal key ls")]
    Ls,
    /// Remove a key: its file no longer opens the repository
    #[command(after_help = "\
The removal does not protect data that was already read with the key, nor the secrets that the key unlocked: a holder of a copy of these can still use them. If such a copy may exist, create a new repository. The last key or password with all rights cannot be removed. In a fleet, later statements of the key's host about popular packs are ignored; its earlier ones remain valid.

Example:
  copal key rm 5c1d5f2b")]
    Rm(KeyRm),
}

#[derive(Debug, Args)]
pub(crate) struct KeyAdd {
    /// Role of the key
    #[arg(long, value_enum)]
    pub(crate) role: RoleWord,
    /// New file for the key, readable by its owner alone
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct KeyRm {
    /// Id of the key, or the beginning of it
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// Role of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleWord {
    /// Backs up and reads, removes nothing
    Backup,
    /// Also forgets, holds and frees snapshots, removes VMs, repairs
    Delete,
    /// All rights, including the management of keys
    Admin,
}
