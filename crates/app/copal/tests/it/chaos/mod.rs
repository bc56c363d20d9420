//! Servers and masters of a cluster are killed, frozen, cut off and restarted while clients write, read and
//! delete.
//!
//! Each worker has its own names and knows the possible content of each: acknowledged files are present byte
//! for byte, deleted ones are absent, and certainly failed ones never appear. A name that several workers
//! want is given once. At the end all processes are restarted and the cluster becomes healthy by itself. Its
//! replicas are equal to the last byte, and no process has logged an unlisted warning. `COPAL_CHAOS_SECONDS`
//! (default 20) and `COPAL_CHAOS_SEED` set length and times, `COPAL_CHAOS_MASTERS` (default 1) the number of
//! masters. `COPAL_CHAOS_SPACES=1` runs each process in its own network namespace; `cargo xtask cluster-chaos
//! --minutes 10` sets them.

mod client;
mod house;
mod logs;
mod network;
mod troubles;
mod worker;

use client::{Client, Left, body_of, killed_client};
use copal_testkit::Random;
use house::House;
use network::Place;
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
    time::{Duration, Instant},
};
use worker::{Contest, Worker};

const WORKERS: u64 = 8;
const NAMES: u64 = 12;
const VOLUMES: u64 = 6;

/// Files that no client completes are sealed after 70 s, and settled later. The same holds for names with two
/// files, which keep a replica from being in sync.
const SETTLED: Duration = Duration::from_secs(150);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// One fault after the other while workers run; the list of faults is printed even if one of them ends the
/// run.
struct Trial {
    house: House,
    seed: u64,
    end: Instant,
    is_long: bool,
    troubles: Vec<String>,
    left: Left,
}

impl Trial {
    fn make_trouble(&mut self) {
        let mut random = Random::new(self.seed);
        let mut kinds: Vec<u64> = Vec::new();
        while Instant::now() < self.end {
            if kinds.is_empty() {
                kinds = (0..troubles::KINDS).collect();
            }
            let trouble = match self.is_long {
                false => self.house.trouble(&mut random),
                true => {
                    let kind = kinds.swap_remove(random.index(kinds.len()));
                    self.house.long_trouble(kind, &mut random)
                }
            };
            self.troubles.push(trouble);
            // Files of dead clients need two minutes to reach all replicas: too long for every run.
            if self.is_long {
                let number = self.troubles.len() as u64;
                let left = killed_client(&self.house, &mut random, number);
                self.left.extend(left);
            }
            thread::park_timeout(Duration::from_millis(random.below(4000)));
        }
    }

    /// Checks that all required files are present, no others, and equal on all replicas.
    fn verify(&self, workers: &mut [Worker], contest: &Contest, client: &Client) {
        for worker in workers.iter_mut() {
            for (key, may) in worker.names.clone() {
                worker.look(client, key, may);
            }
        }
        contest.verify(&mut workers[0], client);
        for ((volume, name), held) in &self.left {
            let got = self.house.copal(&["fs", "get", &format!("v{volume}"), name, "-"]).output().unwrap();
            let is_whole = got.status.success() && got.stdout == body_of(name);
            let is_absent = got.status.code() == Some(40);
            assert!(is_whole || (is_absent && !held), "{name}, held {held}: {got:?}");
        }
        // Operations that a client gave up, or whose outcome it does not know, reach all replicas or none.
        let end = Instant::now() + SETTLED;
        let are_equal = || {
            let mut verify = self.house.copal(&["group", "verify", "--all"]);
            verify.output().unwrap().status.success()
        };
        while Instant::now() < end && !are_equal() {
            thread::park_timeout(Duration::from_secs(2));
        }
        self.house.good(&["group", "verify", "--all", "--deep"]);
    }

    fn scan_logs(&self) {
        for place in self.house.places().into_iter().chain([Place::Client]) {
            let unlisted = logs::unlisted(&self.house.log(place));
            assert!(unlisted.is_empty(), "{place} has unexpected warnings: {unlisted:#?}");
        }
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "what happened is printed where something is lost, and the figures")]
fn no_acknowledged_file_is_lost_when_any_process_is_killed_or_frozen() {
    let (seconds, seed) = (setting("COPAL_CHAOS_SECONDS", 20), setting("COPAL_CHAOS_SEED", 1));
    let masters = setting("COPAL_CHAOS_MASTERS", 1) as usize;
    let house = House::start(masters, setting("COPAL_CHAOS_SPACES", 0) == 1);
    if house.network.can_cut() && !house.network.can_delay() {
        eprintln!("this kernel has no netem: links are cut and made slow, and nothing comes late");
    }
    for volume in 0..VOLUMES {
        house.good(&["fs", "mkdir", &format!("v{volume}")]);
    }
    let client = Client::start(&house);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut trial =
        Trial { house, seed, end, is_long: seconds >= 60, troubles: Vec::new(), left: Left::new() };
    let contest = Contest::default();
    let mut workers: Vec<Worker> = (0..WORKERS).map(|number| Worker::new(seed, number)).collect();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        thread::scope(|scope| {
            for worker in &mut workers {
                let (client, contest) = (&client, &contest);
                scope.spawn(move || {
                    while Instant::now() < end {
                        worker.step(client, contest);
                    }
                });
            }
            trial.make_trouble();
        });
        let healed = ["status", "--wait", "healthy", "--timeout", "150s"];
        let healthy = trial.house.copal(&healed).output().unwrap();
        assert!(
            healthy.status.success(),
            "{healthy:?}\n{}{}{}",
            trial.house.good(&["status"]),
            trial.house.good(&["group", "ls"]),
            trial.house.good(&["events"])
        );
        trial.verify(&mut workers, &contest, &client);
        trial.scan_logs();
    }));
    let troubles = &trial.troubles;
    if let Err(panic) = outcome {
        eprintln!("seed {seed}: {troubles:#?}\n{}", trial.house.logs());
        resume_unwind(panic);
    }
    let acknowledged: u64 = workers.iter().map(|worker| worker.acknowledged).sum();
    let (contested, left) = (contest.names(), trial.left.len());
    eprintln!(
        "seed {seed}: {acknowledged} operations acknowledged, {contested} names contested, {left} files of killed clients, {} \
         troubles",
        troubles.len()
    );
    if trial.is_long {
        eprintln!("{troubles:#?}");
    }
    assert!(acknowledged > seconds, "the load has stood still: {troubles:#?}");
    client.end();
}
