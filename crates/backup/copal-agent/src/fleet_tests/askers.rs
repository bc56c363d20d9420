//! Askers: correct answers, and the handling of wrong, late and missing ones.

use super::{
    scripted_peer::{PeerMessage, Scripted},
    twin::{Manner, Twin, answers_to},
    *,
};
use crate::asker::AnswerPatience;
use crate::fleet::messages::{AnswerMessage, AskMessage, BATCH_IDS};
use std::sync::atomic::{AtomicUsize, Ordering};

const QUICK_HEDGE: FixedPatience = FixedPatience {
    for_others: Duration::from_millis(40),
    hedge_after: Duration::from_millis(50),
    deadline: HANG,
};
const SOON: FixedPatience = FixedPatience {
    for_others: Duration::from_millis(40),
    hedge_after: Duration::from_millis(50),
    deadline: Duration::from_millis(500),
};

#[test]
fn two_agents_answer_everything_in_the_order_of_the_ids() {
    let servers = ["h1", "h2"].map(|name| serve(name, Arc::new(Twin::default())));
    let members = [member("h1", &servers[0]), member("h2", &servers[1])];
    let asker = asker(options(&members, 1), PATIENT);
    for round in 0..3u32 {
        let numbers = round * 100..round * 100 + 20_000;
        let ticket = send(&asker, 7, numbers.clone());
        assert_eq!(asker.waiting_ids(), 20_000);
        assert_eq!(asker.end_round(), 2);
        assert!(asker.receive(ticket) == all_known(numbers), "round {round}");
        assert_eq!(asker.waiting_ids(), 0);
    }
    assert_eq!(asker.dropped(), Default::default());
    assert!(asker.traffic().sent_bytes() > 3 * 20_000 * 16);
    assert!(asker.traffic().received_bytes() > 3 * 20_000 * 4);
}

#[test]
fn three_agents_that_ask_each_other_wait_for_all_markers() {
    let twins = [(); 3].map(|()| Arc::new(Twin::default()));
    let names = ["h1", "h2", "h3"];
    let servers: Vec<Server> =
        names.iter().zip(&twins).map(|(name, twin)| serve(name, twin.clone())).collect();
    let members: Vec<FleetMember> =
        names.iter().zip(&servers).map(|(name, server)| member(name, server)).collect();
    std::thread::scope(|scope| {
        for host in 0..3u32 {
            let members = &members;
            scope.spawn(move || {
                let asker = asker(options(members, 3), PATIENT);
                for round in 0..4u32 {
                    let numbers = |vm: u32| {
                        let first = host * 1_000_000 + round * 10_000 + vm * 1000;
                        first..first + 900
                    };
                    // Several VMs of a host ask at once, in several parts.
                    let tickets = [0, 1, 2].map(|vm| send(&asker, vm, numbers(vm)));
                    assert_eq!(asker.end_round(), 3);
                    for (vm, ticket) in tickets.into_iter().enumerate().rev() {
                        assert!(asker.receive(ticket) == all_known(numbers(vm as u32)));
                    }
                }
                assert_eq!(asker.dropped(), Default::default());
            });
        }
    });
    assert!(twins.iter().all(|twin| twin.marked() == 3 * 4));
}

#[test]
fn a_part_that_is_sorted_in_many_runs_is_answered_the_same() {
    let server = serve("h1", Arc::new(Twin::default()));
    let options = AskerOptions { sort_bytes: 24 * 100, ..options(&[member("h1", &server)], 1) };
    let asker = asker(options, PATIENT);
    let ticket = send(&asker, 1, 0..5_050);
    let empty = send(&asker, 2, 0..0);
    asker.end_round();
    assert!(asker.receive(ticket) == all_known(0..5_050));
    assert!(asker.receive(empty).is_empty());
    assert!(asker.receive(ticket).is_empty(), "a ticket is good once");
}

#[test]
fn ids_that_fail_forget_the_part() {
    let server = serve("h1", Arc::new(Twin::default()));
    let asker = asker(options(&[member("h1", &server)], 1), PATIENT);
    let mut ids = (0..10).map(|number| match number {
        9 => Err(io::Error::other("the spool ends")),
        _ => Ok(id(number)),
    });
    assert_eq!(asker.send(1, &mut ids).unwrap_err().to_string(), "the spool ends");
    assert_eq!(asker.waiting_ids(), 0);
}

#[test]
fn a_dead_owner_is_stood_in_for() {
    let server = serve("h2", Arc::new(Twin::default()));
    let asker = asker(options(&[dead("h1"), member("h2", &server)], 1), PATIENT);
    let ticket = send(&asker, 1, 0..3000);
    assert_eq!(asker.end_round(), 1);
    assert!(asker.receive(ticket) == all_known(0..3000));
}

#[test]
fn a_silent_owner_is_stood_in_for_after_the_hedge_time() {
    let silent = Twin::of(Manner { silent: true, ..Manner::default() });
    let twin = Arc::new(Twin::default());
    let servers = [serve("h1", silent.clone()), serve("h2", twin.clone())];
    let members = [member("h1", &servers[0]), member("h2", &servers[1])];
    let asker = asker(options(&members, 1), QUICK_HEDGE);
    let ticket = send(&asker, 1, 0..3000);
    asker.end_round();
    assert!(asker.receive(ticket) == all_known(0..3000));
    assert_eq!(twin.taken(), 8, "its own four, and those of the silent one");
    assert!(silent.taken() >= 4);
}

#[test]
fn an_unwilling_owner_is_stood_in_for_at_once() {
    let unwilling = Twin::of(Manner { unwilling: true, ..Manner::default() });
    let servers = [serve("h1", unwilling), serve("h2", Arc::new(Twin::default()))];
    let members = [member("h1", &servers[0]), member("h2", &servers[1])];
    // Many small batches: refusals come while others are being sent.
    let options = AskerOptions { sort_bytes: 24 * 50, ..options(&members, 1) };
    let asker = asker(options, PATIENT);
    let ticket = send(&asker, 1, 0..20_000);
    asker.end_round();
    assert!(asker.receive(ticket) == all_known(0..20_000));
}

#[test]
fn without_any_member_all_ids_are_unanswered_at_once() {
    let asker = asker(options(&[dead("h1"), dead("h2")], 1), PATIENT);
    let ticket = send(&asker, 1, 0..3000);
    assert_eq!(asker.end_round(), 0);
    assert_eq!(asker.receive(ticket), vec![Answer::UNANSWERED; 3000]);
}

#[test]
fn two_silent_members_leave_everything_unanswered_at_the_deadline() {
    let silent = || Twin::of(Manner { silent: true, ..Manner::default() });
    let servers = [serve("h1", silent()), serve("h2", silent())];
    let members = [member("h1", &servers[0]), member("h2", &servers[1])];
    let asker = asker(options(&members, 1), SOON);
    let ticket = send(&asker, 1, 0..3000);
    asker.end_round();
    assert_eq!(asker.receive(ticket), vec![Answer::UNANSWERED; 3000]);
}

#[test]
fn an_address_with_another_agent_is_not_asked() {
    let twin = Arc::new(Twin::default());
    let server = serve("h2", twin.clone());
    let asker = asker(options(&[member("h1", &server)], 1), PATIENT);
    let ticket = send(&asker, 1, 0..100);
    assert_eq!(asker.receive(ticket), vec![Answer::UNANSWERED; 100]);
    assert_eq!(twin.taken(), 0);
}

#[test]
fn an_old_generation_is_not_believed() {
    let old = Twin::of(Manner { generation: 4, ..Manner::default() });
    let server = serve("h1", old);
    let options = AskerOptions { oldest_generation: 5, ..options(&[member("h1", &server)], 1) };
    let asker = asker(options, SOON);
    let ticket = send(&asker, 1, 0..100);
    asker.end_round();
    until("a batch of each partition", || asker.dropped().stale == 8);
    assert_eq!(asker.receive(ticket), vec![Answer::UNANSWERED; 100]);
}

/// Answers of a malicious peer before or instead of the correct one.
fn lies(ask: &AskMessage) -> Vec<AnswerMessage> {
    let truth = answers_to(ask);
    let wrong = |change: &dyn Fn(&mut AnswerMessage)| {
        let mut lie = truth.clone();
        lie.codes.fill(0);
        change(&mut lie);
        lie
    };
    vec![
        wrong(&|lie| lie.job[0] ^= 1),
        wrong(&|lie| lie.round += 1),
        wrong(&|lie| lie.partition ^= 1),
        wrong(&|lie| lie.batch += 1 << 40),
        wrong(&|lie| lie.batch = 0xffff_ffff),
        wrong(&|lie| lie.codes.truncate(lie.codes.len() - 1)),
        wrong(&|lie| lie.codes.push(0)),
        wrong(&|lie| lie.codes.clear()),
        wrong(&|lie| lie.codes[0] = u32::MAX - 5),
    ]
}

#[test]
fn answers_that_are_foreign_miscounted_or_twice_are_dropped_and_counted() {
    let mut kept = Vec::new();
    let liar = Scripted::start(
        "h1",
        Box::new(move |message, answers| {
            match message {
                PeerMessage::Ask(ask) => kept.push(ask.clone()),
                // In reverse order: the order of answers is not defined.
                PeerMessage::Marker(_) => {
                    for ask in kept.drain(..).rev() {
                        lies(&ask).into_iter().for_each(|lie| answers.push(lie));
                        answers.push(answers_to(&ask));
                        answers.push(answers_to(&ask));
                    }
                }
            }
            true
        }),
    );
    let honest = serve("h2", Arc::new(Twin::default()));
    let members = [liar.member.clone(), member("h2", &honest)];
    let asker = asker(options(&members, 1), PATIENT);
    let ticket = send(&asker, 1, 0..3000);
    // Keeps the first part from being the last that is waited for: then all answers have been read.
    let second = send(&asker, 1, 0..500);
    asker.end_round();
    assert!(asker.receive(second) == all_known(0..500));
    assert!(asker.receive(ticket) == all_known(0..3000));
    let dropped = asker.dropped();
    // The malicious peer gets eight batches, of which the last may still be arriving.
    assert!((7 * 5..=8 * 5).contains(&dropped.foreign), "{dropped:?}");
    assert!((7 * 3..=8 * 3).contains(&dropped.miscounted), "{dropped:?}");
    assert!((7..=8).contains(&dropped.unknown_code), "{dropped:?}");
    assert!(dropped.repeated + dropped.late >= 7, "{dropped:?}");
    assert_eq!(dropped.violations, 0);
}

/// Symptom: with two silent hosts, the questions to the stand-in of one had no answer in time.
/// Cause: the marker after questions to a stand-in repeated the full patience, so the stand-in waited for the
/// other silent host, which had been waited for already. Fix: it gives the rest of the patience.
#[test]
fn a_stand_in_gets_the_remaining_patience() {
    let told = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (heard, mut kept) = (Arc::clone(&told), Vec::new());
    let stand_in = Scripted::start(
        "h2",
        Box::new(move |message, answers| {
            match message {
                PeerMessage::Ask(ask) => kept.push(ask.clone()),
                PeerMessage::Marker(marker) => {
                    heard.lock().push((marker.patience_ms, kept.len()));
                    kept.drain(..).for_each(|ask| answers.push(answers_to(&ask)));
                }
            }
            true
        }),
    );
    let silent = Twin::of(Manner { silent: true, ..Manner::default() });
    let silent = serve("h1", silent);
    let members = [member("h1", &silent), stand_in.member.clone()];
    let asker = asker(options(&members, 2), QUICK_HEDGE);
    let ticket = send(&asker, 1, 0..3000);
    asker.end_round();
    assert!(asker.receive(ticket) == all_known(0..3000));
    let told = told.lock();
    assert_eq!(told[0], (40, 4), "four of eight partitions are its own");
    let again: Vec<_> = told[1..].iter().filter(|(_, asked)| *asked > 0).collect();
    assert!(!again.is_empty() && again.iter().all(|(left, _)| *left == 0), "{told:?}");
}

/// Short at first, long once the flag is set.
#[derive(Default)]
struct Wearing {
    long: AtomicBool,
}

impl AnswerPatience for Wearing {
    fn for_others(&self) -> Duration {
        Duration::ZERO
    }

    fn hedge_after(&self) -> Duration {
        HANG
    }

    fn deadline(&self) -> Duration {
        match self.long.load(Ordering::Acquire) {
            false => Duration::from_millis(200),
            true => HANG,
        }
    }
}

#[test]
fn late_answers_are_dropped_and_counted() {
    let mut kept = Vec::new();
    let tardy = Scripted::start(
        "h1",
        Box::new(move |message, answers| {
            match message {
                PeerMessage::Ask(ask) => kept.push(ask.clone()),
                // Answers of a round arrive at the end of the next.
                PeerMessage::Marker(marker) => {
                    let (now, later) = kept.drain(..).partition(|ask: &AskMessage| ask.round < marker.round);
                    kept = later;
                    now.iter().for_each(|ask| answers.push(answers_to(ask)));
                    if marker.round == 1 {
                        kept.drain(..).for_each(|ask| answers.push(answers_to(&ask)));
                    }
                }
            }
            true
        }),
    );
    let patience = Arc::new(Wearing::default());
    let asker = Asker::new(
        options(std::slice::from_ref(&tardy.member), 1),
        Arc::new(ByTurns { members: 1 }),
        patience.clone(),
    )
    .unwrap();
    let first = send(&asker, 1, 0..100);
    asker.end_round();
    assert_eq!(asker.receive(first), vec![Answer::UNANSWERED; 100]);
    patience.long.store(true, Ordering::Release);
    let second = send(&asker, 1, 0..100);
    asker.end_round();
    assert!(asker.receive(second) == all_known(0..100));
    assert_eq!(asker.dropped().late, 8);
}

#[test]
fn a_peer_that_sends_garbage_is_dropped_and_the_others_finish() {
    let monster = Scripted::start(
        "h1",
        Box::new(|message, answers| {
            if let PeerMessage::Ask(ask) = message {
                answers.push(AnswerMessage { codes: vec![0; BATCH_IDS + 1], ..answers_to(ask) });
            }
            true
        }),
    );
    let honest = serve("h2", Arc::new(Twin::default()));
    let members = [monster.member.clone(), member("h2", &honest)];
    let asker = asker(options(&members, 1), PATIENT);
    let ticket = send(&asker, 1, 0..3000);
    asker.end_round();
    assert!(asker.receive(ticket) == all_known(0..3000));
    assert!(asker.dropped().violations >= 1);
}

#[test]
fn a_peer_that_hangs_up_is_asked_once_more_and_then_stood_in_for() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let fickle = Scripted::start(
        "h1",
        Box::new(move |message, _| {
            if let PeerMessage::Ask(_) = message {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            !matches!(message, PeerMessage::Ask(_))
        }),
    );
    let honest = serve("h2", Arc::new(Twin::default()));
    let members = [fickle.member.clone(), member("h2", &honest)];
    let asker = asker(options(&members, 1), PATIENT);
    let ticket = send(&asker, 1, 0..3000);
    asker.end_round();
    assert!(asker.receive(ticket) == all_known(0..3000));
    let calls = calls.load(Ordering::Relaxed);
    assert!((1..=8).contains(&calls), "four batches, twice each at most: {calls}");
}

/// Symptom: on a busy machine one VM of a job stored a twelfth of its chunks for itself that others had as
/// popular, and no host asked again at the end. Cause: a batch whose connection had ended was asked again of
/// the same owner. The owner had meanwhile compared the round without it, since the marker came over a newer
/// connection; only stand-ins were noted. Fix: repeated questions are noted, too.
#[test]
fn a_peer_that_hangs_up_once_answers_the_second_time() {
    let mut first = true;
    let mut kept = Vec::new();
    let fickle = Scripted::start(
        "h1",
        Box::new(move |message, answers| {
            match message {
                PeerMessage::Marker(_) if std::mem::take(&mut first) => return false,
                PeerMessage::Ask(ask) if !first => kept.push(ask.clone()),
                PeerMessage::Marker(_) => kept.drain(..).for_each(|ask| answers.push(answers_to(&ask))),
                _ => {}
            }
            true
        }),
    );
    let asker = asker(options(std::slice::from_ref(&fickle.member), 1), PATIENT);
    let ticket = send(&asker, 1, 0..3000);
    assert!(!asker.was_repeated());
    asker.end_round();
    assert!(asker.receive(ticket) == all_known(0..3000));
    assert!(asker.was_repeated());
}
