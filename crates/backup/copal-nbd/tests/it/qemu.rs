//! Tests with a `qemu-nbd` that is started and stopped by each test.

use copal_nbd::{BASE_ALLOCATION, Client, ConnectOptions, MapExtent, NbdError, ServerAddress, Uri};
use std::{
    path::Path,
    process::{Child, Command},
    time::Duration,
};

/// Whether the programs of QEMU are there; missing ones are a loud skip, or a failure where the
/// suite must be complete.
#[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
fn have_qemu() -> bool {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let have = there("qemu-nbd") && there("qemu-img") && there("qemu-io");
    if !have {
        assert!(
            std::env::var_os("COPAL_TEST_REQUIRE_QEMU").is_none(),
            "qemu-nbd is missing: apt install qemu-utils"
        );
        eprintln!("SKIPPED: qemu-nbd is missing; apt install qemu-utils");
    }
    have
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

struct Server {
    child: Child,
    address: ServerAddress,
}

impl Server {
    fn unix(dir: &Path, args: &[&str]) -> Server {
        let socket = dir.join("nbd.sock");
        let child =
            Command::new("qemu-nbd").args(["-t", "-r", "-k"]).arg(&socket).args(args).spawn().unwrap();
        Server::ready(child, ServerAddress::Unix(socket))
    }

    fn tcp(port: u16, args: &[&str]) -> Server {
        let child = Command::new("qemu-nbd")
            .args(["-t", "-r", "-b", "127.0.0.1", "-p", &port.to_string()])
            .args(args)
            .spawn()
            .unwrap();
        Server::ready(child, ServerAddress::Tcp("127.0.0.1".to_owned(), port))
    }

    /// Connects until it works; a server that exits instead fails the test.
    fn ready(mut child: Child, address: ServerAddress) -> Server {
        let uri = Uri { address: address.clone(), export: String::new() };
        loop {
            match Client::connect(&uri, &ConnectOptions::default()) {
                Ok(_) | Err(NbdError::Refused { .. }) => return Server { child, address },
                Err(NbdError::Connect { .. }) => {
                    assert!(child.try_wait().unwrap().is_none(), "qemu-nbd ended");
                    std::thread::yield_now();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn connect(&self, export: &str, contexts: &[&str]) -> Result<Client, NbdError> {
        Client::connect(
            &Uri { address: self.address.clone(), export: export.to_owned() },
            &ConnectOptions {
                contexts: contexts.iter().map(|c| (*c).to_owned()).collect(),
                ..ConnectOptions::default()
            },
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MIB: u64 = 1 << 20;

/// The image of the design's worked example: 256 MiB, dirty 1 MiB + 3 MiB and 100 MiB + 192 KiB.
fn example_image(dir: &Path) -> String {
    let image = dir.join("vm.qcow2").to_str().unwrap().to_owned();
    run("qemu-img", &["create", "-q", "-f", "qcow2", &image, "256M"]);
    run("qemu-img", &["bitmap", "--add", "-g", "64K", &image, "copal-0"]);
    let io = ["-f", "qcow2", "-c", "write -P 0xaa 1M 3M", "-c", "write -P 0xbb 100M 130k", &image];
    run("qemu-io", &io);
    image
}

#[test]
fn a_qcow2_image_is_read_and_mapped_with_its_dirty_bitmap() {
    if !have_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = example_image(dir.path());
    let server = Server::unix(dir.path(), &["-f", "qcow2", "-x", "vm", "-B", "copal-0", &image]);
    let dirty = "qemu:dirty-bitmap:copal-0";
    let client = server.connect("vm", &[BASE_ALLOCATION, dirty, "none:such"]).unwrap();
    assert_eq!(client.size(), 256 * MIB);
    assert_eq!(client.contexts().len(), 2);

    let mut buf = vec![1; 6 << 20];
    client.read(0, &mut buf).unwrap();
    let mut want = vec![0; 6 << 20];
    want[1 << 20..4 << 20].fill(0xaa);
    assert!(buf == want);
    client.read(100 * MIB, &mut buf[..512 << 10]).unwrap();
    assert!(buf[..130 << 10].iter().all(|b| *b == 0xbb));
    assert!(buf[130 << 10..512 << 10].iter().all(|b| *b == 0));

    let extent = |offset, len, flags| MapExtent { offset, len, flags };
    let map =
        |name: &str| client.map(name, 0..client.size()).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let written: u64 = 3 * MIB + (192 << 10);
    assert_eq!(
        map(dirty),
        [
            extent(0, MIB, 0),
            extent(MIB, 3 * MIB, 1),
            extent(4 * MIB, 96 * MIB, 0),
            extent(100 * MIB, 192 << 10, 1),
            extent(100 * MIB + (192 << 10), 156 * MIB - (192 << 10), 0),
        ]
    );
    let data: u64 = map(BASE_ALLOCATION).iter().filter(|e| e.flags & 2 == 0).map(|e| e.len).sum();
    assert_eq!(data, written);
    assert!(matches!(client.map("none:such", 0..1), Err(NbdError::NoContext { .. })));
}

#[test]
fn reads_of_several_threads_over_tcp_are_correct() {
    if !have_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.raw");
    let bytes: Vec<u8> = (0..8u32 << 20).map(|at| (at / 512 * 7 + at) as u8).collect();
    std::fs::write(&image, &bytes).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Server::tcp(port, &["-f", "raw", image.to_str().unwrap()]);
    let client = server.connect("", &[BASE_ALLOCATION]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (client, bytes) = (&client, &bytes);
            scope.spawn(move || {
                for step in 0..64u64 {
                    let at = ((thread * 64 + step) * 30_011 % (7 << 20)) / 512 * 512;
                    let mut buf = vec![0; 64 << 10];
                    client.read(at, &mut buf).unwrap();
                    assert!(buf == bytes[at as usize..at as usize + buf.len()]);
                }
            });
        }
    });
    // More requests than may be in flight at once.
    let reads: Vec<_> = (0..200).map(|at| client.start_read(at * 4096, 4096).unwrap()).collect();
    for (at, read) in reads.into_iter().enumerate() {
        assert!(read.wait().unwrap().data == bytes[at * 4096..][..4096]);
    }
    assert!(matches!(client.start_read(8 * MIB - 512, 1024), Err(NbdError::OutOfRange { .. })));
}

#[test]
fn refusals_name_the_reason() {
    if !have_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = example_image(dir.path());
    let server = Server::unix(dir.path(), &["-f", "qcow2", "-x", "vm", "-B", "copal-0", &image]);
    let wrong = server.connect("other", &[]);
    assert!(
        matches!(&wrong, Err(NbdError::Refused { reason, .. }) if reason.contains("export")),
        "{wrong:?}"
    );
    let uri = Uri { address: server.address.clone(), export: "vm".to_owned() };
    let names = Client::list_contexts(&uri, &["qemu:"], Duration::from_secs(60)).unwrap();
    assert!(names.contains(&"qemu:dirty-bitmap:copal-0".to_owned()), "{names:?}");
    let unserved = Uri { address: ServerAddress::Unix(dir.path().join("none")), export: String::new() };
    let none = Client::connect(&unserved, &ConnectOptions::default());
    assert!(matches!(none, Err(NbdError::Connect { .. })));
}

#[test]
fn a_server_that_dies_ends_all_requests() {
    if !have_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = example_image(dir.path());
    let mut server = Server::unix(dir.path(), &["-f", "qcow2", "-x", "vm", &image]);
    let client = server.connect("vm", &[BASE_ALLOCATION]).unwrap();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let mut buf = vec![0; 4096];
    let error = client.read(0, &mut buf).unwrap_err();
    assert!(error.is_connection_lost(), "{error}");
    assert!(client.block_status(0, 4096).is_err());
}
