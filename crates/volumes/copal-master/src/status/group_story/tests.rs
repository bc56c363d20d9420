use super::*;

#[test]
fn a_name_is_found_as_a_word_and_no_part_of_one() {
    let text = "data1 refuses connections: it is taken for failed";
    assert!(mentions(text, &["data1"]));
    assert!(!mentions(text, &["data"]) && !mentions(text, &["data11"]));
    let text = "data2 is not in sync in group 7 any more, and copies missing operations from others";
    assert!(mentions(text, &["data2", "group", "7"]));
    assert!(!mentions(text, &["group", "data2"]), "in their order");
    assert!(!mentions("group 17 moves from data1 to data4", &["group", "7"]));
}
