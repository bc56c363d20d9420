//! Commands that need other programs: VMs of QEMU, clients of NBD, the kernel's file systems.

use super::{Ongoing, Record};
use crate::{
    disks::{Disk, MIB},
    exports::have_fuse,
    harness::House,
    live::{Daemon, have_daemon, words},
};
use rustix::process::Signal;

#[test]
fn backups_of_a_running_vm_print_the_fields_of_the_golden_file() {
    if !have_daemon() {
        return;
    }
    let house = House::plain();
    let mut record = Record::new("live", &house.path(""));
    record.kinds_of_numbers();
    let daemon = Daemon::start(&house);
    record.run(&house, words(&daemon));
    let socket = daemon.path("qmp.sock");
    record.run(&house, ["bitmap", "ls", "--qmp", &socket]);
    record.run(&house, ["bitmap", "rm", "--qmp", &socket, "--node", "vm0", "--all"]);
    record.run(&house, ["bitmap", "rm", "--qmp", &socket, "--node", "vm0", "other"]);
    record.compare();
}

#[test]
fn snapshots_that_are_served_print_the_fields_of_the_golden_file() {
    let house = House::plain();
    let mut record = Record::new("served", &house.path(""));
    Disk::create(&house.path("disk.raw"), MIB, 233);
    house.backup("web", &house.path("disk.raw"));
    let socket = house.word("nbd.sock");
    let mut serve = |words: &[&str]| {
        let mut served = Ongoing::of(&house, words);
        served.until("ready");
        served.signal(Signal::TERM);
        served.end(&mut record);
    };
    serve(&["nbd", "latest", "--socket", &socket]);
    if have_fuse() {
        let directory = house.word("mounted");
        std::fs::create_dir(&directory).unwrap();
        serve(&["mount", &directory]);
        record.compare();
    }
}
