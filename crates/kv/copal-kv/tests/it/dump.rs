//! A dump shows every object of a store with its role, damaged or not.

use crate::support::*;
use copal_kv::{
    KeyspaceOptions,
    dump::{self, DumpOptions},
};
use copal_object::{DumpField, DumpItem, ObjectId, Store as Objects};

pub(crate) const EVERYTHING: DumpOptions = DumpOptions { entries: true, partition: None };

/// All items of all objects of a store, by object.
pub(crate) fn everything(objects: &Objects) -> Vec<(ObjectId, Vec<DumpItem>)> {
    let list = objects.list(ObjectId(0), usize::MAX);
    let object = |stat: &copal_object::ObjectStat| {
        let mut items = Vec::new();
        dump::object(objects, stat.id.0, &EVERYTHING, &mut |item| {
            items.push(item);
            true
        })
        .unwrap();
        (stat.id, items)
    };
    list.iter().map(object).collect()
}

fn of_kind<'a>(items: &'a [DumpItem], kind: &'a str) -> impl Iterator<Item = &'a DumpItem> {
    items.iter().filter(move |item| item.kind == kind)
}

fn number(item: &DumpItem, name: &str) -> u64 {
    match item.fields.iter().find(|(field, _)| *field == name) {
        Some((_, DumpField::Number(number))) => *number,
        other => panic!("{name} is {other:?} in {item:?}"),
    }
}

#[test]
fn every_object_is_shown_with_its_kind() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("files", grouped());
    for i in 0..30u64 {
        let len = [50, 700, 5000][(i % 3) as usize];
        space.put(&i.to_be_bytes(), &value(i, len), PROCESS).unwrap();
    }
    space.compact_range(all()).unwrap();
    space.delete(&3u64.to_be_bytes(), PROCESS).unwrap();
    let mut batch = fixture.store.batch();
    batch.delete_range(&space, &4u64.to_be_bytes(), &6u64.to_be_bytes());
    batch.commit(PROCESS).unwrap();
    fixture.store.flush().unwrap();
    space.put(b"logged \x01", b"text", PROCESS).unwrap();
    space.put(b"direct", &value(99, 8000), DEVICE).unwrap();
    let mut outline = Vec::new();
    dump::outline(&fixture.objects, &mut |item| {
        outline.push(item);
        true
    })
    .unwrap();
    let names: Vec<&str> = outline.iter().map(|item| item.kind).collect();
    for kind in ["manifest", "keyspace", "run", "table", "value-object", "log", "page-cache-log"] {
        assert!(names.contains(&kind), "{kind} in {names:?}");
    }
    assert!(!names.contains(&"damage") && !names.contains(&"unnamed"), "{outline:?}");
    let all = everything(&fixture.objects);
    let items: Vec<DumpItem> = all.iter().flat_map(|(_, items)| items.clone()).collect();
    assert_eq!(of_kind(&items, "damage").count(), 0);
    // Entries: 30 puts at the bottom (a third of them pointers of each kind), a delete, a log of two.
    let tables: Vec<DumpItem> = items.iter().filter(|item| item.depth == 2).cloned().collect();
    assert_eq!(of_kind(&tables, "put").count(), 10 + 1);
    assert_eq!(of_kind(&tables, "pointer").count(), 20 + 1);
    assert_eq!(of_kind(&tables, "delete").count(), 1);
    assert_eq!(of_kind(&items, "range-tombstone").count(), 1);
    assert!(of_kind(&items, "filter-page").count() >= 2);
    assert!(of_kind(&items, "group").count() >= 1);
    assert_eq!(of_kind(&items, "session").count(), 1);
    // Each separated value is listed under its object, at the place in its pointer.
    assert_eq!(of_kind(&items, "value").count(), 21);
    assert!(of_kind(&items, "value").all(|item| number(item, "bytes") >= 700));
    let logged = of_kind(&tables, "put").find(|item| item.line(false).contains("logged")).unwrap();
    assert!(logged.line(false).contains("key 1/logged \\x01"), "{}", logged.line(false));
    assert!(logged.line(false).ends_with("value_bytes 4  value text"), "{}", logged.line(false));
    assert!(logged.line(true).ends_with("value 74657874"), "{}", logged.line(true));
    // One partition alone shows its entries; a sink may stop it.
    let table = all.iter().find(|(_, items)| items[0].kind == "table").unwrap().0;
    let one = DumpOptions { partition: Some(0), ..DumpOptions::default() };
    let mut seen = 0;
    dump::object(&fixture.objects, table.0, &one, &mut |item| {
        seen += u32::from(item.depth == 2);
        item.kind != "put"
    })
    .unwrap();
    assert_eq!(seen, 3, "index page, filter page and the entry it was stopped at");
    let none = dump::object(&fixture.objects, 4_000_000, &one, &mut |_| true);
    assert!(none.unwrap_err().to_string().contains("object 4000000 does not exist"));
}

#[test]
fn an_empty_object_store_says_so() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", KeyspaceOptions::default());
    drop(space);
    let device = copal_device::MemoryDevice::new(64 * MIB);
    format(&device);
    let mut items = Vec::new();
    dump::outline(&open_objects(&device), &mut |item| {
        items.push(item.kind);
        true
    })
    .unwrap();
    assert_eq!(items, ["empty"]);
}
