//! Content outside of packages: logs, database pages, private files. Seeds make a set reproducible; the
//! content compresses about as well as real content of its kind.

use super::random::Random;
use anyhow::{Context, Result};
use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
};

/// Size of a PostgreSQL page.
pub const PAGE_BYTES: usize = 8192;

const WORDS: [&str; 24] = [
    "connection",
    "session",
    "opened",
    "closed",
    "user",
    "root",
    "accepted",
    "failed",
    "timeout",
    "request",
    "index",
    "static",
    "images",
    "api",
    "orders",
    "invoice",
    "customer",
    "status",
    "kernel",
    "started",
    "service",
    "reloaded",
    "password",
    "publickey",
];

/// Appends about `bytes` of log lines.
///
/// # Errors
/// A file cannot be written.
pub fn append_log(path: &Path, bytes: u64, day: u32, random: &mut Random) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))?;
    let mut text = String::new();
    let mut written = 0;
    while written < bytes {
        text.clear();
        for _ in 0..256 {
            let (time, address, size) = (random.below(86_400), random.next(), random.below(90_000));
            let word = |random: &mut Random| WORDS[random.below(WORDS.len() as u64) as usize];
            let (first, second, third) = (word(random), word(random), word(random));
            text.push_str(&format!(
                "2026-03-{:02}T{:02}:{:02}:{:02} 10.{}.{}.{} \"GET /{first}/{second}/{} HTTP/1.1\" 200 {size} {third}\n",
                day % 28 + 1,
                time / 3600,
                time / 60 % 60,
                time % 60,
                address & 3,
                address >> 8 & 15,
                address >> 16 & 255,
                address >> 32 & 0xfff,
            ));
        }
        file.write_all(text.as_bytes()).context("writing a log")?;
        written += text.len() as u64;
    }
    Ok(())
}

/// Makes a database file of whole pages.
///
/// # Errors
/// A file cannot be written.
pub fn write_database(path: &Path, bytes: u64, random: &mut Random) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    for number in 0..bytes / PAGE_BYTES as u64 {
        file.write_all(&page(number, 0, random)).context("writing a database")?;
    }
    Ok(())
}

/// Rewrites `count` pages at random places of an existing database, in place.
///
/// # Errors
/// A file cannot be written.
pub fn rewrite_pages(path: &Path, count: u64, day: u32, random: &mut Random) -> Result<()> {
    let file =
        OpenOptions::new().write(true).open(path).with_context(|| format!("opening {}", path.display()))?;
    let pages = file.metadata()?.len() / PAGE_BYTES as u64;
    for _ in 0..count.min(pages) {
        let number = random.below(pages.max(1));
        file.write_all_at(&page(number, day, random), number * PAGE_BYTES as u64)
            .context("rewriting a page")?;
    }
    Ok(())
}

/// A page with a header, rows of text and numbers, and free space; it compresses about two to one.
pub fn page(number: u64, day: u32, random: &mut Random) -> Vec<u8> {
    let mut page = Vec::with_capacity(PAGE_BYTES);
    page.extend_from_slice(&number.to_le_bytes());
    page.extend_from_slice(&u64::from(day).to_le_bytes());
    let used = PAGE_BYTES - 400 - random.below(800) as usize;
    while page.len() < used {
        let word = WORDS[random.below(WORDS.len() as u64) as usize];
        page.extend_from_slice(&random.next().to_le_bytes());
        page.extend_from_slice(word.as_bytes());
        page.extend_from_slice(&random.below(100_000).to_le_bytes());
    }
    page.resize(PAGE_BYTES, 0);
    page
}

/// Writes incompressible files of 1 MiB on average below `directory`; returns their number.
///
/// # Errors
/// A file cannot be written.
pub fn write_private(directory: &Path, prefix: &str, bytes: u64, random: &mut Random) -> Result<u32> {
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    let mut left = bytes;
    let mut count = 0;
    let mut buffer = vec![0; 2 << 20];
    while left > 0 {
        let length = (4096 + random.below((2 << 20) - 4096)).min(left) as usize;
        random.fill(&mut buffer[..length]);
        fs::write(directory.join(format!("{prefix}-{count:04}.bin")), &buffer[..length])
            .context("writing a private file")?;
        left -= length as u64;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewriting_pages_changes_pages_in_place_only() {
        let scratch = tempfile::tempdir().expect("scratch");
        let path = scratch.path().join("data.db");
        write_database(&path, 64 * PAGE_BYTES as u64, &mut Random::new(&[1])).expect("written");
        let before = fs::read(&path).expect("readable");
        rewrite_pages(&path, 5, 1, &mut Random::new(&[2])).expect("rewritten");
        let after = fs::read(&path).expect("readable");
        assert_eq!(before.len(), after.len());
        let changed = before.chunks(PAGE_BYTES).zip(after.chunks(PAGE_BYTES)).filter(|(a, b)| a != b).count();
        assert!((1..=5).contains(&changed), "{changed}");
    }

    #[test]
    fn private_files_and_logs_have_the_size_asked_for() {
        let scratch = tempfile::tempdir().expect("scratch");
        let mut random = Random::new(&[3]);
        write_private(&scratch.path().join("p"), "a", 5_000_000, &mut random).expect("written");
        let sizes = fs::read_dir(scratch.path().join("p"))
            .expect("there")
            .map(|e| e.expect("entry").metadata().expect("file").len());
        assert_eq!(sizes.sum::<u64>(), 5_000_000);
        let log = scratch.path().join("var/log/syslog");
        append_log(&log, 100_000, 1, &mut random).expect("written");
        assert!((100_000..200_000).contains(&fs::metadata(log).expect("there").len()));
    }
}
