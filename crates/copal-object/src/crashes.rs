//! Crash enumeration of the real store: random histories with kills and power losses inside, every kind of crash state at
//! their end, and each rule of object.md §6 broken on purpose to see it caught.
//!
//! A history is a few *lives* of one store. A life ends by a kill (what was written stays, undurable) or by power loss (a
//! state drawn from those the device may be left in); the next one recovers and goes on. The last life is cut at every
//! event, and at each cut many of the possible states are recovered and compared with what was acknowledged.
//! Invariants checked: I1 a prefix of the commit order, no shorter than what was acknowledged; I2 whole transactions;
//! I3 dependencies; I4 no page owned twice; I8 bytes read are bytes written; I10 recovering twice, also with a crash
//! inside the first, gives the same state. I5 and I6 break I1, I2 or I8 when they are broken.
//!
//! `COPAL_CRASH_SEEDS` histories from `COPAL_CRASH_FROM` on are tried; the usual number fits into `make test`.

mod check;
mod files;
mod model;
mod script;

use crate::{
    broken::{Broken, Flaw},
    recovery,
};
use copal_device::Device;
use script::{Plan, run};

/// Histories of the honest store in `make test`.
const SEEDS: u64 = 120;
/// States tried per history.
const STATES: usize = 250;

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(usual)
}

/// O11: no violation in any state of any history.
#[test]
#[expect(
    clippy::print_stdout,
    reason = "the number of states is the result of a long run"
)]
fn no_crash_state_loses_or_mixes_what_was_acknowledged() {
    let mut states = 0;
    let first = number("COPAL_CRASH_FROM", 0);
    for seed in first..first + number("COPAL_CRASH_SEEDS", SEEDS) {
        let plan = Plan {
            seed,
            broken: Broken::default(),
            states: STATES,
            busy: false,
        };
        match run(&plan) {
            Ok(tried) => states += tried,
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{states} crash states");
    assert!(states > 10_000, "only {states} crash states were tried");
}

/// Largest epoch in any record that a walk of the journal sees, dropped or not.
fn largest_epoch(device: &dyn Device) -> u64 {
    let (superblock, _) = recovery::newest_superblock(device).unwrap();
    let page_bytes = superblock.page_bytes as usize;
    let source = recovery::Source {
        device,
        page_bytes,
        salvage: false,
        broken: Broken::default(),
    };
    let found = recovery::read_checkpoint(&source, &superblock, recovery::Copies::AsNeeded).unwrap();
    let position = found.position;
    let walked = recovery::walk_journal(&source, &superblock, &position).unwrap();
    let epochs = walked
        .records
        .iter()
        .map(|record| record.header.epoch.max(record.header.flushed_epoch));
    epochs.max().unwrap_or(0).max(position.epoch)
}

/// The seed whose history catches a flaw; `None` when none of `seeds` does.
fn caught(flaw: Flaw, seeds: u64, busy: bool) -> Option<u64> {
    (0..seeds).find(|&seed| {
        let plan = Plan {
            seed,
            broken: Broken { flaw: Some(flaw) },
            states: STATES,
            busy,
        };
        // A violation, or an assertion of the store itself.
        !matches!(std::panic::catch_unwind(|| run(&plan)), Ok(Ok(_)))
    })
}

macro_rules! each_broken_rule_is_caught {
    ($($name:ident: $flaw:ident,)*) => {$(
        #[test]
        fn $name() {
            // Journal space is reused early only where records crowd behind a checkpoint.
            let busy = Flaw::$flaw == Flaw::JournalReusedEarly;
            let seed = caught(Flaw::$flaw, 3000, busy).expect("no history caught the broken rule");
            // The rule kept, the same history shows nothing: it was the flaw that was caught.
            run(&Plan { seed, broken: Broken::default(), states: STATES, busy }).unwrap();
        }
    )*};
}

each_broken_rule_is_caught! {
    r1_data_without_sums: NoDataSum,
    r2_a_sequence_number_instead_of_a_hash_chain: SequenceOnly,
    r3_freed_pages_reused_at_once: ReuseAtOnce,
    r3_freed_pages_reused_after_their_flush: ReuseAfterFlush,
    r3_freed_pages_reused_after_two_flushes: ReuseAfterTwoFlushes,
    r4_no_mount_record: NoMount,
    r5_stream_extents_reused_at_once: StreamReuseAtOnce,
    r6_a_record_stamped_with_the_closing_epoch: StampedClosing,
    r6_staged_data_stamped_at_submission: StagedAtSubmission,
    r7_journal_reused_before_its_superblock_is_durable: JournalReusedEarly,
    r8_a_checkpoint_over_the_live_one: CheckpointInPlace,
    r8_checkpoint_and_superblock_in_one_epoch: CheckpointOneEpoch,
    r9_a_checkpoint_for_a_mount_keeps_the_chain: KeepChain,
    r10_epochs_resume_above_kept_records_only: KeptRecordsOnly,
    r11_no_flush_at_open: NoFlushAtOpen,
    r12_a_frame_written_through_acknowledged_early: ThroughEarly,
    r12_a_frame_written_through_counts_as_a_flush: ThroughIsFlush,
    r13_a_stream_goes_on_under_its_incarnation: KeepIncarnation,
    r13_a_stream_goes_on_before_its_trim: TrimBehindTheEnd,
    r14_frames_without_their_commit: AfterIgnored,
    r14_records_without_their_frame: DepIgnored,
    r15_a_checkpoint_ahead_of_the_frames_its_commits_come_after: CheckpointAheadOfFrames,
    r15_a_record_ahead_of_the_frames_its_commits_come_after: FlushedAheadOfFrames,
    r17_space_given_back_before_a_checkpoint_says_so: GiveBackEarly,
    r18_hollow_runs_that_no_checkpoint_names: HollowUnsaid,
}
