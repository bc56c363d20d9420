//! Tests of each check of tidy, with a tree that passes and one that fails.

use super::{Tree, check, formats};

const TABLE: (&str, &str) = ("docs/papers.md", "| 4.2 | objects | `crates/copal-a/src/lib.rs::Store` | |\n");

fn findings(files: &[(&str, &str)]) -> Vec<String> {
    check(&Tree::of(files)).iter().map(ToString::to_string).collect()
}

#[test]
fn a_clean_tree_has_no_findings() {
    let lib = "//! Store of things.\n//! Paper: draconis §4.2\npub struct Store {}\n";
    assert_eq!(findings(&[TABLE, ("crates/copal-a/src/lib.rs", lib)]), Vec::<String>::new());
}

#[test]
fn a_file_without_module_docs_is_found() {
    let found = findings(&[TABLE, ("crates/copal-a/src/lib.rs", "pub struct Store {}\n")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("no module docs"), "{found:?}");
}

#[test]
fn a_name_that_gathers_is_found_as_file_and_as_crate() {
    let lib = ("crates/copal-a/src/lib.rs", "//! Store of things.\npub struct Store {}\n");
    for path in [
        "crates/copal-a/src/utils.rs",
        "crates/copal-a/src/types.rs",
        "crates/copal-shared/src/lib.rs",
        "crates/copal-common/src/lib.rs",
        "crates/copal-a/src/helpers/a.rs",
    ] {
        let found = findings(&[TABLE, lib, (path, "//! Things of all kinds.\n")]);
        assert_eq!(found.len(), 1, "{path}: {found:?}");
    }
}

#[test]
fn unfinished_and_silenced_code_is_found() {
    for line in [concat!("#[", "ignore]"), concat!("todo", "!()"), concat!("#[", "allow(dead_code)]")] {
        let lib = format!("//! Store of things.\npub struct Store {{}}\n{line}\n");
        let found = findings(&[TABLE, ("crates/copal-a/src/lib.rs", &lib)]);
        assert_eq!(found.len(), 1, "{line}: {found:?}");
    }
    let reason = concat!("#[", "allow(dead_code, reason = \"read by tests\")]");
    let lib = format!("//! Store of things.\npub struct Store {{}}\n{reason}\n");
    assert_eq!(findings(&[TABLE, ("crates/copal-a/src/lib.rs", &lib)]), Vec::<String>::new());
}

#[test]
fn a_row_that_names_a_missing_item_is_found() {
    let found =
        findings(&[TABLE, ("crates/copal-a/src/lib.rs", "//! Store of things.\npub struct Stores {}\n")]);
    assert_eq!(found, ["docs/papers.md:1: `crates/copal-a/src/lib.rs` defines no `Store`"]);
    let found = findings(&[TABLE]);
    assert_eq!(found, ["docs/papers.md:1: `crates/copal-a/src/lib.rs` does not exist"]);
}

#[test]
fn a_source_that_cites_a_paper_needs_a_row() {
    let lib = ("crates/copal-a/src/lib.rs", "//! Store of things.\npub struct Store {}\n");
    let other = ("crates/copal-a/src/journal.rs", "//! Journal of the store.\n//! Paper: draconis §4.2\n");
    let found = findings(&[TABLE, lib, other]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("no row"), "{found:?}");
}

#[test]
fn a_suite_that_does_not_exist_is_found() {
    let table = ("docs/papers.md", "| `cargo xtask bench no-such-suite` |\n");
    assert_eq!(findings(&[table]), ["docs/papers.md:1: there is no suite `no-such-suite`"]);
}

/// Symptom: half of the table named its tests without a path and its suites without a command. Renaming one
/// of them left a dead name behind, and tidy reported nothing.
/// Cause: tidy checked only words that look like a path or a command.
/// Fix: the columns for code, tests and measurements hold only checked references.
#[test]
fn a_name_that_nothing_checks_is_found_in_the_columns_that_name_code() {
    let lib = ("crates/copal-a/src/lib.rs", "//! Store of things.\npub struct Store {}\nfn keeps() {}\n");
    let example = ("crates/copal-a/examples/shape.rs", "//! Shows the shape.\n");
    let code = "`crates/copal-a/src/lib.rs::Store`";
    let test = "`crates/copal-a/src/lib.rs::keeps`";
    let bench = "`cargo xtask bench object-commands`, `cargo run -p copal-a --example shape`";
    let row = |code: &str, test: &str, bench: &str| {
        let table = format!(
            "| paper | claim | where | test | bench | why |\n|---|---|---|---|---|---|\n| 1 | x | {code} | {test} | {bench} | `a word` |\n"
        );
        findings(&[("docs/papers.md", &table), lib, example])
    };
    assert_eq!(row(code, test, bench), Vec::<String>::new());
    assert_eq!(row("not built", "", ""), Vec::<String>::new());
    for (code, test, bench) in [
        ("lib.rs", test, bench),
        ("`Store`", test, bench),
        (code, "`keeps`", bench),
        (code, "keeps", bench),
        (code, "`crates/copal-a/src/lib.rs`", bench),
        (code, test, "object-commands"),
        (code, test, "`object-commands`"),
        (code, test, "`cargo run -p copal-a --example gone`"),
    ] {
        let found = row(code, test, bench);
        assert_eq!(found.len(), 1, "{code} {test} {bench}: {found:?}");
        assert!(found[0].starts_with("docs/papers.md:3: "), "{found:?}");
    }
}

#[test]
fn a_format_that_changed_without_its_page_is_found_until_recorded() {
    let code = "//! Journal format.\n//! Format: docs/formats/journal.md\n";
    let fresh = format!("# Journal\nSource: crates/copal-a/src/format.rs sha256:{}\n", formats::hash(code));
    let table = ("docs/papers.md", "");
    let source = ("crates/copal-a/src/format.rs", code);
    assert_eq!(findings(&[table, source, ("docs/formats/journal.md", &fresh)]), Vec::<String>::new());
    let stale = fresh.replace("sha256:", "sha256:0");
    let found = findings(&[table, source, ("docs/formats/journal.md", &stale)]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("read both"), "{found:?}");
    let found = findings(&[table, source]);
    assert!(found[0].contains("does not exist"), "the page is named and missing: {found:?}");
}

/// Symptom: the formats of the backup layer could change without their pages, although CONTRIBUTING said that
/// tidy refuses it.
/// Cause: tidy compared only hashes recorded in a page, and five pages recorded none.
/// Fix: each page names its code, and a page must name each file whose name marks a format.
#[test]
fn a_format_that_no_page_names_and_a_page_that_names_no_code_are_found() {
    let table = ("docs/papers.md", "");
    let code = "//! Journal format.\n//! Format: docs/formats/journal.md\n";
    let other = "//! Keys, as kept.\n//! Format: docs/formats/journal.md\n";
    let line = |path: &str, code: &str| format!("Source: {path} sha256:{}\n", formats::hash(code));
    let key_slot = ("crates/copal-a/src/key_slot.rs", other);
    for path in ["crates/copal-a/src/format.rs", "crates/copal-a/src/format/journal.rs"] {
        let page = format!("# Journal\n{}{}", line(path, code), line(key_slot.0, other));
        let of = |page: &str| findings(&[table, (path, code), key_slot, ("docs/formats/journal.md", page)]);
        assert_eq!(of(&page), Vec::<String>::new());
        let elsewhere = format!("# Journal\n{}", line(key_slot.0, other));
        let found = of(&elsewhere);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("{path}:1: no page")), "{found:?}");
    }
    let found = findings(&[table, key_slot, ("docs/formats/journal.md", "# Journal\n")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("names no code"), "{found:?}");
}

#[test]
fn rules_and_design_lines_lead_somewhere_and_back() {
    let design = "# Objects\n## Commit on one flush\n| **OBJ-1** sums | why |\n";
    let lib = |docs: &str| format!("//! Store of things.\n//! {docs}\npub struct Store {{}}\n");
    let found = |docs: &str, design: &str| {
        let lib = lib(docs);
        findings(&[TABLE, ("docs/design/object.md", design), ("crates/copal-a/src/lib.rs", &lib)])
    };
    let good = "Design: docs/design/object.md#commit-on-one-flush OBJ-1";
    assert_eq!(found(good, design), Vec::<String>::new());
    let named =
        "# Objects\n## Commit on one flush\n**OBJ-1 Sums.** Each record has one.\n- As **OBJ-1** says.\n";
    assert_eq!(found(good, &named.replace("**OBJ-1** says", "OBJ-1 says")), Vec::<String>::new());
    for (docs, design, what) in [
        (good, named, "defined twice"),
        (good, "# Objects\n## Commit on one flush\n**OBJ-1 without an end.\n", "defined nowhere"),
        (
            &format!("{good}, OBJ-12"),
            "# Objects\n## Commit on one flush\n**OBJ-12 Other.** No.\n",
            "OBJ-1 is defined nowhere",
        ),
        ("Design: object.md, OBJ-1", design, "does not exist"),
        ("Design: docs/design/object.md#recovery OBJ-1", design, "does not exist"),
        ("As OBJ-1 and OBJ-2 say.", design, "OBJ-2 is defined nowhere"),
        (concat!("As object", ".md §6 and OBJ-1 say."), design, "outside of"),
        ("Nothing is named.", design, "no source cites OBJ-1"),
        (good, &format!("{design}| **OBJ-1** again | |\n"), "defined twice"),
    ] {
        let found = found(docs, design);
        assert_eq!(found.len(), 1, "{docs}: {found:?}");
        assert!(found[0].contains(what), "{docs}: {found:?}");
    }
}

#[test]
fn a_decision_that_its_index_leaves_out_is_found() {
    let lib = ("crates/copal-a/src/lib.rs", "//! Store of things.\npub struct Store {}\n");
    let decision = ("docs/decisions/2026-01-01-why.md", "# Why\n");
    let with = |index| findings(&[TABLE, lib, decision, ("docs/decisions/README.md", index)]);
    assert_eq!(with("[why](2026-01-01-why.md): because\n"), Vec::<String>::new());
    assert_eq!(with("nothing\n").len(), 1);
}
