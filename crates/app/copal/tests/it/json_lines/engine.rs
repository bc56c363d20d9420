//! Commands on the engine below a repository.

use super::Record;
use crate::engine::{Scene, damage, value};

#[test]
fn commands_on_the_engine_print_the_fields_of_the_golden_file() {
    let scene = Scene::new();
    let mut record = Record::new("engine", &scene.house.path(""));
    let store = scene.store.to_str().unwrap().to_owned();
    record.kinds_of_numbers();
    record.has_progress = true;
    let mut run = |words: &[&str]| {
        let words: Vec<&str> = ["kv", "--store", &store].iter().chain(words).copied().collect();
        record.run(&scene.house, words)
    };
    run(&["stats"]);
    let asked: String = (0..300).map(|i| format!("key {i:06}?\n")).collect();
    let keys = scene.house.word("keys.txt");
    std::fs::write(&keys, asked).unwrap();
    run(&["filters", "--keys", &keys, "--keyspace", "index"]);
    run(&["dump"]);
    run(&["dump", "1"]);
    run(&["verify", "--deep"]);
    run(&["verify", "--rate", "1M"]);
    damage(&scene.store, &value(5000));
    run(&["verify", "--deep"]);
    run(&["verify", "--rate", "1M"]);
    let copy = scene.copy.to_str().unwrap();
    run(&["repair", "--from", copy, "--dry-run"]);
    run(&["repair", "--from", copy]);
    run(&["dump", "77777"]);
    record.compare();
}
