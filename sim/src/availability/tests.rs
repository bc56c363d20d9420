use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn arguments(words: &[&str]) -> Arguments {
    let mut line = vec!["availability"];
    line.extend(words);
    Line::parse_from(line).arguments
}

fn close(value: f64, wanted: f64, by: f64) {
    assert!((value - wanted).abs() <= by, "{value} is not {wanted} +- {by}");
}

#[test]
fn the_papers_formula_gives_its_18_lost_volumes() {
    for (transient_time, permanent_time) in [("1033", "1800"), ("930", "2400"), ("783", "3000")] {
        let arguments = arguments(&["--transient-time", transient_time, "--permanent-time", permanent_time]);
        let dead = closed_form::paper(arguments.rates()).sum() * arguments.volume_seconds();
        close(dead, 18.0, 0.1);
    }
    let worst = arguments(&[]);
    let lost = closed_form::paper(worst.rates()).by_permanent[3] * worst.volume_seconds();
    close(lost, 0.033, 0.0005);
}

#[test]
fn with_equal_times_the_two_formulas_agree() {
    let arguments = arguments(&["--transient-time", "2400"]);
    let (paper, exact) = arguments.formulas().unwrap();
    for (paper, exact) in paper.by_permanent.iter().zip(exact.by_permanent) {
        close(paper / exact, 1.0, 1e-12);
    }
}

#[test]
fn simulated_events_agree_with_the_formula() {
    // Small and frequently failing: hundreds of losses in a second of computing.
    let arguments = arguments(&[
        "--servers",
        "30",
        "--volumes",
        "4000",
        "--groups",
        "4000",
        "--runs",
        "60",
        "--transient-rate",
        "1e-6",
        "--permanent-rate",
        "1e-7",
    ]);
    let found = simulate(&arguments).unwrap();
    let dead: f64 = found.dead_volumes(&arguments).iter().sum();
    let (paper, exact) = arguments.formulas().unwrap();
    let (paper, exact) = (paper.sum() * arguments.volume_seconds(), exact.sum() * arguments.volume_seconds());
    assert!((0.5..2.0).contains(&(dead / paper)), "{dead} beside {paper}");
    assert!((0.7..1.4).contains(&(dead / exact)), "{dead} beside {exact}");
    let copied_after_s = found.copied_after_s / found.copied as f64;
    close(copied_after_s, arguments.permanent_time, 0.15 * arguments.permanent_time);
}

#[test]
fn equal_seeds_give_equal_losses_and_other_seeds_other_losses() {
    let of_seed = |seed: &str| {
        let words =
            ["--servers", "20", "--groups", "500", "--runs", "5", "--transient-rate", "3e-6", "--seed", seed];
        let found = simulate(&arguments(&words)).unwrap();
        (found.failures, found.dead_groups, found.copied)
    };
    assert_eq!(of_seed("1"), of_seed("1"));
    assert_ne!(of_seed("1"), of_seed("2"));
}

#[test]
fn a_single_replica_is_lost_with_every_failure() {
    let words = [
        "--servers",
        "5",
        "--groups",
        "100",
        "--volumes",
        "100",
        "--runs",
        "1",
        "--replicas",
        "1",
        "--transient-rate",
        "1e-7",
        "--permanent-rate",
        "0",
    ];
    let arguments = arguments(&words);
    let found = simulate(&arguments).unwrap();
    let dead: u64 = found.dead_groups.iter().sum();
    assert!(found.failures > 10 && found.coincidences == found.failures, "{found:?}");
    close(dead as f64 / found.failures as f64, 20.0, 6.0);
}

#[test]
fn arguments_that_cannot_be_simulated_are_refused_with_a_reason() {
    for (words, reason) in [
        (["--servers", "3"], "above --replicas"),
        (["--permanent-time", "1800"], "above --declared-after"),
        (["--runs", "0"], "at least 1"),
        (["--groups", "1048576"], "from 1 to 1048575"),
        (["--transient-rate", "1"], "too many to simulate"),
    ] {
        let error = simulate(&arguments(&words)).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
