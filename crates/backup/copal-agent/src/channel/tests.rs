use super::*;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

fn quick() -> Timeouts {
    Timeouts { message: Duration::from_millis(300), ..Timeouts::default() }
}

fn pair() -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let secret = Secret::new([7; 32]);
    let theirs = secret.clone();
    let accepted = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        Channel::accept(stream, &theirs, &Timeouts::default(), &Arc::default()).unwrap()
    });
    let connected = Channel::connect(&address, &secret, &quick(), &Arc::default()).unwrap();
    (connected, accepted.join().unwrap())
}

#[test]
fn messages_of_every_size_arrive_as_they_were_sent() {
    let (a, mut b) = pair();
    let Channel { reader: mut a_reader, mut writer, .. } = a;
    let edge = FRAME_BYTES - 16 - 4;
    let sizes = [0, 1, edge - 1, edge, edge + 1, 2 * FRAME_BYTES, 70_000, MESSAGE_BYTES];
    let messages: Vec<Vec<u8>> =
        sizes.iter().map(|&len| (0..len).map(|at| (at * 7 + len) as u8).collect()).collect();
    let sent = messages.clone();
    let sender = thread::spawn(move || {
        sent.iter().for_each(|message| writer.send(message).unwrap());
        writer
    });
    for message in &messages {
        assert!(b.reader.receive(None).unwrap() == *message);
    }
    sender.join().unwrap();
    b.writer.send(b"and back").unwrap();
    assert_eq!(a_reader.receive(None).unwrap(), b"and back");
}

#[test]
fn bytes_are_counted_on_both_sides() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sent, received): (Arc<Traffic>, Arc<Traffic>) = Default::default();
    let counted = Arc::clone(&received);
    let reader = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut channel =
            Channel::accept(stream, &Secret::new([1; 32]), &Timeouts::default(), &counted).unwrap();
        channel.reader.receive(None).unwrap().len()
    });
    let mut channel = Channel::connect(&address, &Secret::new([1; 32]), &quick(), &sent).unwrap();
    channel.writer.send(&[0; 40_000]).unwrap();
    assert_eq!(reader.join().unwrap(), 40_000);
    assert_eq!(sent.sent_bytes(), received.received_bytes());
    // Three frames, each with a length and a tag, and the length of the message.
    assert_eq!(sent.sent_bytes(), 40_000 + 4 + 3 * 18);
}

#[test]
fn who_lacks_the_secret_is_told_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accepting = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        Channel::accept(stream, &Secret::new([1; 32]), &Timeouts::default(), &Arc::default()).map(drop)
    });
    let mut stranger = TcpStream::connect(&address).unwrap();
    stranger.write_all(&[0x55; 48]).unwrap();
    let mut heard = Vec::new();
    let _ = stranger.read_to_end(&mut heard);
    assert!(heard.is_empty(), "{} bytes for a stranger", heard.len());
    let refused = accepting.join().unwrap().unwrap_err();
    assert!(matches!(refused, ChannelError::Secret { .. }), "{refused}");
}

#[test]
fn other_secrets_do_not_connect_on_either_side() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accepting = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        Channel::accept(stream, &Secret::new([1; 32]), &Timeouts::default(), &Arc::default()).map(drop)
    });
    let error =
        Channel::connect(&address, &Secret::new([2; 32]), &Timeouts::default(), &Arc::default()).unwrap_err();
    assert!(matches!(error, ChannelError::Secret { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    assert!(accepting.join().unwrap().is_err());
}

#[test]
fn a_handshake_that_trickles_is_ended() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    slow.write_all(&[1; 3]).unwrap();
    let timeouts = Timeouts { handshake: Duration::from_millis(300), ..Timeouts::default() };
    let (stream, _) = listener.accept().unwrap();
    let error = Channel::accept(stream, &Secret::new([1; 32]), &timeouts, &Arc::default()).unwrap_err();
    assert!(matches!(error, ChannelError::TimedOut { .. }), "{error}");
}

#[test]
fn an_address_where_nobody_is_gives_an_error_that_names_it() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = Channel::connect(&unused, &Secret::new([1; 32]), &quick(), &Arc::default()).unwrap_err();
    assert!(matches!(error, ChannelError::Connect { .. }));
    assert!(error.to_string().contains(&unused), "{error}");
}

#[test]
fn a_gigabyte_is_refused_when_it_is_announced() {
    let (mut a, mut b) = pair();
    a.writer.announce(1 << 30).unwrap();
    let error = b.reader.receive(None).unwrap_err();
    assert!(matches!(error, ChannelError::TooLong { len, .. } if len == 1 << 30), "{error}");
    assert!(error.is_violation());
}

#[test]
fn a_message_that_begins_has_to_end() {
    let (mut a, b) = pair();
    let Channel { mut writer, .. } = b;
    writer.announce(100).unwrap();
    let error = a.reader.receive(None).unwrap_err();
    assert!(matches!(error, ChannelError::TimedOut { .. }), "{error}");
}

/// Two ends of the frames of one direction, without a network.
fn frames(messages: &[&[u8]]) -> (frame::Opener, Vec<Vec<u8>>) {
    let pattern = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
    let builder = || snow::Builder::new(pattern.parse().unwrap()).psk(0, &[3; 32]).unwrap();
    let (mut a, mut b) = (builder().build_initiator().unwrap(), builder().build_responder().unwrap());
    let mut wire = [0; 48];
    a.write_message(&[], &mut wire).unwrap();
    b.read_message(&wire, &mut []).unwrap();
    b.write_message(&[], &mut wire).unwrap();
    a.read_message(&wire, &mut []).unwrap();
    let mut sealer = frame::Sealer::new(Arc::new(a.into_stateless_transport_mode().unwrap()));
    let sealed = messages.iter().map(|message| {
        let mut out = Vec::new();
        sealer.seal(message, &mut out);
        out.split_off(frame::LENGTH_BYTES)
    });
    let sealed = sealed.collect();
    let keys = Arc::new(b.into_stateless_transport_mode().unwrap());
    (frame::Opener::new(keys), sealed)
}

#[test]
fn frames_that_are_turned_twice_or_left_out_do_not_open() {
    let mut plain = [0; FRAME_BYTES];
    let mut open = |opener: &mut frame::Opener, frame: &[u8]| {
        let mut message = frame::Partial::default();
        opener.open(frame, &mut plain, &mut message).map(|()| message.bytes)
    };
    let (mut opener, sealed) = frames(&[b"one", b"two", b"three"]);
    for bit in 0..sealed[0].len() * 8 {
        let mut turned = sealed[0].clone();
        turned[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(open(&mut opener, &turned), Err(frame::Refusal::Seal));
    }
    assert_eq!(open(&mut opener, &sealed[0]).unwrap(), b"one");
    assert_eq!(open(&mut opener, &sealed[0]), Err(frame::Refusal::Seal), "a second time");
    assert_eq!(open(&mut opener, &sealed[2]), Err(frame::Refusal::Seal), "one is missing");
    assert_eq!(open(&mut opener, &sealed[1]).unwrap(), b"two");
}

#[test]
fn the_secret_is_not_printed() {
    let printed = format!("{:?}", Secret::new([0xab; 32]));
    assert_eq!(printed, "Secret(..)");
}
