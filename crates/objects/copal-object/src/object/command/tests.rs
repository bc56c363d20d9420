//! Joining against a model: each wanted byte is read by one command.

use super::*;

const PAGE: usize = 4096;

fn limits(gap_bytes: u64, io_bytes: usize) -> JoinLimits {
    JoinLimits { gap_bytes, io_bytes, page_bytes: PAGE, walls: Vec::new() }
}

fn part(range: u32, at: u64, len: usize) -> ReadPart {
    let sums = (0..len / PAGE).map(|page| (at / PAGE as u64) as u32 + page as u32).collect();
    ReadPart { range, at, len, wanted: 0..len, target: 0, sums, object_at: at }
}

fn places(commands: &[ReadCommand]) -> Vec<(u64, usize)> {
    commands.iter().map(|command| (command.at, command.len)).collect()
}

#[test]
fn neighbours_join_up_to_the_gap_and_the_longest_command() {
    let parts =
        || vec![part(0, 8 << 20, PAGE), part(1, 0, PAGE), part(2, 68 << 10, PAGE), part(3, 140 << 10, PAGE)];
    let joined = limits(64 << 10, 1 << 20).join(parts());
    assert_eq!(places(&joined), [(0, 72 << 10), (140 << 10, PAGE), (8 << 20, PAGE)]);
    let joined = limits(2 << 20, 100 << 10).join(parts());
    assert_eq!(places(&joined), [(0, 72 << 10), (140 << 10, PAGE), (8 << 20, PAGE)]);
    let joined = limits(0, 1 << 20).join(vec![part(0, 0, PAGE), part(1, PAGE as u64, PAGE)]);
    assert_eq!(places(&joined), [(0, 2 * PAGE)], "neighbours without a gap");
}

#[test]
fn a_gap_with_a_raw_extent_is_not_read_through() {
    let mut limits = limits(64 << 10, 1 << 20);
    limits.walls.push(8 << 10..12 << 10);
    let joined = limits.join(vec![part(0, 0, PAGE), part(1, 12 << 10, PAGE), part(2, 24 << 10, PAGE)]);
    assert_eq!(places(&joined), [(0, PAGE), (12 << 10, 16 << 10)]);
}

/// Symptom: a part that begins before the last command got bytes from before the command's buffer.
/// Cause: an earlier part was cut at the longest command, so the last command began inside of it.
/// Fix: a part is placed from the last command on that begins at or before it.
#[test]
fn a_part_that_begins_before_the_last_command_is_cut_like_the_one_before() {
    let joined = limits(0, 4 * PAGE).join(vec![
        part(0, 0, 4 * PAGE),
        part(1, 8192, 4 * PAGE),
        part(2, 8192, 4 * PAGE),
    ]);
    assert_eq!(places(&joined), [(0, 4 * PAGE), (4 * PAGE as u64, 2 * PAGE)]);
    assert!(joined.iter().all(|command| command.parts.iter().all(|part| part.at >= command.at)));
    assert_eq!(joined[1].parts.len(), 2);
}

#[test]
fn every_byte_of_random_parts_is_read_once_and_by_a_command_that_holds_it() {
    let mut random = copal_testkit::Random::new(3);
    for round in 0..500 {
        let limits = limits(random.below(5) * 4096, PAGE * (1 + random.below(16) as usize));
        let parts: Vec<ReadPart> = (0..1 + random.below(20) as u32)
            .map(|range| part(range, random.below(64) * 4096, PAGE * (1 + random.below(30) as usize)))
            .collect();
        let commands = limits.join(parts.clone());
        let mut read = [0u8; 100];
        for command in &commands {
            assert!(command.len <= limits.io_bytes && command.len > 0, "round {round}");
            let pages = command.at / 4096..command.end() / 4096;
            pages.for_each(|page| read[page as usize] += 1);
            for part in &command.parts {
                assert!(part.at >= command.at && part.end() <= command.end(), "round {round}");
                let sums: Vec<u32> =
                    (0..part.len / PAGE).map(|i| (part.at / 4096) as u32 + i as u32).collect();
                assert_eq!((&part.sums, part.object_at), (&sums, part.at), "round {round}");
            }
        }
        assert!(read.iter().all(|times| *times <= 1), "round {round}: {read:?}");
        for whole in &parts {
            let mut pieces: Vec<&ReadPart> =
                commands.iter().flat_map(|c| &c.parts).filter(|part| part.range == whole.range).collect();
            pieces.sort_by_key(|part| part.at);
            let mut at = 0;
            for piece in pieces {
                assert_eq!((piece.at, piece.target), (whole.at + at as u64, at), "round {round}");
                assert_eq!(piece.wanted, 0..piece.len);
                at += piece.len;
            }
            assert_eq!(at, whole.len, "round {round}");
        }
    }
}
