//! HDFS 3.4.2: a NameNode, three DataNodes and the clients in one Java process (`bench/peers/hdfs`),
//! connected over loopback.

use super::{System, phases::Done};
use anyhow::{Context, Result, bail, ensure};
use std::{
    cell::RefCell,
    fs,
    io::{BufRead, BufReader, Lines, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    rc::Rc,
};

/// Starts the process, and waits until it is ready.
pub(super) fn start(peers: &Path, directory: &Path, clients: usize) -> Result<Rc<RefCell<Java>>> {
    let home = peers.join("hdfs");
    let jar = home.join("hdfs-peer.jar");
    ensure!(
        jar.exists(),
        "there is no {}; `make bench SUITE=beanfs-fig8a` installs it and runs the suite",
        jar.display()
    );
    fs::create_dir_all(directory)?;
    let log = fs::File::create(directory.join("log"))?;
    let mut child = Command::new("java")
        .arg("-Xmx2g")
        .arg("-cp")
        .arg(format!("{}:{}/jars/*", jar.display(), home.display()))
        .arg("HdfsPeer")
        .arg(directory)
        .arg(clients.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("starting java")?;
    let input = child.stdin.take().context("its input")?;
    let output = BufReader::new(child.stdout.take().context("its output")?).lines();
    let mut java = Java { child, input, output };
    let line = java.line().with_context(|| {
        let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
        format!("HDFS did not start: {log}")
    })?;
    ensure!(line == "ready", "HDFS said {line}");
    Ok(Rc::new(RefCell::new(java)))
}

/// The process; the drop ends it.
pub(super) struct Java {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Java {
    fn line(&mut self) -> Result<String> {
        Ok(self.output.next().context("it ended")??)
    }

    fn request(&mut self, words: &str) -> Result<Done> {
        writeln!(self.input, "{words}")?;
        let line = self.line()?;
        let mut words = line.split(' ');
        let (Some("done"), Some(files), Some(seconds)) = (words.next(), words.next(), words.next()) else {
            bail!("HDFS said {line}");
        };
        Ok(Done { files: files.parse()?, seconds: seconds.parse()? })
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// HDFS with one of two durabilities of writes.
pub(super) struct Hdfs {
    java: Rc<RefCell<Java>>,
    is_durable: bool,
}

impl Hdfs {
    /// Closes a file when all DataNodes have it in memory.
    pub(super) fn as_shipped(java: &Rc<RefCell<Java>>) -> Hdfs {
        Hdfs { java: Rc::clone(java), is_durable: false }
    }

    /// Calls `hsync` before the close: all DataNodes have the file on their disks.
    pub(super) fn durable(java: &Rc<RefCell<Java>>) -> Hdfs {
        Hdfs { java: Rc::clone(java), is_durable: true }
    }

    /// Directory of a prefix; both durabilities share one server.
    fn prefix(&self, prefix: &str) -> String {
        let way = if self.is_durable { "hsync" } else { "close" };
        format!("{way}-{prefix}")
    }
}

impl System for Hdfs {
    fn name(&self) -> &'static str {
        if self.is_durable { "HDFS, hsync" } else { "HDFS" }
    }

    fn write(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done> {
        let how = if self.is_durable { "hsync" } else { "close" };
        let words = format!("write {} {bytes} {seconds} {how}", self.prefix(prefix));
        self.java.borrow_mut().request(&words)
    }

    fn read(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done> {
        let words = format!("read {} {bytes} {seconds}", self.prefix(prefix));
        self.java.borrow_mut().request(&words)
    }
}
