use super::*;

fn key(text: &[u8]) -> Bytes {
    KeyspaceId(1).key(text)
}

fn every_record() -> Vec<ManifestRecord> {
    let options = KeyspaceOptions {
        group_prefix_len: 4,
        compress: true,
        cache: CacheMode::Blocks,
        ..KeyspaceOptions::default()
    };
    vec![
        ManifestRecord::Keyspace { id: KeyspaceId(1), name: "files".to_owned(), options },
        ManifestRecord::Table(TableMeta {
            object: ObjectId(9),
            bytes: 70_000,
            entries: 300,
            droppable: 2,
            max_seq: 512,
            start: key(b"a"),
            end: key(b"x\0"),
            values: vec![(ObjectId(5), 80_000)],
            ingested_at: None,
        }),
        ManifestRecord::Ingested { object: ObjectId(9), seq: 512 },
        ManifestRecord::Keyspace {
            id: KeyspaceId(2),
            name: "heads".to_owned(),
            options: KeyspaceOptions { value_head_bytes: 512, ..KeyspaceOptions::default() },
        },
        ManifestRecord::Slices {
            object: ObjectId(9),
            level: TreeLevel::BOTTOM,
            run: 3,
            parts: vec![key(b"a")..key(b"c"), key(b"d")..key(b"x\0")],
        },
        ManifestRecord::Value(ValueMeta {
            object: ObjectId(5),
            keyspace: KeyspaceId(1),
            group: Bytes::from_static(b"grp1"),
            accounted: 1 << 20,
            max_seq: 511,
            by_worker: true,
        }),
        ManifestRecord::Dead { object: ObjectId(5), ranges: vec![0..4096, 8192..70_000] },
        ManifestRecord::DropValue { object: ObjectId(4) },
        ManifestRecord::Flushed { generation: 6, last_seq: 512 },
        ManifestRecord::Counters { next_object: 10, next_run: 4, next_keyspace: 2 },
        ManifestRecord::DropKeyspace { id: KeyspaceId(1) },
        ManifestRecord::Settled { below: 300 },
    ]
}

/// Keys were slices of the buffer of the manifest: one table in use kept the whole buffer in memory,
/// uncounted, as long as the store was open. They are copies now.
#[test]
fn parsed_edits_keep_no_manifest_buffer_in_memory() {
    let bytes = manifest(&[every_record()]);
    let records = parse_edits(&bytes).unwrap();
    assert!(bytes.is_unique(), "{} records share the buffer", records.len());
}

#[test]
fn cache_modes_stand_beside_compress_and_unknown_ones_are_refused() {
    for (bits, compress, cache) in [
        (0b000, false, CacheMode::Rows),
        (0b001, true, CacheMode::Rows),
        (0b010, false, CacheMode::Blocks),
        (0b101, true, CacheMode::Nothing),
    ] {
        let record = ManifestRecord::Keyspace {
            id: KeyspaceId(1),
            name: "a".to_owned(),
            options: KeyspaceOptions { compress, cache, ..KeyspaceOptions::default() },
        };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(bytes.last(), Some(&bits));
        let read = |bytes: Vec<u8>| ManifestRecord::decode(&mut Reader::new(&bytes));
        assert_eq!(read(bytes.clone()), Ok(record));
        *bytes.last_mut().unwrap() |= 0b110;
        assert!(read(bytes).is_err());
    }
}

fn manifest(edits: &[Vec<ManifestRecord>]) -> Bytes {
    let mut out = header(0x0123_4567_89ab_cdef);
    for edit in edits {
        let bytes = encode_edit(out.len() as u64, edit);
        out.extend_from_slice(&bytes);
    }
    Bytes::from(out)
}

#[test]
fn every_record_comes_back() {
    let records = every_record();
    let bytes = manifest(&[records[..4].to_vec(), records[4..].to_vec()]);
    assert_eq!(parse_header(&bytes).unwrap(), (FORMAT.version, 0x0123_4567_89ab_cdef));
    assert_eq!(parse_edits(&bytes).unwrap(), records);
}

/// The worked example of docs/formats/kv-manifest.md.
#[test]
fn golden_manifest() {
    let bytes = manifest(&[vec![
        ManifestRecord::Flushed { generation: 1, last_seq: 300 },
        ManifestRecord::Counters { next_object: 7, next_run: 2, next_keyspace: 3 },
        ManifestRecord::Ingested { object: ObjectId(6), seq: 300 },
    ]]);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let envelope = "434f50414c4b564d 0300 0000 00000000 00000000 08000000 c96b8298 00000000";
    let seed = "efcdab8967452301";
    let edit = "16000000 a829f99c 08 01 ac02 09 07 02 03000000 0b 0600000000000000 ac02";
    assert_eq!(hex, [envelope, seed, edit].concat().replace(' ', ""));
    assert_eq!(parse_edits(&bytes).unwrap().len(), 3);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = manifest(&[every_record()]);
    for bit in 0..bytes.len() * 8 {
        let mut copy = bytes.to_vec();
        copy[bit / 8] ^= 1 << (bit % 8);
        let copy = Bytes::from(copy);
        let damaged = parse_header(&copy).is_err() || parse_edits(&copy).is_err();
        assert!(damaged, "bit {bit}");
    }
}

#[test]
fn an_edit_that_moved_does_not_verify() {
    let edit = encode_edit(HEADER_LEN as u64, &every_record());
    let mut out = header(1);
    out.extend_from_slice(&edit);
    out.extend_from_slice(&edit);
    assert!(parse_edits(&Bytes::from(out)).unwrap_err().is_corruption());
}

/// Version 1 had neither ingests nor value heads; all its contents keep their meaning.
#[test]
fn a_manifest_of_version_1_is_read_and_says_so() {
    let mut old = vec![0; ENVELOPE_LEN];
    old.put_u64(7);
    let version_1 = Format { version: 1, ..FORMAT };
    Envelope::seal(&version_1, 0, 0, &mut old);
    assert_eq!(parse_header(&old).unwrap(), (1, 7));
    // A keyspace as version 1 wrote it: kind 1, without the head.
    let record = ManifestRecord::Keyspace {
        id: KeyspaceId(1),
        name: "a".to_owned(),
        options: KeyspaceOptions { direct_from_bytes: 65_536, ..KeyspaceOptions::default() },
    };
    let edit = encode_edit(HEADER_LEN as u64, std::slice::from_ref(&record));
    let bytes = "01 01000000 0161 00 00100000 00000100 00".replace(' ', "");
    let hex: String = edit[8..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, bytes);
    old.extend_from_slice(&edit);
    assert_eq!(parse_edits(&Bytes::from(old)).unwrap(), vec![record]);
}

/// Symptom: a manifest with an edit that verifies but names the largest id, run or sequence panicked at
/// opening, in builds that check arithmetic. Cause: such numbers are incremented ("one above the highest").
/// Fix: numbers that no store ever allocates are refused by the decoder.
#[test]
fn a_number_that_has_none_above_it_is_refused() {
    let (highest, table) = (ObjectId(u64::MAX), |object| TableMeta {
        object,
        bytes: 0,
        entries: 0,
        droppable: 0,
        max_seq: 0,
        start: Bytes::new(),
        end: Bytes::new(),
        values: Vec::new(),
        ingested_at: None,
    });
    let value = |max_seq| ValueMeta {
        object: ObjectId(2),
        keyspace: KeyspaceId(1),
        group: Bytes::new(),
        accounted: 0,
        max_seq,
        by_worker: false,
    };
    for record in [
        ManifestRecord::Keyspace {
            id: KeyspaceId(u32::MAX),
            name: "a".to_owned(),
            options: KeyspaceOptions::default(),
        },
        ManifestRecord::Table(table(highest)),
        ManifestRecord::Slices { object: ObjectId(1), level: TreeLevel(1), run: u64::MAX, parts: Vec::new() },
        ManifestRecord::Value(value(u64::MAX)),
        ManifestRecord::DropValue { object: highest },
        ManifestRecord::Flushed { generation: 1, last_seq: u64::MAX },
        ManifestRecord::Counters { next_object: u64::MAX, next_run: 1, next_keyspace: 1 },
        ManifestRecord::Settled { below: u64::MAX },
    ] {
        let mut manifest = header(1);
        manifest.extend_from_slice(&encode_edit(HEADER_LEN as u64, std::slice::from_ref(&record)));
        let read = parse_edits(&Bytes::from(manifest));
        assert!(read.unwrap_err().is_corruption(), "{record:?}");
    }
}
