//! Randomly damaged conversations: the client returns data or an error, within bounded memory, and never
//! panics.

use crate::script::{Script, against, handshake};
use copal_nbd::BASE_ALLOCATION;
use copal_testkit::Random;
use std::ops::Range;

fn replies() -> Script {
    let data = Script::default().u64(0).raw(&[5; 3000]).bytes;
    let hole = Script::default().u64(3000).u32(1096).bytes;
    let status = Script::default().u32(7).u32(4096).u32(3).u32(4096).u32(0).bytes;
    let read = Script::default().chunk(false, 1, 1, &data).chunk(true, 2, 1, &hole);
    read.wait().chunk(false, 5, 2, &status).chunk(true, 0, 2, &[])
}

/// A conversation damaged in its handshake, its first reply or its second. It is cut where the client would
/// wait for bytes that the server sends only after the next request.
fn damaged(round: u64, random: &mut Random) -> Script {
    let (mut opening, mut replies) = (handshake(8192), replies());
    if round > 0 && round.is_multiple_of(2) {
        let all = 0..opening.bytes.len();
        damage(&mut opening.bytes, all, random);
        opening.waits.clear();
        return opening;
    }
    if round > 0 {
        let (start, end) = (replies.waits[0], replies.bytes.len());
        if random.index(2) == 0 {
            damage(&mut replies.bytes, 0..start, random);
            replies.bytes.truncate(replies.bytes.len() - (end - start));
            replies.waits.clear();
        } else {
            damage(&mut replies.bytes, start..end, random);
        }
    }
    let shift = opening.bytes.len();
    opening.bytes.extend(&replies.bytes);
    opening.waits.extend(replies.waits.iter().map(|at| at + shift));
    opening
}

/// One to four random changes within `range`, some of which move the following bytes.
fn damage(bytes: &mut Vec<u8>, mut range: Range<usize>, random: &mut Random) {
    for _ in 0..=random.index(3) {
        if range.len() < 2 {
            return;
        }
        let at = range.start + random.index(range.len());
        match random.index(5) {
            0 => bytes[at] ^= 1 << random.index(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.index(5)],
            2 => {
                bytes.drain(at..range.end);
                range.end = at;
            }
            3 => {
                bytes.remove(at);
                range.end -= 1;
            }
            _ => {
                bytes.insert(at, random.next_u64() as u8);
                range.end += 1;
            }
        }
    }
}

#[test]
fn damaged_conversations_give_data_of_the_right_shape_or_an_error() {
    let mut random = Random::new(1);
    let mut answered = 0;
    for round in 0..3000 {
        against(&damaged(round, &mut random), |client| {
            let Ok(client) = client else { return };
            if let Ok(read) = client.start_read(0, 4096).and_then(|read| read.wait()) {
                // The bytes may be damaged, the shape may not.
                assert_eq!(read.data.len(), 4096, "round {round}");
                assert!(read.holes.iter().all(|hole| hole.start < hole.end && hole.end <= 4096));
                answered += 1;
            }
            if let Ok(map) = client.map(BASE_ALLOCATION, 0..client.size().min(8192)) {
                let mut end = 0;
                for extent in map.map_while(Result::ok) {
                    assert_eq!(extent.offset, end, "round {round}");
                    end += extent.len;
                    assert!(extent.len > 0 && end <= 8192);
                }
            }
        });
    }
    assert!(answered > 50, "only {answered} conversations succeeded: the test proves nothing");
}
