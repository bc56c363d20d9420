//! Agents in one process on the loopback: askers, servers with a simple detector, and scripted peers.

mod askers;
mod commands;
mod coordination;
mod job;
mod scripted_peer;
mod servers;
mod twin;

use crate::asker::{Asker, AskerOptions, FixedPatience, FleetMember, OwnerMap};
use crate::fleet::control;
use crate::fleet::control::{CommandOutcome, CommandService};
use crate::fleet::network::FleetNetwork;
use crate::server::{BatchDetector, Server, ServerOptions};
use copal_backup::peers::{Answer, ShortId};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    io,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const JOB: [u8; 16] = *b"the job of tests";
/// Time limit of waits for certain events: it only ends a test that hangs.
const HANG: Duration = Duration::from_secs(60);
/// No hedge, and no wait for missing answers.
const PATIENT: FixedPatience =
    FixedPatience { for_others: Duration::ZERO, hedge_after: HANG, deadline: HANG };

/// The network of a holder of the tests' secret.
fn network() -> FleetNetwork {
    static NETWORK: LazyLock<FleetNetwork> = LazyLock::new(|| FleetNetwork::new(&[42; 32]).unwrap());
    NETWORK.clone()
}

/// Eight partitions by the first bits of an id, with alternating owners and stand-ins.
struct ByTurns {
    members: usize,
}

impl OwnerMap for ByTurns {
    fn partition_bits(&self) -> u8 {
        3
    }

    fn partition(&self, id: &ShortId) -> u32 {
        u32::from(id[0] >> 5)
    }

    fn owner(&self, partition: u32) -> usize {
        partition as usize % self.members
    }

    fn stand_in(&self, partition: u32) -> Option<usize> {
        (self.members > 1).then_some((partition as usize + 1) % self.members)
    }
}

struct Echo;

impl CommandService for Echo {
    fn handle(&self, request: &[u8]) -> String {
        format!(r#"{{"echo":{}}}"#, std::str::from_utf8(request).unwrap())
    }
}

/// The outcome of an executed command, as it is sent.
fn ok(reply: impl Serialize) -> String {
    control::to_json(&CommandOutcome::Ok(reply)).unwrap()
}

fn serve(name: &str, detect: Arc<dyn BatchDetector>) -> Server {
    serve_with(server_options(name), detect)
}

fn server_options(name: &str) -> ServerOptions {
    ServerOptions::new("127.0.0.1:0", name, network())
}

fn serve_with(options: ServerOptions, detect: Arc<dyn BatchDetector>) -> Server {
    Server::start(options, detect, Arc::new(Echo), Arc::new(AtomicBool::new(false))).unwrap()
}

fn member(name: &str, server: &Server) -> FleetMember {
    FleetMember { name: name.to_owned(), address: server.address().to_string() }
}

/// A member at an address without a listener.
fn dead(name: &str) -> FleetMember {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    FleetMember { name: name.to_owned(), address: listener.local_addr().unwrap().to_string() }
}

fn options(members: &[FleetMember], participants: u32) -> AskerOptions {
    let folder = std::env::temp_dir();
    AskerOptions { participants, ..AskerOptions::new(JOB, "asker", members.to_vec(), network(), folder) }
}

fn asker(options: AskerOptions, patience: FixedPatience) -> Asker {
    let members = options.members.len();
    Asker::new(options, Arc::new(ByTurns { members }), Arc::new(patience)).unwrap()
}

/// The id of a number, scattered over the partitions.
fn id(number: u32) -> ShortId {
    let hash = number.wrapping_mul(0x9e37_79b1).to_be_bytes();
    let mut id = [0; 16];
    id[..4].copy_from_slice(&hash);
    id[12..].copy_from_slice(&number.to_be_bytes());
    id
}

fn send(asker: &Asker, vm: u32, numbers: std::ops::Range<u32>) -> u64 {
    let mut ids = numbers.map(id).map(io::Result::Ok);
    asker.send(vm, &mut ids).unwrap()
}

/// The twin's answer for a number: every third is a hit with its own ordinal.
fn known(number: u32) -> Answer {
    match number % 3 {
        0 => Answer::hit(number).unwrap(),
        _ => Answer::NEW,
    }
}

fn all_known(numbers: std::ops::Range<u32>) -> Vec<Answer> {
    numbers.map(known).collect()
}

/// Waits for a certain event.
fn until(what: &str, mut come: impl FnMut() -> bool) {
    let end = Instant::now() + HANG;
    while !come() {
        assert!(Instant::now() < end, "{what} did not come");
        std::thread::yield_now();
    }
}
