use super::outbox::{Bounds, Outbox};
use crate::channel::{Channel, Secret, Timeouts};
use std::{net::TcpListener, sync::Arc, thread, time::Duration};

/// Our side of a connection, and the peer's.
fn pair() -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accepting = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        Channel::accept(stream, &Secret::new([1; 32]), &Timeouts::default(), &Arc::default()).unwrap()
    });
    let theirs =
        Channel::connect(&address, &Secret::new([1; 32]), &Timeouts::default(), &Arc::default()).unwrap();
    (accepting.join().unwrap(), theirs)
}

const BOUNDS: Bounds = Bounds { all_bytes: 300_000, peer_bytes: 100_000, patience: Duration::from_secs(60) };

#[test]
fn what_waits_stays_within_its_bounds_and_arrives_in_order() {
    const MESSAGES: usize = 400;
    let outbox = Outbox::new(BOUNDS);
    thread::scope(|scope| {
        scope.spawn(|| outbox.send_all());
        let mut peers = Vec::new();
        for host in 0..5u8 {
            let (ours, mut theirs) = pair();
            outbox.add([host; 16], ours.writer, ours.closer);
            let outbox = &outbox;
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    outbox.put_for([host; 16], vec![number as u8; 10_000]);
                    // Sealing adds a little to what waits.
                    assert!(outbox.bytes() <= BOUNDS.all_bytes * 101 / 100, "{} bytes", outbox.bytes());
                }
            });
            peers.push(scope.spawn(move || {
                for number in 0..MESSAGES {
                    let message = theirs.reader.receive(Some(Duration::from_secs(60))).unwrap();
                    assert_eq!((message.len(), message[0]), (10_000, number as u8));
                }
            }));
        }
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        assert_eq!(outbox.losses(), (0, 0));
        assert_eq!(outbox.bytes(), 0);
        outbox.end();
    });
}

#[test]
fn a_message_longer_than_a_bound_goes_alone() {
    let outbox = Outbox::new(BOUNDS);
    thread::scope(|scope| {
        scope.spawn(|| outbox.send_all());
        let (ours, mut theirs) = pair();
        let peer = outbox.add([1; 16], ours.writer, ours.closer);
        outbox.put(peer, vec![1; 1 << 20]);
        let message = theirs.reader.receive(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(message.len(), 1 << 20);
        outbox.end();
    });
}

#[test]
fn whoever_holds_the_most_goes_when_there_is_no_room() {
    let bounds = Bounds { all_bytes: 200_000, peer_bytes: 150_000, patience: Duration::from_millis(1) };
    // Nobody sends: everything stays where it was put.
    let outbox = Outbox::new(bounds);
    let pairs = [pair(), pair(), pair()];
    let [a, b, c] = pairs.map(|(ours, _theirs)| outbox.add([0; 16], ours.writer, ours.closer));
    outbox.put(a, vec![0; 120_000]);
    outbox.put(b, vec![0; 70_000]);
    outbox.put(c, vec![0; 50_000]);
    assert_eq!((outbox.losses(), outbox.bytes()), ((1, 0), 120_000), "a went");
    outbox.put(b, vec![0; 90_000]);
    assert_eq!((outbox.losses(), outbox.bytes()), ((2, 1), 50_000), "b is itself to blame");
    outbox.put(a, vec![0; 10]);
    assert_eq!(outbox.losses(), (2, 2));
}
