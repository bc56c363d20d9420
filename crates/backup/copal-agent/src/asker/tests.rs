use super::{
    split::{ASK_IDS, IdSplit, SplitEntry},
    spool,
};

fn entry(partition: u32, position: u32) -> SplitEntry {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&position.to_be_bytes());
    SplitEntry { partition, position, id }
}

#[test]
fn sorting_holds_no_more_than_its_bound() {
    let mut split = IdSplit::new(240_000);
    let mut full_at = Vec::new();
    for position in 0..25_000 {
        if split.push(entry(position % 3, position)) {
            full_at.push(position + 1);
            assert!(split.held_bytes() <= 240_000, "{} bytes", split.held_bytes());
            split.clear();
        }
    }
    assert_eq!(full_at, [10_000, 20_000]);
    assert!(split.held_bytes() <= 240_000);
}

#[test]
fn batches_are_of_one_partition_in_order_and_not_too_long() {
    let mut split = IdSplit::new(1 << 20);
    let count = ASK_IDS as u32 * 5 + 7;
    for position in 0..count {
        split.push(entry(position % 2, position));
    }
    let batches: Vec<&[SplitEntry]> = split.batches().collect();
    assert_eq!(batches.len(), 6);
    for batch in &batches {
        assert!(batch.len() <= ASK_IDS);
        assert!(batch.iter().all(|entry| entry.partition == batch[0].partition));
        assert!(batch.is_sorted_by_key(|entry| entry.position));
    }
    assert_eq!(batches.concat().len(), count as usize);
}

#[test]
fn a_spool_gives_batches_back() {
    let (spool, mut writer) = spool::create(&std::env::temp_dir()).unwrap();
    let batches: Vec<Vec<SplitEntry>> =
        [3, 1, 4000].map(|len| (0..len).map(|position| entry(1, position * 5)).collect()).into();
    let at: Vec<u64> = batches.iter().map(|batch| writer.append(batch).unwrap()).collect();
    writer.flush().unwrap();
    for (batch, at) in batches.iter().zip(at) {
        let ids: Vec<_> = batch.iter().map(|entry| entry.id).collect();
        let positions: Vec<_> = batch.iter().map(|entry| entry.position).collect();
        assert!(spool.ids(at, batch.len()).unwrap() == ids);
        assert!(spool.positions(at, batch.len()).unwrap() == positions);
    }
    assert!(spool.ids(1 << 30, 1).is_err());
}
