use super::*;

fn measures(rows: &[(&'static str, &str, usize)]) -> Measures {
    rows.iter().map(|(name, area, number)| ((*name, (*area).to_owned()), *number)).collect()
}

#[test]
fn a_bound_falls_with_its_measure_and_never_rises() {
    let mut bounds = parse("# head\nrooms a 5\nrooms b 5\nrooms gone 5\n").unwrap();
    lower(&mut bounds, &measures(&[("rooms", "a", 3), ("rooms", "b", 9)]));
    assert_eq!(parse(&render(&bounds)).unwrap(), parse("rooms a 3\nrooms b 5\n").unwrap());
    assert!(parse("rooms a\n").is_err() && parse("rooms a x\n").is_err());
}

#[test]
fn a_measure_above_its_bound_fails() {
    let root = tempfile::tempdir().unwrap();
    for folder in ["crates/a/b/src", "xtask"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    fs::write(root.path().join("crates/a/b/src/lib.rs"), "//! Says what it is.\nstruct Two {}\n").unwrap();
    let tree = Tree::read(root.path()).unwrap();
    let bounds = |text: &str| {
        fs::write(root.path().join(BOUNDS), text).unwrap();
        check(root.path(), &tree, false)
    };
    assert!(bounds("who-or-what crates/a/b 1\none-word-types crates/a/b 1\n").is_ok());
    assert!(bounds("one-word-types crates/a/b 1\n").is_err());
}
