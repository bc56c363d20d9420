//! Runs of small clusters, and the arithmetic that derives the inputs from the paper.

use super::inputs::{self, GB, MB, paper};
use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn arguments(words: &str) -> Arguments {
    let words = std::iter::once("dedup").chain(words.split_whitespace());
    Line::parse_from(words).arguments
}

fn outcomes(words: &str) -> Vec<Outcome> {
    simulate(&arguments(words)).unwrap().outcomes
}

fn outcome(words: &str) -> Outcome {
    outcomes(words).remove(0)
}

const SMALL: &str = "--hosts 4 --vms 40 --skew 4 --scale 10000";

fn near(value: f64, wanted: f64, share: f64) {
    assert!((value / wanted - 1.0).abs() <= share, "{value} and not {wanted}");
}

#[test]
fn all_schemes_of_a_small_cluster_keep_every_chunk_and_end_every_vm() {
    let all = outcomes(SMALL);
    assert_eq!(all.len(), 5);
    for outcome in &all {
        assert!(outcome.chunks.adds_up(), "{outcome:?}");
        assert_eq!(outcome.vms.len(), 40, "{}", outcome.scheme);
        assert_eq!(outcome.chunks.all, all[0].chunks.all, "{}", outcome.scheme);
        assert!(outcome.vms.iter().all(|vm| vm.began < vm.ended), "{}", outcome.scheme);
    }
    let copal = &all[4];
    let stored = copal.chunks.private + copal.chunks.popular;
    let kept = copal.bytes.stored - copal.bytes.given_up;
    near(kept, stored as f64 * 4096.0 * 10_000.0, 1e-9);
    assert!(copal.bytes.stored < all[0].bytes.stored / 3.0, "{copal:?}");
    assert!(copal.span_h() < all[3].span_h(), "{copal:?}");
}

#[test]
fn equal_arguments_give_equal_runs_and_other_seeds_other_runs() {
    let words = format!("{SMALL} --scheme copal");
    let first = outcome(&words);
    assert_eq!(first, outcome(&words));
    assert_ne!(first, outcome(&format!("{words} --seed 2")));
}

#[test]
fn a_host_that_is_alone_answers_itself() {
    let alone = outcome("--hosts 1 --vms 5 --skew 2 --scale 10000 --scheme copal");
    assert!(alone.chunks.adds_up());
    assert_eq!(alone.chunks.unresolved, 0);
}

/// Symptom: the more rounds, the more was stored, since a chunk's private copy stays when a later round makes
/// it popular.
/// Fix: at the end of the job the VMs ask again about all private chunks.
#[test]
fn rounds_cost_no_storage() {
    let stored = |rounds: u32| {
        // On the first day no chunk is popular at the beginning.
        let words = format!("{SMALL} --scheme copal --days 1 --rounds {rounds}");
        outcome(&words)
    };
    let (one, eight) = (stored(1), stored(8));
    assert!(eight.bytes.given_up > one.bytes.given_up, "{eight:?}");
    near(eight.storage_gb(), one.storage_gb(), 0.03);
}

#[test]
fn a_slow_host_delays_the_others_by_patience_and_no_more() {
    let words = "--hosts 4 --vms 40 --sizes even --scale 10000 --scheme copal";
    let (all_well, one_slow) = (outcome(words), outcome(&format!("{words} --slow 1")));
    assert!(one_slow.span_h() > 5.0 * all_well.span_h(), "{}", one_slow.span_h());
    let healthy = one_slow.healthy_span_h();
    assert!(healthy < 2.0 * all_well.span_h(), "{healthy} and {}", all_well.span_h());
}

/// Table 1, and the span of its I/O at 60 MB/s.
#[test]
fn one_reading_of_the_paper_fits_its_figures() {
    let rows = 220.0 * GB / paper::CHUNK_BYTES;
    near(rows * paper::ROW_BYTES / 12.0, 90.0 * MB, 0.02);
    let index = rows * paper::ROW_BYTES * paper::INDEX_ROWS_PER_CHUNK;
    let messages = rows * paper::MESSAGE_BYTES;
    near(messages, 6.6 * GB, 0.01);
    near(index, 3.15 * GB, 0.01);
    assert!(messages + index < 10.0 * GB, "disk of a host");
    near(440.0 * GB + 2.0 * messages, 453.0 * GB, 0.01);
    near(440.0 * GB + 2.0 * messages + 12.0 * index, 491.0 * GB, 0.01);
    near(491.0 * GB / inputs::DISK_BYTES_PER_S, 2.27 * 3600.0, 0.01);
    near(220.0 * GB / inputs::BACK_END_BYTES_PER_S, 1.25 * 3600.0, 0.03);
    near(2500.0 * inputs::VM_BYTES * inputs::DIRTY_SHARE, 22_000.0 * GB, 0.01);
    near(4000.0 * 48.4 * GB, 196_000.0 * GB, 0.02);
}

/// Checks the overhead of a batch against the agents' messages.
#[test]
fn a_batch_costs_the_bytes_of_its_messages() {
    use copal_agent::fleet::messages::{AnswerMessage, AskMessage};
    use prost::Message;
    // Length, header and remaining time of a frame. The batch has a reply, its answers a call of their own.
    const FRAME_BYTES: usize = 4 + 16 + 4;
    let ask = AskMessage {
        job: [1; 16],
        round: 2,
        vm: 3,
        batch: 4 << 32 | 5,
        partition_bits: 11,
        partition: 500,
        ids: vec![[6; 16]; 8],
    };
    let answers = AnswerMessage {
        job: [1; 16],
        round: 2,
        batch: 4 << 32 | 5,
        partition: 500,
        generation: 600,
        codes: vec![7; 8],
    };
    let asked = ask.to_message(&[1; 16]).encoded_len() - 8 * 16;
    // One of the answers of a page, mostly one of four.
    let answered = 2 + answers.into_message().encoded_len() - 8 * 4;
    let take = copal_proto::messages::AgentTake { instance: vec![1; 16].into(), received: 700 }.encoded_len();
    let around = asked + answered + 2 * FRAME_BYTES + (take + 2 * FRAME_BYTES) / 4;
    near(inputs::copal::BATCH_BYTES, around as f64, 0.02);
}

/// Table 3.
#[test]
fn one_reading_of_the_paper_fits_its_deletion() {
    near(inputs::back_end_read_bytes_per_s(1), 50.0 * MB, 1e-9);
    near(inputs::back_end_read_bytes_per_s(50), 30.0 * MB, 1e-9);
    near(inputs::back_end_read_bytes_per_s(100), 25.0 * MB, 1e-9);
    assert!(inputs::back_end_read_bytes_per_s(200) < 20.0 * MB);
    let recipes = inputs::VM_BYTES / paper::CHUNK_BYTES * paper::RECIPE_ENTRY_BYTES;
    near(recipes, 295.0 * MB, 0.01);
    let hours = 25.0 * 10.0 * recipes / (25.0 * MB) / 3600.0;
    near(hours, 0.82, 0.01);
    near(100.0 * hours, 84.3, 0.05);
    near(100.0 * hours * paper::GROUPED_SHARE, 43.6, 0.05);
    let vector = paper::PRIVATE_REFERENCES * paper::VECTOR_BITS / 8.0;
    near(10.0 * vector, 15.0 * MB, 0.01);
    near(paper::PRIVATE_REFERENCES * paper::MARK_ROW_BYTES, 50.0 * MB, 0.01);
    near(paper::PRIVATE_REFERENCES * paper::REFERENCE_BYTES, 35.0 * MB, 0.01);
}

/// Interval of repairs: with table 4's rate of errors the formula gives 490 deletions; the paper prints 19.6
/// days.
#[test]
fn the_interval_of_repairs_follows_for_25_vms_of_a_host() {
    let all = (1.0 + 9.0 * paper::NEW_SHARE) / paper::NEW_SHARE;
    let deletions = 0.1 / 0.01 * all;
    near(deletions, 490.0, 0.01);
    near(deletions / 25.0, 19.6, 0.01);
}

#[test]
fn the_papers_rounds_are_even_and_begin_with_the_smallest() {
    let fleet = Fleet::draw((10, 250), Sizes::Lognormal, 10.0, Placement::Balanced, 3);
    let hosts = Hosts { fleet: &fleet, slow: 0, slowdown: 1.0 };
    for host in 0..10 {
        let rounds = collaborative::plan(&hosts, host, 12, |_| 0.0);
        let all: f64 = rounds.iter().map(|round| round.bytes).sum();
        near(all, fleet.dirty_bytes_of(host), 1e-9);
        let first = rounds[0].vms.iter().map(|&vm| fleet.vms[vm].dirty_bytes).fold(0.0, f64::max);
        let last = rounds[11].vms.iter().map(|&vm| fleet.vms[vm].dirty_bytes).fold(f64::INFINITY, f64::min);
        assert!(first <= last, "{first} and {last}");
        for round in &rounds {
            // Each end lies within half of an average VM; a round has 25/12 of an average VM.
            near(round.bytes, all / 12.0, 12.0 / 25.0);
        }
    }
}

#[test]
fn deletion_frees_no_live_chunk_and_costs_little() {
    let (costs, freed) =
        deletion::simulate(&deletion::Arguments { hosts: 4, skew: 4.0, scale: 1000, seed: 1, json: false })
            .unwrap();
    assert!(freed.dead > 0 && freed.leaked * 20 < freed.dead, "{freed:?}");
    assert_eq!(costs.len(), 7);
}
