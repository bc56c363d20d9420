use super::*;
use proptest::{collection::vec, prelude::*};

fn message() -> impl Strategy<Value = Message> {
    let job = any::<[u8; 16]>();
    let partition = (0..=PARTITION_BITS).prop_flat_map(|bits| (Just(bits), 0..1u32 << bits));
    prop_oneof![
        ("[a-z0-9é-]{0,30}", any::<[u8; 16]>())
            .prop_map(|(name, instance)| Message::Hello(Hello { name, instance })),
        (job, any::<u32>(), any::<u32>(), any::<u64>(), partition, vec(any::<[u8; 16]>(), 0..40)).prop_map(
            |(job, round, vm, batch, (partition_bits, partition), ids)| {
                Message::Ask(Ask { job, round, vm, batch, partition_bits, partition, ids })
            }
        ),
        (job, any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
            |(job, round, participants, patience_ms)| {
                Message::Marker(Marker { job, round, participants, patience_ms })
            }
        ),
        (job, any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>(), vec(any::<u32>(), 0..40)).prop_map(
            |(job, round, batch, partition, generation, codes)| {
                Message::Answers(Answers { job, round, batch, partition, generation, codes })
            }
        ),
        (any::<u64>(), ".{0,100}").prop_map(|(batch, reason)| Message::Refused(Refused { batch, reason })),
        vec(any::<u8>(), 0..300).prop_map(Message::Control),
        vec(any::<u8>(), 0..300).prop_map(Message::ControlReply),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(message in message()) {
        prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
    }

    #[test]
    fn what_is_cut_is_refused(message in message(), cut in any::<prop::sample::Index>()) {
        let bytes = message.encode();
        prop_assert!(Message::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    /// A turned bit gives another message or none, never the same one and never a second form of one.
    #[test]
    fn what_is_turned_is_another(message in message(), at in any::<prop::sample::Index>()) {
        let mut bytes = message.encode();
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = Message::decode(&bytes) {
            prop_assert!(other != message);
            prop_assert_eq!(other.encode(), bytes);
        }
    }

    #[test]
    fn what_has_more_is_refused(message in message(), more in vec(any::<u8>(), 1..4)) {
        let bytes = [message.encode(), more].concat();
        prop_assert!(Message::decode(&bytes).is_err());
    }
}

#[test]
fn the_largest_messages_fit() {
    let ask = Message::Ask(Ask {
        job: [1; 16],
        round: 1,
        vm: 2,
        batch: 3,
        partition_bits: 0,
        partition: 0,
        ids: vec![[9; 16]; BATCH_IDS],
    });
    let control = Message::Control(vec![b' '; JSON_BYTES]);
    for message in [ask, control] {
        let bytes = message.encode();
        assert!(bytes.len() <= crate::channel::MESSAGE_BYTES);
        assert!(Message::decode(&bytes) == Ok(message));
    }
}

#[test]
fn a_count_that_is_too_large_is_refused_before_anything_is_made_of_it() {
    let mut bytes = Message::Ask(Ask {
        job: [1; 16],
        round: 1,
        vm: 2,
        batch: 3,
        partition_bits: 0,
        partition: 0,
        ids: Vec::new(),
    })
    .encode();
    bytes.pop();
    copal_codec::Put::put_varint(&mut bytes, BATCH_IDS as u64 + 1);
    let error = Message::decode(&bytes).unwrap_err();
    assert!(error.to_string().contains("is 4097, at most 4096 is allowed"), "{error}");
}

#[test]
fn a_partition_outside_of_its_bits_is_refused() {
    let ask = |partition_bits, partition| {
        Message::Ask(Ask {
            job: [1; 16],
            round: 1,
            vm: 2,
            batch: 3,
            partition_bits,
            partition,
            ids: Vec::new(),
        })
        .encode()
    };
    assert!(Message::decode(&ask(3, 7)).is_ok());
    assert!(Message::decode(&ask(3, 8)).is_err());
    assert!(Message::decode(&ask(PARTITION_BITS + 1, 0)).is_err());
    assert!(Message::decode(&ask(255, 0)).is_err());
}

#[test]
fn another_version_is_named() {
    let hello = Hello { name: "h1".to_owned(), instance: [0; 16] };
    let mut bytes = Message::Hello(hello).encode();
    bytes[1] = 9;
    let error = Message::decode(&bytes).unwrap_err();
    assert_eq!(error, WireError::Version { found: 9 });
    assert!(error.to_string().contains("version 9"), "{error}");
}

#[test]
fn a_long_reason_is_cut_between_letters() {
    let refused = Refused { batch: 1, reason: "é".repeat(REASON_BYTES) };
    let Ok(Message::Refused(read)) = Message::decode(&Message::Refused(refused).encode()) else {
        panic!("a refusal is read");
    };
    assert_eq!(read.reason.len(), REASON_BYTES);
}

/// The examples of docs/formats/agent-message.md.
#[test]
fn the_bytes_are_those_of_the_page() {
    let page = include_str!("../../../../../docs/formats/agent-message.md");
    let blocks: Vec<Vec<u8>> = page
        .split("```hex\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .map(|block| {
            block
                .lines()
                .flat_map(|line| line.split_whitespace().skip(1))
                .map(|byte| u8::from_str_radix(byte, 16).unwrap())
                .collect()
        })
        .collect();
    let job = *b"job number seven";
    let messages = [
        Message::Hello(Hello { name: "h1".to_owned(), instance: *b"instance of h1.." }),
        Message::Ask(Ask {
            job,
            round: 2,
            vm: 3,
            batch: (5 << 32) | 6,
            partition_bits: 4,
            partition: 11,
            ids: vec![*b"\xb0irst of the ids", *b"\xbfecond of the id"],
        }),
        Message::Marker(Marker { job, round: 2, participants: 100, patience_ms: 90_000 }),
        Message::Answers(Answers {
            job,
            round: 2,
            batch: (5 << 32) | 6,
            partition: 11,
            generation: 40,
            codes: vec![77, u32::MAX],
        }),
        Message::Refused(Refused { batch: (5 << 32) | 6, reason: "no space".to_owned() }),
        Message::Control(b"{\"status\":{}}".to_vec()),
        Message::ControlReply(b"{\"rounds\":2}".to_vec()),
    ];
    let hex = |bytes: &[u8]| {
        let lines = bytes.chunks(16).enumerate().map(|(line, bytes)| {
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{:04x} {}\n", line * 16, bytes.join(" "))
        });
        lines.collect::<String>()
    };
    let written: Vec<Vec<u8>> = messages.iter().map(Message::encode).collect();
    let shown: Vec<String> = written.iter().map(|bytes| hex(bytes)).collect();
    assert!(blocks == written, "the page should have:\n{}", shown.join("\n"));
    for (message, bytes) in messages.into_iter().zip(&written) {
        assert_eq!(Message::decode(bytes), Ok(message));
    }
}
