//! Disk of the demonstration: an ext4 image of files of this machine, changed in place without root.
//!
//! `mke2fs -d` makes it and `debugfs -w` changes it, so no mount is needed. Database pages are written
//! directly to the blocks that `debugfs` reports, as a guest would.

use anyhow::{Context, Result, bail};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::{
    dataset::{content, random::Random},
    metered,
};

const SIZE: &str = "2G";
/// Large enough to be realistic, small enough for seconds.
const FILES_BYTES: u64 = 300 << 20;
const LARGEST_FILE_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: u64 = 4096;
const DATABASE_BYTES: u64 = 32 << 20;
const REWRITTEN_PAGES: u64 = 200;
/// Sources of files, tried in order until enough bytes are copied; the last exists on every machine.
const PLACES: [&str; 7] = [
    "/usr/share/doc",
    "/usr/lib/python3",
    "/usr/share/perl",
    "/usr/include",
    "/usr/share/locale",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib",
];

pub(super) struct Disk {
    image: PathBuf,
    scratch: PathBuf,
    /// Paths inside the image that may be removed.
    removable: Vec<String>,
    random: Random,
}

impl Disk {
    /// Makes the image; `scratch` holds the files to put into it.
    pub(super) fn make(image: &Path, scratch: &Path) -> Result<Disk> {
        let tree = scratch.join("tree");
        let mut gathered = Gathered { left: FILES_BYTES, files: Vec::new() };
        for place in PLACES {
            if gathered.left > 0 && Path::new(place).is_dir() {
                let target = tree.join(place.trim_start_matches('/'));
                gathered.copy(Path::new(place), &target)?;
            }
        }
        let mut random = Random::new(&[2026]);
        fs::create_dir_all(tree.join("var/log"))?;
        content::append_log(&tree.join("var/log/syslog"), 8 << 20, 1, &mut random)?;
        content::write_database(&tree.join("var/data.db"), DATABASE_BYTES, &mut random)?;
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-L", "copal-demo"]);
        mke2fs.args(["-E", "lazy_itable_init=0,lazy_journal_init=0", "-d"]).arg(&tree).arg(image).arg(SIZE);
        metered::run(with_sbin(&mut mke2fs))?.success("mke2fs")?;
        let removable = gathered
            .files
            .iter()
            .filter_map(|path| path.strip_prefix(&tree).ok())
            .map(|path| format!("/{}", path.display()))
            .filter(|path| !path.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '\\')))
            .collect();
        fs::remove_dir_all(&tree).context("removing the gathered files")?;
        Ok(Disk { image: image.to_owned(), scratch: scratch.to_owned(), removable, random })
    }

    /// Applies one day of work: removes and adds files, grows the log, rewrites pages of the database.
    pub(super) fn change(&mut self) -> Result<()> {
        let log = self.scratch.join("syslog");
        let program = self.scratch.join("program");
        content::append_log(&log, 10 << 20, 2, &mut self.random)?;
        let mut noise = vec![0; 6 << 20];
        self.random.fill(&mut noise);
        fs::write(&program, &noise)?;
        let mut script = String::new();
        for _ in 0..40.min(self.removable.len()) {
            let index = self.random.below(self.removable.len() as u64) as usize;
            script.push_str(&format!("rm {}\n", self.removable.swap_remove(index)));
        }
        script.push_str("rm /var/log/syslog\n");
        script.push_str(&format!("write {} /var/log/syslog\n", log.display()));
        script.push_str(&format!("write {} /usr/program\n", program.display()));
        self.debugfs(&script)?;
        fs::remove_file(log)?;
        fs::remove_file(program)?;
        self.rewrite_pages()
    }

    fn rewrite_pages(&mut self) -> Result<()> {
        let answer = self.debugfs("blocks /var/data.db\n")?;
        let blocks: Vec<u64> = answer.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if (blocks.len() as u64) < DATABASE_BYTES / BLOCK_BYTES {
            bail!("debugfs listed {} blocks of the database", blocks.len());
        }
        let image = File::options().write(true).open(&self.image).context("opening the disk")?;
        for _ in 0..REWRITTEN_PAGES {
            let number = self.random.below(DATABASE_BYTES / content::PAGE_BYTES as u64);
            let page = content::page(number, 2, &mut self.random);
            for (half, bytes) in page.chunks(BLOCK_BYTES as usize).enumerate() {
                let block = blocks[number as usize * 2 + half];
                image.write_all_at(bytes, block * BLOCK_BYTES).context("rewriting a page")?;
            }
        }
        Ok(())
    }

    /// Runs a script of debugfs commands on the image; returns their output.
    fn debugfs(&self, script: &str) -> Result<String> {
        let path = self.scratch.join("debugfs.script");
        fs::write(&path, script)?;
        let mut debugfs = Command::new("debugfs");
        debugfs.arg("-w").arg("-f").arg(&path).arg(&self.image);
        let run = metered::run(with_sbin(&mut debugfs))?.success("debugfs")?;
        fs::remove_file(&path)?;
        Ok(run.stdout.lines().filter(|line| !line.starts_with("debugfs: ")).collect::<Vec<_>>().join("\n"))
    }
}

/// A plain user's `PATH` may lack the directories of the file-system tools.
fn with_sbin(command: &mut Command) -> &mut Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"))
}

/// Copies regular files until enough bytes are there; skips unreadable ones.
struct Gathered {
    left: u64,
    files: Vec<PathBuf>,
}

impl Gathered {
    fn copy(&mut self, from: &Path, to: &Path) -> Result<()> {
        let Ok(entries) = fs::read_dir(from) else {
            return Ok(());
        };
        let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        entries.sort();
        for path in entries {
            if self.left == 0 {
                return Ok(());
            }
            let (Ok(metadata), Some(name)) = (fs::symlink_metadata(&path), path.file_name()) else {
                continue;
            };
            let target = to.join(name);
            if metadata.is_dir() {
                self.copy(&path, &target)?;
            } else if metadata.is_file() && metadata.len() <= LARGEST_FILE_BYTES && !target.exists() {
                fs::create_dir_all(to)?;
                if fs::copy(&path, &target).is_ok() {
                    self.left = self.left.saturating_sub(metadata.len());
                    self.files.push(target);
                }
            }
        }
        Ok(())
    }
}
