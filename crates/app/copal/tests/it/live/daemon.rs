//! A storage daemon with two disks, qcow2 and raw, written through its own NBD server.

use crate::{
    disks::MIB,
    harness::{House, wait_until},
    qemu::tool,
};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

const DISK_BYTES: u64 = 16 * MIB;
/// Range of a continuous writer, and its unit.
const BLOCKS: u64 = 64;
const BLOCK_BYTES: u64 = 4096;

/// Whether the programs are installed; otherwise the test is skipped with a message, or fails if the suite
/// must be complete.
#[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
pub(crate) fn have_daemon() -> bool {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let have = there("qemu-storage-daemon") && there("qemu-io") && there("qemu-img");
    if !have {
        let required = std::env::var_os("COPAL_TEST_REQUIRE_QEMU").is_some();
        assert!(!required, "qemu-storage-daemon is missing: apt install qemu-system-common qemu-utils");
        eprintln!("SKIPPED: qemu-storage-daemon is missing; apt install qemu-system-common qemu-utils");
    }
    have
}

/// One command to a QMP server, over its own connection.
pub(super) fn execute(socket: &Path, command: &str, arguments: Value) -> Value {
    let mut stream = UnixStream::connect(socket).unwrap();
    let lines = BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    // After the greeting.
    let mut answers = lines.skip(1).filter(|answer| answer.get("event").is_none());
    let mut answer = Value::Null;
    for (command, arguments) in [("qmp_capabilities", json!({})), (command, arguments)] {
        let line = json!({ "execute": command, "arguments": arguments });
        writeln!(stream, "{line}").unwrap();
        answer = answers.next().unwrap();
    }
    assert!(answer.get("error").is_none(), "{command}: {answer}");
    answer["return"].clone()
}

/// How a daemon exports its disks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serves {
    None,
    Both,
    /// Both beside an iothread; those that are `true` run in it.
    BesideThread([bool; 2]),
}

/// A storage daemon with two disks.
pub(crate) struct Daemon {
    dir: PathBuf,
    child: Child,
    /// Content of the disks.
    pub(super) bytes: [Vec<u8>; 2],
    pattern: u8,
}

impl Daemon {
    /// A daemon that exports both disks to guests.
    pub(crate) fn start(house: &House) -> Daemon {
        Daemon::with(house, Serves::Both)
    }

    /// As [`Daemon::start`], with an iothread in which these exports run.
    pub(super) fn start_beside_thread(house: &House, in_thread: [bool; 2]) -> Daemon {
        Daemon::with(house, Serves::BesideThread(in_thread))
    }

    /// A daemon whose disks are not in use, and that exports nothing.
    pub(crate) fn idle(house: &House) -> Daemon {
        Daemon::with(house, Serves::None)
    }

    /// Like [`Daemon::start`], with a first disk of this size, which is not part of `bytes`.
    pub(super) fn start_large(house: &House, size_bytes: u64) -> Daemon {
        let mut daemon = Daemon::with(house, Serves::None);
        daemon.kill();
        let image = daemon.path("vm0.qcow2");
        tool("qemu-img", &["resize", "-q", &image, &size_bytes.to_string()]);
        daemon.start_again();
        daemon
    }

    fn with(house: &House, serves: Serves) -> Daemon {
        let dir = house.path("vm");
        std::fs::create_dir(&dir).unwrap();
        let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        tool("qemu-img", &["create", "-q", "-f", "qcow2", &path("vm0.qcow2"), "16M"]);
        File::create(path("vm1.raw")).unwrap().set_len(DISK_BYTES).unwrap();
        Daemon {
            child: spawn(&dir, serves),
            dir,
            bytes: [vec![0; DISK_BYTES as usize], vec![0; DISK_BYTES as usize]],
            pattern: 0,
        }
    }

    /// Ends it like an operator: persistent bitmaps are saved.
    pub(super) fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap();
    }

    /// Limits reads of the second disk to this number of bytes per second; 0 for no limit.
    pub(super) fn limit_reads(&self, bytes: u64) {
        let limits = json!({ "bps-read": bytes });
        self.execute("qom-set", json!({ "path": "slow", "property": "limits", "value": limits }));
    }

    /// Whether it runs.
    pub(super) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn start_again(&mut self) {
        for socket in ["qmp.sock", "nbd.sock"] {
            let _ = std::fs::remove_file(self.dir.join(socket));
        }
        self.child = spawn(&self.dir, Serves::Both);
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    fn uri(&self, disk: usize) -> String {
        format!("nbd+unix:///guest{disk}?socket={}", self.path("nbd.sock"))
    }

    /// Writes like a guest.
    pub(super) fn write(&mut self, disk: usize, offset: u64, length: u64) {
        self.pattern = self.pattern % 250 + 1;
        let command = format!("write -P {} {offset} {length}", self.pattern);
        tool("qemu-io", &["-f", "raw", "-c", &command, &self.uri(disk)]);
        let bytes = self.bytes[disk].get_mut(offset as usize..(offset + length) as usize);
        if let Some(bytes) = bytes {
            bytes.fill(self.pattern);
        }
    }

    /// Reads the present content with another program.
    pub(super) fn read_back(&mut self) {
        let out = self.path("read");
        tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &self.uri(0), &out]);
        self.bytes[0] = std::fs::read(&out).unwrap();
        std::fs::remove_file(&out).unwrap();
    }

    /// The disk must not be in use while it is resized.
    pub(super) fn resize(&mut self, disk: usize, size: u64) {
        let (top, guest) = (format!("top{disk}"), format!("guest{disk}"));
        self.execute("block-export-del", json!({ "id": guest, "mode": "hard" }));
        let is_gone = || {
            let exports = self.execute("query-block-exports", json!({}));
            exports.as_array().unwrap().iter().all(|export| export["id"] != guest)
        };
        wait_until("the end of an export", is_gone);
        self.execute("block_resize", json!({ "node-name": top, "size": size }));
        let export = json!({ "type": "nbd", "id": guest, "node-name": top, "name": guest, "writable": true });
        self.execute("block-export-add", export);
        self.bytes[disk].resize(size as usize, 0);
    }

    /// One command, over its own connection.
    pub(crate) fn execute(&self, command: &str, arguments: Value) -> Value {
        execute(&self.dir.join("qmp.sock"), command, arguments)
    }

    /// Named nodes, in order.
    pub(super) fn nodes(&self) -> Vec<String> {
        let listed = self.execute("query-named-block-nodes", json!({ "flat": true }));
        let names =
            listed.as_array().unwrap().iter().map(|node| node["node-name"].as_str().unwrap().to_owned());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('#')).collect();
        names.sort();
        names
    }

    /// Waits until a backup has passed its point in time, and both disks are served.
    pub(super) fn wait_for_moment(&self) {
        let is_up = || {
            let listed = Command::new("nbdinfo").args(["--list", &self.uri(0)]).output().unwrap();
            String::from_utf8_lossy(&listed.stdout).contains("-snap1")
        };
        wait_until("the point in time", is_up);
    }

    /// Copal's bitmaps of a node.
    pub(super) fn bitmaps(&self, node: &str) -> Vec<String> {
        let listed = self.execute("query-named-block-nodes", json!({ "flat": true }));
        let mut nodes = listed.as_array().unwrap().iter();
        let node = nodes.find(|found| found["node-name"] == node).unwrap();
        let bitmaps = node["dirty-bitmaps"].as_array().cloned().unwrap_or_default();
        let names = bitmaps.iter().filter_map(|bitmap| bitmap["name"].as_str());
        names
            .filter(|name| name.starts_with("copal-") && !name.ends_with("-sentinel"))
            .map(str::to_owned)
            .collect()
    }

    /// Writes until it is stopped: block after block of the first disk, round and round, each with the number
    /// of the write.
    pub(super) fn write_on(&mut self) -> Writer {
        self.write(0, 0, BLOCKS * BLOCK_BYTES);
        let stop = Arc::new(AtomicBool::new(false));
        let (told, uri, out) = (Arc::clone(&stop), self.uri(0), self.dir.clone());
        let thread = std::thread::spawn(move || {
            // Into a pipe it would print nothing before its end.
            let mut shell = Command::new("stdbuf")
                .args(["-oL", "qemu-io", "-f", "raw", &uri])
                .current_dir(out)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut input = shell.stdin.take().unwrap();
            let mut output = BufReader::new(shell.stdout.take().unwrap());
            // The first round is that of the byte above.
            let mut number = BLOCKS * 250 - 1;
            while !told.load(Ordering::Acquire) {
                number += 1;
                let (block, pattern) = (number % BLOCKS, pattern_of(number));
                // One line at a time: it reads a second one only when more data arrives.
                writeln!(input, "write -P {pattern} {} {BLOCK_BYTES}", block * BLOCK_BYTES).unwrap();
                let mut line = String::new();
                while !line.contains(" ops") {
                    line.clear();
                    assert!(output.read_line(&mut line).unwrap() > 0);
                }
            }
            drop(input);
            shell.wait().unwrap();
        });
        Writer { stop, thread }
    }
}

/// A non-zero byte that identifies the round of a write.
fn pattern_of(number: u64) -> u8 {
    (number / BLOCKS % 250) as u8 + 1
}

/// Number of writes of the present round, if the disk is that of a single moment: the blocks up to one place
/// are of this round, those after it of the previous one.
pub(super) fn moment_of(disk: &[u8]) -> Option<usize> {
    let blocks: Vec<&[u8]> = disk.chunks(BLOCK_BYTES as usize).take(BLOCKS as usize).collect();
    let whole = blocks.iter().all(|block| block.iter().all(|byte| byte == &block[0]));
    let first = blocks[0][0];
    let at = blocks.iter().position(|block| block[0] != first).unwrap_or(blocks.len());
    let is_before = blocks[at..].iter().all(|block| block[0] == blocks[at][0]);
    (whole && is_before).then_some(at)
}

/// A continuous writer.
pub(super) struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &Path, serves: Serves) -> Child {
    let mut command = Command::new("qemu-storage-daemon");
    command.current_dir(dir).stdin(Stdio::null()).stderr(Stdio::null());
    command.args(["--chardev", "socket,path=qmp.sock,server=on,wait=off,id=c0", "--monitor", "chardev=c0"]);
    command.args([
        "--blockdev",
        "driver=qcow2,node-name=vm0,discard=unmap,file.driver=file,file.filename=vm0.qcow2,file.discard=unmap",
    ]);
    command.args(["--object", "throttle-group,id=slow"]);
    let slow = "discard=unmap,file.driver=throttle,file.throttle-group=slow,file.discard=unmap,file.file.driver=file,\
         file.file.filename=vm1.raw,file.file.discard=unmap";
    command.args(["--blockdev", &format!("driver=raw,node-name=vm1,{slow}")]);
    for disk in 0..2 {
        command.args(["--blockdev", &format!("driver=raw,node-name=top{disk},file=vm{disk},discard=unmap")]);
    }
    if matches!(serves, Serves::BesideThread(_)) {
        command.args(["--object", "iothread,id=io0"]);
    }
    if serves != Serves::None {
        command.args(["--nbd-server", "addr.type=unix,addr.path=nbd.sock"]);
    }
    for disk in (0..2).filter(|_| serves != Serves::None) {
        let is_in_thread = matches!(serves, Serves::BesideThread(in_thread) if in_thread[disk]);
        let thread = if is_in_thread { ",iothread=io0" } else { "" };
        command.args([
            "--export",
            &format!("type=nbd,id=guest{disk},node-name=top{disk},name=guest{disk},writable=on{thread}"),
        ]);
    }
    command.args(["--pidfile", "ready"]);
    let _ = std::fs::remove_file(dir.join("ready"));
    let child = command.spawn().unwrap();
    wait_until("the daemon", || dir.join("ready").exists());
    child
}
