//! `emulate`: a model of a disk behind an NBD socket, at its own speed, for programs that know nothing of it.
//!
//! Contents are in memory, or in a file. Flushes and durable writes reach the model; a trim reaches one that takes
//! discards. Several clients share the disk and its queue. Times below 1 ms are those of the machine's timers.
//!
//! Not here: the models (`copal_device::emulated`), the protocol (`copal_nbd`).

use crate::disk_server::{DeviceDisk, DiskExport};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use copal_bench_harness::model_disk::ModelDisk;
use copal_device::{Image, emulated::DiskContents};
use copal_nbd::{ServerAddress, server::Server};
use signal_hook::{consts, flag};
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EmulatedDisk {
    /// A disk of 7,200 turns a minute without caches
    Hdd,
    /// A flash drive with power-loss protection
    Ssd,
    /// A flash drive whose flush takes a millisecond
    ConsumerSsd,
}

#[derive(Args)]
#[command(after_help = "\
Prints one line when clients may connect, and serves until Ctrl-C. Contents in memory end with it.

Examples:
  cargo xtask bench emulate --disk hdd --socket /tmp/hdd.socket
  cargo xtask bench emulate --disk ssd --socket /tmp/ssd.socket --size 8 --image /var/tmp/ssd.raw

As a block device, in another terminal, as root:
  mkdir -p /tmp/hdd && nbdfuse /tmp/hdd/disk --unix /tmp/hdd.socket &
  losetup --find --show --direct-io=on /tmp/hdd/disk")]
pub(crate) struct Options {
    /// Model of the disk
    #[arg(long, value_enum)]
    disk: EmulatedDisk,
    /// Unix socket of the server; it must not exist
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Size of a new disk
    #[arg(long, value_name = "GIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    size: u64,
    /// Keep the contents in this file; an existing one decides the size
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
}

#[expect(clippy::print_stdout, reason = "the line that says the disk is ready")]
pub(crate) fn run(_root: &Path, options: &Options) -> Result<()> {
    let is_ended = Arc::new(AtomicBool::new(false));
    for signal in [consts::SIGINT, consts::SIGTERM, consts::SIGHUP] {
        flag::register(signal, Arc::clone(&is_ended)).context("cannot catch signals")?;
    }
    let size = options.size << 30;
    let contents: Box<dyn DiskContents> = match &options.image {
        Some(path) => Box::new(open_image(path, size)?),
        None => Box::new(Image::zeroed(size)),
    };
    let model = match options.disk {
        EmulatedDisk::Hdd => ModelDisk::Hdd,
        EmulatedDisk::Ssd => ModelDisk::Ssd,
        EmulatedDisk::ConsumerSsd => ModelDisk::ConsumerSsd,
    };
    let device = model.paced(contents)?;
    let size = device.geometry().size;
    let server = Server::bind(&ServerAddress::Unix(options.socket.clone()))?;
    let (name, uri, socket) = (model.name(), server.uri("")?, options.socket.display());
    println!(
        "{name} of {size} bytes is ready at {uri} ; as a file: nbdfuse DIR/disk --unix {socket} ; then as a block \
         device: losetup --find --show --direct-io=on DIR/disk"
    );
    let exports = DiskExport(Arc::new(DeviceDisk::new(device)));
    Ok(server.run(&exports, || is_ended.load(Ordering::Relaxed))?)
}

/// The file of the contents, made with `size` zero bytes unless it exists.
fn open_image(path: &Path, size: u64) -> Result<File> {
    const BLOCK: u64 = 4096;
    let name = path.display();
    let exists = path.exists();
    let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file =
        opened.with_context(|| format!("cannot open {name} for writing; name a file where there is room"))?;
    if !exists {
        file.set_len(size).with_context(|| format!("cannot make {name} {size} bytes long"))?;
    }
    let meta = file.metadata().with_context(|| format!("cannot examine {name}"))?;
    ensure!(meta.is_file(), "{name} is no file; name a file, or a path where none exists");
    let bytes = meta.len();
    ensure!(
        bytes > 0 && bytes.is_multiple_of(BLOCK),
        "{name} has {bytes} bytes, which are no whole blocks of {BLOCK}; name another file"
    );
    Ok(file)
}
