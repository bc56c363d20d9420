//! One connection's reader: shakes hands, learns who the peer is, then takes what it asks.

use super::{
    Shared,
    outbox::PeerId,
    places::{Place, Standing},
};
use crate::{
    channel::{Channel, ChannelReader},
    greeting::{GreetingError, receive_hello},
    wire::{Ask, Hello, Message, Refused},
};
use std::{
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
};
use tracing::{debug, warn};

pub(super) fn run(shared: &Arc<Shared>, stream: Arc<TcpStream>, standing: &Standing) {
    let (mut reader, peer, hello, _place) = match greet(shared, stream, standing) {
        Ok(Some(greeted)) => greeted,
        Ok(None) => return,
        Err(error) => {
            debug!(%error, "a stranger");
            shared.counts.strangers.fetch_add(1, Ordering::Relaxed);
            return;
        }
    };
    let host = hello.instance;
    loop {
        let bytes = match reader.receive(None) {
            Ok(bytes) => bytes,
            Err(error) => {
                debug!(%error, peer = hello.name, "connection ended");
                if error.is_violation() {
                    shared.counts.violations.fetch_add(1, Ordering::Relaxed);
                }
                break;
            }
        };
        let said = Message::decode(&bytes);
        drop(bytes);
        match said {
            Ok(Message::Ask(ask)) => take(shared, &ask, host, peer),
            Ok(Message::Marker(marker)) => {
                shared.detect.mark(&marker, host);
                shared.due.wake();
            }
            Ok(Message::Control(json)) => shared.commands.carry_out(shared, peer, &json),
            other => {
                let what = match other {
                    Err(error) => error.to_string(),
                    Ok(_) => "it is no question".to_owned(),
                };
                warn!(address = reader.address(), peer = hello.name, what, "ended a connection");
                shared.counts.violations.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
    }
    shared.outbox.remove(peer);
}

/// What is kept of a peer for as long as it is connected.
type Greeted = (ChannelReader, PeerId, Hello, Place);

/// Shakes hands; `None`: there is no place for the peer, and it was told so.
fn greet(
    shared: &Arc<Shared>,
    stream: Arc<TcpStream>,
    standing: &Standing,
) -> Result<Option<Greeted>, GreetingError> {
    let options = &shared.options;
    let mut channel = Channel::accept(stream, &options.secret, &options.timeouts, &shared.traffic)?;
    let hello = receive_hello(&mut channel.reader, options.timeouts.handshake)?;
    if !standing.become_known() {
        return Ok(None);
    }
    let Some(place) = shared.places.take(&*shared.detect) else {
        let most = shared.places.most();
        shared.counts.crowded.fetch_add(1, Ordering::Relaxed);
        shared.crowd.tell("too many connections of members", &format!("{}, at most {most}", hello.name));
        let reason = format!("too many connections: it has {most}");
        let refused = Message::Refused(Refused { batch: 0, reason });
        channel.writer.send(&refused.encode())?;
        channel.closer.close();
        return Ok(None);
    };
    let ours = Message::Hello(Hello { name: options.name.clone(), instance: shared.instance });
    let peer = shared.outbox.add(hello.instance, channel.writer, channel.closer);
    shared.outbox.put(peer, ours.encode());
    Ok(Some((channel.reader, peer, hello, place)))
}

fn take(shared: &Shared, ask: &Ask, host: [u8; 16], peer: PeerId) {
    match shared.detect.take(ask, host) {
        Ok(()) => shared.due.wake(),
        Err(reason) => {
            let batch = ask.batch;
            shared.outbox.put(peer, Message::Refused(Refused { batch, reason }).encode());
        }
    }
}
