use super::*;

/// SplitMix64: cases are drawn from the seed alone.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }
}

fn job(group: u32, in_sync_copies: u8, sources: &[u32], target: u32) -> RecoveryJob {
    RecoveryJob {
        group: GroupId(group),
        in_sync_copies,
        since_ms: 0,
        boost: 0,
        pool: 1,
        sources: sources.iter().copied().map(DiskId).collect(),
        target: Some(DiskId(target)),
        is_ordered: false,
    }
}

fn drawn_job(draw: &mut Draw, group: u32, disks: u64) -> RecoveryJob {
    let in_sync_copies = 1 + draw.below(2) as u8;
    let mut members = Vec::new();
    while members.len() < usize::from(in_sync_copies) + 1 {
        let disk = draw.below(disks) as u32;
        if !members.contains(&disk) {
            members.push(disk);
        }
    }
    let target = members.remove(0);
    RecoveryJob {
        since_ms: draw.below(300_000),
        boost: draw.below(3) as u32,
        ..job(group, in_sync_copies, &members, target)
    }
}

fn groups(starts: &[CopyOrder]) -> Vec<u32> {
    starts.iter().map(|start| start.group.0).collect()
}

/// Whether a job could run beside the running copies, by the rule as documented.
fn could_run(running: &[CopyOrder], job: &RecoveryJob) -> bool {
    let target_is_free = job.target.is_some_and(|target| running.iter().all(|start| start.target != target));
    let has_source = job.sources.iter().any(|source| running.iter().all(|start| start.source != *source));
    target_is_free && has_source
}

fn check_slots(queue: &RecoveryQueue, servers: usize) {
    let running: Vec<CopyOrder> = queue.running().collect();
    assert!(running.len() <= (servers / 2).max(1), "{running:?}");
    for (index, a) in running.iter().enumerate() {
        assert_ne!(a.source, a.target);
        for b in &running[index + 1..] {
            assert!(a.source != b.source && a.target != b.target, "{a:?} {b:?}");
        }
    }
}

#[test]
fn fewer_copies_go_first_then_age_then_boost_then_pool() {
    let mut queue = RecoveryQueue::new(64);
    queue.limit_running(1);
    let a_minute_on = 60_000;
    queue.put(job(1, 2, &[1, 2], 3));
    queue.put(RecoveryJob { pool: 0, since_ms: a_minute_on, ..job(2, 1, &[4], 5) });
    queue.put(RecoveryJob { pool: 0, ..job(3, 1, &[6], 7) });
    queue.put(RecoveryJob { boost: 1, since_ms: a_minute_on - 1, ..job(4, 1, &[8], 9) });
    queue.put(job(5, 1, &[10], 11));
    let mut order = Vec::new();
    loop {
        let starts = queue.next(0);
        if starts.is_empty() {
            break;
        }
        order.extend(groups(&starts));
        starts.iter().for_each(|start| assert!(queue.finished(start.group)));
    }
    assert_eq!(order, [4, 3, 5, 2, 1]);
    assert_eq!(queue.len(), (0, 0));
}

#[test]
fn under_random_failures_slots_and_order_hold_and_every_job_is_done() {
    for seed in 0..300 {
        let mut draw = Draw(seed);
        let servers = 4 + draw.below(12) as usize;
        let mut queue = RecoveryQueue::new(servers);
        let jobs = 1 + draw.below(60) as u32;
        for group in 1..=jobs {
            queue.put(drawn_job(&mut draw, group, servers as u64));
        }
        let (mut now_ms, mut done, mut failures_left) = (0, 0, 20);
        for round in 0.. {
            assert!(round < 2000, "seed {seed}: the queue stands still at {:?}", queue.len());
            let ready: Vec<RecoveryJob> = queue
                .waiting
                .values()
                .filter(|waiting| waiting.ready_ms <= now_ms)
                .map(|waiting| waiting.job.clone())
                .collect();
            let mut running: Vec<CopyOrder> = queue.running().collect();
            let mut started = BTreeSet::new();
            for start in queue.next(now_ms) {
                let copies = queue.job(start.group).map_or(0, |job| job.in_sync_copies);
                for other in &ready {
                    assert!(
                        other.in_sync_copies >= copies
                            || started.contains(&other.group)
                            || !could_run(&running, other),
                        "seed {seed}: {start:?} before {other:?}"
                    );
                }
                running.push(start);
                started.insert(start.group);
            }
            check_slots(&queue, servers);
            if running.len() < servers / 2 {
                let idle = ready.iter().find(|job| !started.contains(&job.group) && could_run(&running, job));
                assert!(idle.is_none(), "seed {seed}: {idle:?} could run");
            }
            if queue.len() == (0, 0) {
                break;
            }
            now_ms += 5_000;
            let running: Vec<CopyOrder> = queue.running().collect();
            let Some(picked) = running.get(draw.below(running.len().max(1) as u64) as usize) else {
                continue;
            };
            match draw.below(4) {
                0 if failures_left > 0 => {
                    failures_left -= 1;
                    queue.failed(picked.group, now_ms);
                }
                1 if failures_left > 0 => {
                    failures_left -= 1;
                    for group in queue.disk_failed(picked.target) {
                        let Some(job) = queue.job(group).cloned() else {
                            panic!("seed {seed}: group {group} was lost");
                        };
                        let is_fit = |disk: &DiskId| *disk != picked.target && !job.sources.contains(disk);
                        let target = (0..servers as u32).map(DiskId).find(is_fit);
                        queue.put(RecoveryJob { target, ..job });
                    }
                    // The disk returns; otherwise groups with their only copy there would wait for ever.
                    let without_source: Vec<RecoveryJob> =
                        queue.waiting.values().map(|w| w.job.clone()).collect();
                    for mut job in without_source.into_iter().filter(|job| job.sources.is_empty()) {
                        job.sources.push(picked.target);
                        queue.put(job);
                    }
                    for group in queue.running().map(|start| start.group).collect::<Vec<_>>() {
                        assert_ne!(queue.job(group).and_then(|job| job.target), Some(picked.target));
                    }
                }
                _ => {
                    assert!(queue.finished(picked.group));
                    done += 1;
                }
            }
        }
        assert_eq!(done, jobs, "seed {seed}");
    }
}

#[test]
fn idle_disks_are_taken_before_one_is_read_and_written_at_once() {
    let mut queue = RecoveryQueue::new(8);
    queue.put(job(1, 2, &[1], 2));
    queue.put(job(2, 2, &[2], 1));
    queue.put(job(3, 2, &[3], 4));
    queue.put(job(4, 2, &[5], 6));
    assert_eq!(groups(&queue.next(0)), [1, 3, 4, 2]);
    let mut queue = RecoveryQueue::new(4);
    queue.put(job(1, 2, &[1, 3], 2));
    queue.put(job(2, 2, &[2, 3], 4));
    let starts = queue.next(0);
    assert_eq!(starts[1].source, DiskId(3), "the second source, since the first is written to");
}

#[test]
fn a_failed_source_or_target_returns_the_job() {
    let mut queue = RecoveryQueue::new(8);
    queue.put(job(1, 2, &[1, 2], 3));
    assert_eq!(queue.next(0)[0].source, DiskId(1));
    assert_eq!(queue.disk_failed(DiskId(1)), []);
    assert_eq!(queue.next(0)[0].source, DiskId(2));
    assert_eq!(queue.disk_failed(DiskId(3)), [GroupId(1)]);
    assert_eq!(queue.next(0), [], "it has no target");
    queue.put(job(1, 1, &[2], 4));
    assert_eq!(queue.next(0).len(), 1);
    queue.failed(GroupId(1), 1_000);
    assert_eq!(queue.next(10_999), [], "it rests");
    assert_eq!(queue.next(11_000).len(), 1);
    assert_eq!(queue.withdraw(GroupId(1)).map(|start| start.target), Some(DiskId(4)));
    assert_eq!((queue.len(), queue.finished(GroupId(1))), ((0, 0), false));
}

#[test]
fn changes_of_a_running_job_count_when_it_returns() {
    let mut queue = RecoveryQueue::new(8);
    queue.put(job(1, 2, &[1, 2], 3));
    queue.next(0);
    queue.put(job(1, 1, &[2], 5));
    assert_eq!(queue.disk_failed(DiskId(1)), []);
    let back = queue.job(GroupId(1)).cloned();
    assert_eq!(back, Some(job(1, 1, &[2], 3)), "the target has part of it already");
}

#[test]
fn a_fifth_of_the_servers_within_a_minute_holds_the_queue_until_they_return() {
    let mut queue = RecoveryQueue::new(10);
    queue.put(job(1, 2, &[1, 2], 3));
    queue.server_failed(1, 0);
    queue.server_failed(2, 60_000);
    assert!(queue.hold().is_none(), "20 % is not above 20 %");
    queue.server_failed(3, 60_001);
    assert!(queue.hold().is_none(), "the first failed more than a minute before");
    queue.server_failed(4, 70_000);
    let alarm = queue.hold().expect("three within a minute");
    assert!(alarm.to_string().starts_with("3 of 10 servers failed within a minute"), "{alarm}");
    assert_eq!(queue.next(10_000_000), [], "no time lifts it");
    queue.server_returned(3);
    assert_eq!(queue.next(80_000).len(), 1);
    queue.server_failed(3, 90_000);
    assert!(queue.hold().is_some());
    queue.lift_hold();
    assert!(queue.hold().is_none());
}

#[test]
fn two_failed_racks_hold_the_queue_and_one_server_of_four_does_not() {
    let mut queue = RecoveryQueue::new(1);
    queue.set_servers((1..=40_u32).map(|server| (server, server.div_ceil(2))).collect());
    for server in 1..=3 {
        queue.server_failed(server, 0);
    }
    assert!(queue.hold().is_none(), "one rack and a half");
    queue.server_failed(4, 0);
    assert_eq!(queue.hold().map(|alarm| (alarm.away, alarm.racks)), Some((4, 2)));
    let mut small = RecoveryQueue::new(4);
    small.server_failed(1, 0);
    assert!(small.hold().is_none(), "one server dies by itself");
    small.server_failed(2, 0);
    assert!(small.hold().is_some());
}

#[test]
fn ordered_jobs_run_while_the_others_are_held() {
    let mut queue = RecoveryQueue::new(4);
    queue.server_failed(1, 0);
    queue.server_failed(2, 0);
    queue.put(job(1, 1, &[1], 2));
    queue.put(RecoveryJob { is_ordered: true, ..job(2, 1, &[3], 4) });
    assert_eq!(groups(&queue.next(0)), [2]);
    queue.lift_hold();
    assert_eq!(groups(&queue.next(0)), [1]);
}

#[test]
fn copies_that_run_already_hold_their_slots_until_the_last_of_them_ends() {
    let mut queue = RecoveryQueue::new(16);
    let start = |group, source, target| CopyOrder {
        group: GroupId(group),
        source: DiskId(source),
        target: DiskId(target),
    };
    // More at once than the queue would start.
    assert!(queue.resume(job(1, 2, &[1], 9), start(1, 1, 9)));
    assert!(queue.resume(job(2, 2, &[2], 9), start(2, 2, 9)));
    assert!(!queue.resume(job(2, 2, &[2], 9), start(2, 2, 9)));
    queue.put(job(3, 1, &[3], 9));
    assert_eq!(queue.next(0), []);
    assert!(queue.finished(GroupId(1)));
    assert_eq!(queue.next(0), [], "the second still runs");
    assert!(queue.finished(GroupId(2)));
    assert_eq!(groups(&queue.next(0)), [3]);
}
