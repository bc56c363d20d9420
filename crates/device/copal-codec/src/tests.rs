//! Round trips, refusals, and the example of docs/formats/envelope.md.

use super::*;
use copal_testkit::Random;

const EXAMPLE: Format =
    Format { magic: *b"COPALEXA", name: "example", oldest: 1, version: 1, known_flags: 0b1 };

fn example_bytes() -> Vec<u8> {
    let document = include_str!("../../../../docs/formats/envelope.md");
    let block = document.split("```hex\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    block
        .lines()
        .flat_map(|line| line.split_whitespace().skip(1))
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

fn sealed(body: &[u8], may_ignore: u32, must_understand: u32) -> Vec<u8> {
    let mut bytes = vec![0; ENVELOPE_LEN];
    bytes.extend_from_slice(body);
    Envelope::seal(&EXAMPLE, may_ignore, must_understand, &mut bytes);
    bytes
}

#[test]
fn crc32c_has_the_check_value_of_the_standard_and_continues() {
    assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(crc32c(0, b"12345"), b"6789"), 0xe306_9283);
    assert_eq!(crc32c_joined(crc32c(0, b"12345"), crc32c(0, b"6789"), 4), 0xe306_9283);
}

/// The definition, bit by bit.
fn crc32c_by_definition(seed: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!seed, |state, &byte| {
        (0..8).fold(state ^ u32::from(byte), |state, _| {
            (state >> 1) ^ (0x82f6_3b78 & (state & 1).wrapping_neg())
        })
    })
}

/// The library computes short, long and unaligned input in different ways.
#[test]
fn crc32c_is_the_same_at_every_length_and_place() {
    let bytes: Vec<u8> = (0..9000u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let lengths = (0..1200).chain([4095, 4096, 4097, 8191]);
    for len in lengths {
        let (seed, from) = (len as u32 * 77, len % 67);
        let part = &bytes[from..from + len];
        let sum = crc32c_by_definition(seed, part);
        assert_eq!(crc32c(seed, part), sum, "{len} bytes from {from}");
        let (a, b) = part.split_at(len / 3);
        assert_eq!(crc32c(crc32c(seed, a), b), sum);
        assert_eq!(crc32c_joined(crc32c(seed, a), crc32c(0, b), b.len()), sum);
    }
}

#[test]
fn the_example_of_the_document_is_written_and_read() {
    let golden = example_bytes();
    assert_eq!(sealed(b"copal body", 2, 1), golden);
    let (envelope, body) = Envelope::open(&EXAMPLE, &golden).unwrap();
    assert_eq!(envelope, Envelope { version: 1, may_ignore: 2, must_understand: 1, body_len: 10 });
    assert_eq!(body, b"copal body");
}

#[test]
fn every_flipped_bit_of_an_envelope_is_refused() {
    let golden = example_bytes();
    for bit in 0..golden.len() * 8 {
        let mut bytes = golden.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = Envelope::open(&EXAMPLE, &bytes).unwrap_err();
        assert!(error.is_damage(), "bit {bit}: {error}");
    }
}

#[test]
fn every_shortened_envelope_is_refused() {
    let golden = example_bytes();
    for len in 0..golden.len() {
        let error = Envelope::open(&EXAMPLE, &golden[..len]).unwrap_err();
        assert!(matches!(error, EnvelopeError::Truncated { .. }), "{len} bytes: {error}");
    }
}

#[test]
fn intact_bytes_of_another_release_name_both_versions() {
    let newer = Format { version: 7, ..EXAMPLE };
    let mut bytes = vec![0; ENVELOPE_LEN];
    Envelope::seal(&newer, 0, 0, &mut bytes);
    let error = Envelope::open(&EXAMPLE, &bytes).unwrap_err();
    assert_eq!(error, EnvelopeError::Version { name: "example", found: 7, oldest: 1, newest: 1 });
    assert!(!error.is_damage());
    let development = Format { version: 0, oldest: 0, ..EXAMPLE };
    Envelope::seal(&development, 0, 0, &mut bytes);
    assert!(matches!(Envelope::open(&EXAMPLE, &bytes), Err(EnvelopeError::Version { found: 0, .. })));
}

#[test]
fn unknown_features_are_refused_only_when_they_must_be_understood() {
    assert!(Envelope::open(&EXAMPLE, &sealed(b"x", u32::MAX, 1)).is_ok());
    let error = Envelope::open(&EXAMPLE, &sealed(b"x", 0, 0b101)).unwrap_err();
    assert_eq!(error, EnvelopeError::Flags { name: "example", unknown: 0b100 });
}

#[test]
fn reserved_fields_are_refused_when_set_with_a_right_checksum() {
    for at in [10, 11, 28, 31] {
        let mut bytes = sealed(b"x", 0, 0);
        bytes[at] = 1;
        bytes[24..28].fill(0);
        let sum = crc32c(0, &bytes);
        bytes[24..28].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Envelope::open(&EXAMPLE, &bytes), Err(EnvelopeError::Reserved { name: "example" }));
    }
}

#[test]
fn padding_is_allowed_and_checked_apart() {
    let mut bytes = sealed(b"x", 0, 0);
    bytes.resize(4096, 0);
    let (envelope, body) = Envelope::open(&EXAMPLE, &bytes).unwrap();
    assert_eq!(body, b"x");
    assert_eq!(envelope.check_padding(&EXAMPLE, &bytes), Ok(()));
    bytes[100] = 1;
    assert_eq!(envelope.check_padding(&EXAMPLE, &bytes), Err(NotZeroPadding { name: "example", at: 100 }));
}

#[test]
fn arbitrary_bytes_never_panic_in_the_envelope() {
    let mut random = Random::new(1);
    for _ in 0..20_000 {
        let mut bytes = random.bytes_up_to(80);
        if random.next_u64().is_multiple_of(2) && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(&EXAMPLE.magic);
        }
        assert!(Envelope::open(&EXAMPLE, &bytes).is_err());
    }
}

#[test]
fn varints_round_trip_in_their_stated_length() {
    let mut random = Random::new(2);
    let edges = (0..64).flat_map(|bit| [1u64 << bit, (1u64 << bit) - 1]).chain([u64::MAX]);
    let numbers: Vec<u64> = edges.chain((0..10_000).map(|_| random.any_magnitude())).collect();
    for value in numbers {
        let (bytes, used) = varint::encode(value);
        assert_eq!(used, varint::len(value), "{value}");
        assert_eq!(varint::decode(&bytes[..used]), varint::DecodedVarint::Value(value, used));
        for cut in 0..used {
            assert_eq!(varint::decode(&bytes[..cut]), varint::DecodedVarint::Truncated);
        }
    }
    assert_eq!(varint::encode(300), ([0xac, 2, 0, 0, 0, 0, 0, 0, 0, 0], 2));
}

#[test]
fn a_varint_has_one_encoding_only() {
    let refused: [&[u8]; 4] = [
        &[0x80, 0x00],
        &[0xff, 0x00],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
    ];
    for bytes in refused {
        assert_eq!(varint::decode(bytes), varint::DecodedVarint::Invalid, "{bytes:02x?}");
    }
    let mut random = Random::new(3);
    for _ in 0..50_000 {
        let bytes = random.bytes_up_to(11);
        if let varint::DecodedVarint::Value(value, used) = varint::decode(&bytes) {
            let (again, len) = varint::encode(value);
            assert_eq!(&again[..len], &bytes[..used]);
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Item {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    U128(u128),
    Varint(u64),
    Prefixed(Vec<u8>),
    Zeros(usize),
}

impl Item {
    fn any(random: &mut Random) -> Item {
        let n = random.any_magnitude();
        match random.next_u64() % 8 {
            0 => Item::U8(n as u8),
            1 => Item::U16(n as u16),
            2 => Item::U32(n as u32),
            3 => Item::U64(n),
            4 => Item::U128(u128::from(n) << 64 | u128::from(random.next_u64())),
            5 => Item::Varint(n),
            6 => Item::Prefixed(random.bytes_up_to(200)),
            _ => Item::Zeros((n % 130) as usize),
        }
    }

    fn put(&self, out: &mut impl Put) {
        match self {
            Item::U8(n) => out.put_u8(*n),
            Item::U16(n) => out.put_u16(*n),
            Item::U32(n) => out.put_u32(*n),
            Item::U64(n) => out.put_u64(*n),
            Item::U128(n) => out.put_u128(*n),
            Item::Varint(n) => out.put_varint(*n),
            Item::Prefixed(bytes) => out.put_prefixed(bytes),
            Item::Zeros(len) => out.put_zeros(*len),
        }
    }

    /// Reads an item of the same kind.
    fn read(&self, input: &mut Reader<'_>) -> Result<Item, DecodeError> {
        Ok(match self {
            Item::U8(_) => Item::U8(input.u8()?),
            Item::U16(_) => Item::U16(input.u16()?),
            Item::U32(_) => Item::U32(input.u32()?),
            Item::U64(_) => Item::U64(input.u64()?),
            Item::U128(_) => Item::U128(input.u128()?),
            Item::Varint(_) => Item::Varint(input.varint()?),
            Item::Prefixed(_) => Item::Prefixed(input.prefixed(200)?.to_vec()),
            Item::Zeros(len) => input.zeros(*len).map(|()| Item::Zeros(*len))?,
        })
    }
}

#[test]
fn put_items_are_read_and_every_cut_is_an_error() {
    let mut random = Random::new(4);
    for _ in 0..500 {
        let items: Vec<Item> = (0..random.next_u64() % 8).map(|_| Item::any(&mut random)).collect();
        let mut bytes = Vec::new();
        items.iter().for_each(|item| item.put(&mut bytes));

        let mut room = vec![0xee; bytes.len()];
        let mut fixed = SliceWriter::new(&mut room);
        items.iter().for_each(|item| item.put(&mut fixed));
        assert_eq!(fixed.finish(), Ok(bytes.len()));
        assert_eq!(room, bytes);

        let mut input = Reader::new(&bytes);
        for item in &items {
            assert_eq!(item.read(&mut input).as_ref(), Ok(item));
        }
        assert_eq!(input.finish(), Ok(()));

        for cut in 0..bytes.len() {
            let mut input = Reader::new(&bytes[..cut]);
            let failed = items.iter().any(|item| item.read(&mut input).is_err());
            assert!(failed, "{cut} of {} bytes were read as a whole", bytes.len());
        }
    }
}

#[test]
fn arbitrary_bytes_never_panic_in_the_reader_and_errors_do_not_move_it() {
    let mut random = Random::new(5);
    for _ in 0..20_000 {
        let bytes = random.bytes_up_to(64);
        let mut input = Reader::new(&bytes);
        loop {
            let before = input.position();
            let kind = Item::any(&mut random);
            if kind.read(&mut input).is_err() {
                assert_eq!(input.position(), before, "{kind:?}");
                break;
            }
            if input.is_empty() {
                break;
            }
        }
    }
}

#[test]
fn lengths_are_bounded_before_they_are_used() {
    let mut bytes = Vec::new();
    bytes.put_varint(u64::MAX);
    let mut input = Reader::new(&bytes);
    assert_eq!(input.prefixed(1000), Err(DecodeError::TooLong { at: 0, len: u64::MAX, max: 1000 }));
    assert_eq!(input.bytes(usize::MAX), Err(DecodeError::Truncated { at: 0, wanted: usize::MAX, left: 10 }));
}

#[test]
fn reserved_and_trailing_bytes_are_refused() {
    let mut input = Reader::new(&[0, 0, 3, 0]);
    assert_eq!(input.zeros(4), Err(DecodeError::NotZero { at: 0 }));
    assert_eq!(input.zeros(2), Ok(()));
    assert_eq!(input.clone().finish(), Err(DecodeError::Trailing { at: 2, left: 2 }));
    assert_eq!(input.rest(), &[3, 0]);
    assert_eq!(input.finish(), Ok(()));
}

#[test]
fn a_writer_out_of_room_reports_how_much_it_wanted() {
    let mut room = [0u8; 5];
    let mut out = SliceWriter::new(&mut room);
    out.put_u32(7);
    assert_eq!(out.remaining(), 1);
    out.put_u32(8);
    assert_eq!(out.remaining(), 0);
    out.put_u8(9);
    assert_eq!(out.finish(), Err(WriterOverflow { wanted: 9, room: 5 }));
    assert_eq!(room, [7, 0, 0, 0, 0]);
}
