use super::*;

fn trial(seed: u64) -> Trial {
    Trial {
        seed,
        minutes: 4,
        with_faults: true,
    }
}

#[test]
fn one_seed_is_one_run_and_another_is_another() {
    let run = |seed| run::run(&trial(seed)).unwrap();
    let (first, again, other) = (run(3), run(3), run(4));
    assert_eq!(first.lines, again.lines);
    assert_eq!(first.hash, again.hash);
    assert_ne!(first.hash, other.hash);
    assert!(first.operations > 100, "{}", first.operations);
}

#[test]
fn whatever_goes_wrong_what_was_told_holds_and_all_comes_together() {
    for seed in 1..=10 {
        let outcome = run::run(&trial(seed)).unwrap();
        assert_eq!(outcome.violations, [""; 0], "seed {seed}");
    }
}
