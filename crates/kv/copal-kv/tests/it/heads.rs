//! Value heads: the first bytes of every value without a read of value objects.

use crate::support::*;
use copal_kv::KeyspaceOptions;
use std::collections::BTreeMap;

fn with_heads(bytes: u16) -> KeyspaceOptions {
    KeyspaceOptions { value_head_bytes: bytes, ..grouped() }
}

/// Inline, separated at flush, direct; through memory, table, collection of values, reopening.
#[test]
fn a_head_is_the_beginning_of_the_value_wherever_it_stands() {
    for head in [0u16, 1, 100, 700, 5000] {
        let mut fixture = Fixture::new(128 * MIB, small());
        let map: BTreeMap<Vec<u8>, Vec<u8>> = (0..60u64)
            .map(|i| {
                let len = [0, 50, 99, 700, 2000, 4096, 100_000][(i % 7) as usize];
                (vec![b'a' + (i % 3) as u8, i as u8], value(i, len))
            })
            .collect();
        for round in 0..5 {
            let space = fixture.space("a", with_heads(head));
            if round == 0 {
                for (key, value) in &map {
                    space.put(key, value, PROCESS).unwrap();
                }
                space.put(b"d0", b"gone", PROCESS).unwrap();
                space.delete(b"d0", PROCESS).unwrap();
            }
            let expected = |value: &Vec<u8>| {
                let end = value.len().min(usize::from(head)).min(4096);
                value[..end].to_vec()
            };
            let walked: BTreeMap<_, _> = space
                .iter(all())
                .heads()
                .map(|item| item.map(|(key, head)| (key.to_vec(), head.to_vec())).unwrap())
                .collect();
            let heads: BTreeMap<_, _> = map.iter().map(|(k, v)| (k.clone(), expected(v))).collect();
            assert_eq!(walked, heads, "head {head}, round {round}");
            for (key, value) in &map {
                assert_eq!(space.get(key).unwrap().unwrap(), value);
                for part in [0..10, 0..u64::from(head), 50..150, 90..5000, 4000..200_000] {
                    let clamp = |at: u64| (at as usize).min(value.len());
                    assert_eq!(
                        space.get_range(key, part.clone()).unwrap().unwrap(),
                        value[clamp(part.start)..clamp(part.end)]
                    );
                }
            }
            assert_eq!(space.get(b"d0").unwrap(), None);
            assert_sound(&fixture.store, true);
            match round {
                0 => fixture.store.flush().unwrap(),
                1 => {
                    // Values around deleted ones are moved to new objects, and keep their heads.
                    for i in 0..400u64 {
                        let key = [b"aa", &i.to_be_bytes()[..]].concat();
                        space.put(&key, &value(i, 2000), PROCESS).unwrap();
                    }
                    fixture.store.flush().unwrap();
                    for i in 0..400u64 {
                        let key = [b"aa", &i.to_be_bytes()[..]].concat();
                        space.delete(&key, PROCESS).unwrap();
                    }
                    space.compact_range(all()).unwrap();
                }
                _ => {
                    drop(space);
                    fixture = fixture.reopen(small(), round == 2);
                }
            }
        }
    }
}

/// A listing of large files reads only the table.
#[test]
fn a_walk_over_heads_touches_no_value_object() {
    let fixture = Fixture::new(256 * MIB, small());
    let space = fixture.space("a", with_heads(128));
    for i in 0..100u32 {
        space.put(&i.to_be_bytes(), &value(u64::from(i), 1 << 20), PROCESS).unwrap();
    }
    space.compact_range(all()).unwrap();
    let before = fixture.device.counters().read_bytes;
    assert_eq!(space.iter(all()).heads().count(), 100);
    for i in 0..100u32 {
        let part = space.get_range(&i.to_be_bytes(), 0..128).unwrap().unwrap();
        assert_eq!(part.len(), 128);
    }
    let read = fixture.device.counters().read_bytes - before;
    assert!(read < MIB, "{read} bytes read beside 100 MiB of values");
    assert_eq!(space.get(&7u32.to_be_bytes()).unwrap().unwrap(), value(7, 1 << 20));
}
