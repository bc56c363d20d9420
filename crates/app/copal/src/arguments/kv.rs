//! What can be typed behind `copal kv`.

use super::Common;
use clap::{ArgGroup, Args, Subcommand};
use copal_node::Patience;
use std::path::PathBuf;

const HELP: &str = "\
These commands work on the store of a repository (--repo), below its encryption, so no password \
is asked for: keys are shown as they are, values are ciphertext. With --store they work on any \
store of the engine: a file, a directory of files or a block device.

Keys are shown as KEYSPACE/KEY, bytes that are no printable characters as \\xNN. Only `repair` \
writes.

Examples:
  copal kv stats
  copal kv dump                                  (what the store consists of)
  copal kv dump 17 --entries | less
  copal kv verify --deep
  copal kv repair --from /mnt/replica/store.copal
  copal kv filters --store cache.kv --keys asked.txt --keyspace files --svg filters.svg";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Kv {
    /// A store of the engine instead of the repository's: a file, a directory of files, a block device
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) store: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: KvCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    /// Print an object of the store, or what the store consists of
    Dump(Dump),
    /// Look for damage and for objects of no one
    Verify(Verify),
    /// Refill damaged key ranges from another store, or save what is readable
    Repair(Repair),
    /// Show the engine's statistics
    #[command(after_help = "\
Look-ups, reads and writes are counted since this command opened the store. Memory is shown by class; all classes \
together stay within one budget, a part of --memory.

Examples:
  copal kv stats
  copal kv stats --store cache.kv --json")]
    Stats,
    /// Show where filter units are and how hot what they stand for is
    Filters(Filters),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Works on a store that does not open, too: damage is shown where it stands, and the exit code is \
20 then.

Without OBJECT: manifest, keyspaces, runs and tables, value objects, logs, and what belongs to \
no one. A table is shown with its partitions, index and filter pages; a log group by group; the \
manifest edit by edit; a value object with its dead ranges. --entries adds the entries, the \
operations, or the values that point into it.

Examples:
  copal kv dump
  copal kv dump 1                                (the manifest)
  copal kv dump 17 --partition 3 --hex
  copal --json kv dump 17 --entries | jq -c 'select(.kind==\"put\")'")]
pub(crate) struct Dump {
    /// Number of the object, from the outline
    #[arg(value_name = "OBJECT")]
    pub(crate) object: Option<u64>,
    /// Every entry of a table, operation of a log, value of a value object
    #[arg(long, requires = "object")]
    pub(crate) entries: bool,
    /// Only this partition of a table, with its entries
    #[arg(long, value_name = "N", requires = "object")]
    pub(crate) partition: Option<u32>,
    /// Keys and values in hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Stop after so many lines
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --deep names and accounts are checked and every entry is walked; --deep reads every byte \
of tables and values. With --rate everything is read at that pace and nothing else is checked: \
for a look at a busy disk. Damage is exit code 20.

Examples:
  copal kv verify
  copal kv verify --deep --json
  copal kv verify --rate 20M")]
pub(crate) struct Verify {
    /// Read every checksum of every table and value
    #[arg(long, conflicts_with = "rate")]
    pub(crate) deep: bool,
    /// Only read tables and values, this many bytes per second
    #[arg(long, value_name = "SIZE", value_parser = crate::human::parse_bytes)]
    pub(crate) rate: Option<u64>,
}

#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("how").required(true).args(["from", "salvage"])),
    after_help = "\
Everything is read first; each damaged key range is then replaced in one stroke. --from takes \
what another store holds of it: a replica, a copy from before. --salvage keeps every row that a \
look-up still answers and gives up the others. A device that errs ends it before anything is \
changed.

In a repository --salvage loses rows of the engine; run `copal check` behind it to see what that \
hurts.

Examples:
  copal kv repair --from /mnt/replica/store.copal --dry-run
  copal kv repair --from /mnt/replica/store.copal
  copal kv repair --store cache.kv --salvage"
)]
pub(crate) struct Repair {
    /// Take the entries from this store: a file, a directory of files, a block device
    #[arg(long, value_name = "PATH")]
    pub(crate) from: Option<PathBuf>,
    /// Keep what is readable and give up the rest
    #[arg(long)]
    pub(crate) salvage: bool,
    /// Only ranges of this keyspace
    #[arg(long, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// Say what would be repaired, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Filter units live in memory: a store that was just opened holds none and knows no heat. --keys \
looks keys up first, one per line, so that the picture is that of these look-ups.

Each run of the tree is a row, the key space is cut into columns of about as many keys; the \
height of a block is heat per key, on a logarithmic scale, the row below it bits of filter per \
key.

Examples:
  copal kv filters --store cache.kv --keys asked.txt --keyspace files
  copal kv filters --keys asked.txt --keyspace backup-chunks --svg chunks.svg")]
pub(crate) struct Filters {
    /// Look these keys up first: one per line, \xNN for other bytes
    #[arg(long, value_name = "FILE", requires = "keyspace")]
    pub(crate) keys: Option<PathBuf>,
    /// The keyspace they are looked up in
    #[arg(long, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// Write the picture to a new file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Columns of the terminal (default: what it has, or 80)
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(40..=400))]
    pub(crate) width: Option<u16>,
}

/// What the commands need beside their own words.
pub(crate) struct Where<'a> {
    pub(crate) common: &'a Common,
    pub(crate) store: Option<&'a PathBuf>,
    pub(crate) patience: Patience,
}
