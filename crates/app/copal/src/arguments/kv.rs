//! Arguments of `copal kv`.

use super::CommonArgs;
use clap::{ArgGroup, Args, Subcommand};
use copal_node::Patience;
use std::path::PathBuf;

const HELP: &str = "\
These commands work on the store of a repository (--repo), below its encryption, and ask for no \
password: keys are shown as stored, values are ciphertext. With --store they work on any \
store of the engine: a file, a directory of files or a block device.

Keys are shown as KEYSPACE/KEY, with bytes that are not printable as \\xNN. Only `repair` \
writes.

Examples:
  copal kv stats
  copal kv dump                                  (the parts of the store)
  copal kv dump 17 --entries | less
  copal kv verify --deep
  copal kv repair --from /mnt/replica/store.copal
  copal kv filters --store cache.kv --keys asked.txt --keyspace files --svg filters.svg";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct KvArgs {
    /// Store of the engine, instead of the repository's: a file, a directory of files or a block device
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) store: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: KvCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    /// Print an object of the store, or an outline of the store
    Dump(DumpArgs),
    /// Find damage and objects without an owner
    Verify(KvVerifyArgs),
    /// Replace damaged key ranges from another store, or keep only their readable rows
    Repair(KvRepairArgs),
    /// Show the engine's statistics
    #[command(after_help = "\
Look-ups, reads and writes are counted from the moment when this command opened the store. Memory is shown by class; \
all classes share one budget, a part of --memory.

Examples:
  copal kv stats
  copal kv stats --store cache.kv --json")]
    Stats,
    /// Show the filter units and the heat of their partitions
    Filters(FiltersArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Also works on a store that does not open: damage is shown at its place, and the exit code is \
then 20.

Without OBJECT, the outline lists the manifest, keyspaces, runs and tables, value objects, logs, and objects without an \
owner. A table is shown with its partitions, index and filter pages; a log group by group; the \
manifest edit by edit; a value object with its dead ranges. --entries adds the entries, the \
operations, or the values that point into the object.

Examples:
  copal kv dump
  copal kv dump 1                                (the manifest)
  copal kv dump 17 --partition 3 --hex
  copal --json kv dump 17 --entries | jq -c 'select(.kind==\"put\")'")]
pub(crate) struct DumpArgs {
    /// Number of the object, from the outline
    #[arg(value_name = "OBJECT")]
    pub(crate) object: Option<u64>,
    /// Print every entry of a table, operation of a log, or value of a value object
    #[arg(long, requires = "object")]
    pub(crate) entries: bool,
    /// Print only this partition of a table, with its entries
    #[arg(long, value_name = "N", requires = "object")]
    pub(crate) partition: Option<u32>,
    /// Print keys and values in hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Stop after this number of lines
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --deep, the command checks names and space accounts and walks every entry; --deep also \
reads every byte of tables and values. With --rate it only reads all data of the store, at that pace, and looks for the lost keys where data is damaged. \
Damage gives exit code 20.

Examples:
  copal kv verify
  copal kv verify --deep --json
  copal kv verify --rate 20M")]
pub(crate) struct KvVerifyArgs {
    /// Read every checksum of every table and value
    #[arg(long, conflicts_with = "rate")]
    pub(crate) deep: bool,
    /// Only read all data, at this number of bytes per second
    #[arg(long, value_name = "SIZE", value_parser = crate::human::parse_bytes)]
    pub(crate) rate: Option<u64>,
}

#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("how").required(true).args(["from", "salvage"])),
    after_help = "\
The command first reads everything, then replaces each damaged key range atomically. --from takes \
the content of the range from another store: a replica or an earlier copy. --salvage keeps every row that \
can still be read, and drops the others. An I/O error of the device ends the command before it changes \
anything.

In a repository, --salvage loses rows of the engine; run `copal check` afterwards to see the snapshots that are \
affected.

Examples:
  copal kv repair --from /mnt/replica/store.copal --dry-run
  copal kv repair --from /mnt/replica/store.copal
  copal kv repair --store cache.kv --salvage"
)]
pub(crate) struct KvRepairArgs {
    /// Take the entries from this store: a file, a directory of files or a block device
    #[arg(long, value_name = "PATH")]
    pub(crate) from: Option<PathBuf>,
    /// Keep the readable rows and drop the others
    #[arg(long)]
    pub(crate) salvage: bool,
    /// Only ranges of this keyspace
    #[arg(long, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// Show the effect, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Filter units are in memory only: a store that was just opened has none, and has no heat. --keys \
first looks up keys, one per line, so that the picture shows the effect of these look-ups.

Each run of the tree is a row. The key space is divided into columns of about equally many keys. The \
height of a block is heat per key, on a logarithmic scale; the row below it shows filter bits per \
key.

Examples:
  copal kv filters --store cache.kv --keys asked.txt --keyspace files
  copal kv filters --keys asked.txt --keyspace backup-chunks --svg chunks.svg")]
pub(crate) struct FiltersArgs {
    /// File of keys to look up first: one per line, \xNN for bytes that are not printable
    #[arg(long, value_name = "FILE", requires = "keyspace")]
    pub(crate) keys: Option<PathBuf>,
    /// Keyspace of these keys
    #[arg(long, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// Also write the picture to this new file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Width in columns (default: that of the terminal, or 80)
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(40..=400))]
    pub(crate) width: Option<u16>,
}

/// Store and memory of a command on the engine, beside its own arguments.
pub(crate) struct EnginePlace<'a> {
    pub(crate) common: &'a CommonArgs,
    pub(crate) store: Option<&'a PathBuf>,
    pub(crate) patience: Patience,
}
