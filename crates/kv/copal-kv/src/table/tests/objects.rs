//! A table through the real object store on a memory device: written, published, reopened, read, deleted.

use super::{
    super::{ReadOptions, Scan, Table, TableBuilder, TableError},
    support::{ID, Random, SEED, cache, mixed, options},
};
use crate::{
    format::{
        entry::{Entry, MAX_SEQ},
        entry_cursor::Cursor,
    },
    table::{TableCursor, TableVerifier},
};
use copal_device::{IoClass, MemoryDevice};
use copal_filter::{KeyHash, Kind};
use copal_object::{Ack, MkfsOptions, OpenOptions, Store, StoreError, Txn};

#[test]
fn a_table_is_an_object_once_published_and_none_before() {
    let device = MemoryDevice::new(128 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device.clone(), &OpenOptions::default()).unwrap();
    let model = mixed(&mut Random::new(40), 4000);
    let mut builder = TableBuilder::new(&objects, ID, options(true, Kind::Ribbon)).unwrap();
    for ((key, seq), (kind, value)) in &model {
        builder.add(Entry { key, seq: seq.0, kind: *kind, value }).unwrap();
    }
    let (staged, meta) = builder.finish().unwrap();
    assert_eq!(staged.len(), meta.bytes);
    let read = ReadOptions { store_seed: SEED };
    let error = Table::open(&objects, ID, cache(), read).err().unwrap();
    assert!(matches!(error, TableError::Object(StoreError::NotFound(ID))), "{error}");

    let publish = Txn::new().publish(staged);
    objects.commit(publish, Ack::Durable).wait().unwrap();
    objects.close().unwrap();
    drop(objects);

    let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let table = Table::open(&objects, ID, cache(), read).unwrap();
    assert_eq!(table.meta(), &meta);
    let mut cursor =
        TableCursor::new(&table, Scan { class: IoClass::Background, whole: true, ..Scan::default() });
    cursor.first().unwrap();
    for ((key, seq), (kind, value)) in &model {
        let entry = cursor.entry().unwrap();
        assert_eq!((entry.key, entry.seq, entry.kind, entry.value), (&key[..], seq.0, *kind, &value[..]));
        cursor.next().unwrap();
    }
    for (key, _) in model.keys() {
        let newest = table.get(key, MAX_SEQ, &KeyHash::new(key, SEED)).unwrap().unwrap();
        let expected = model.range((key.clone(), std::cmp::Reverse(u64::MAX))..).next().unwrap();
        assert_eq!((newest.seq, &newest.value[..]), (expected.0.1.0, &expected.1.1[..]));
    }
    assert!(TableVerifier::new(&table).verify(IoClass::Background).unwrap().is_clean());

    let delete = Txn::new().delete(ID);
    objects.commit(delete, Ack::Durable).wait().unwrap();
    assert!(Table::open(&objects, ID, cache(), read).is_err());
}
