//! A scripted peer: the test defines its reaction to each message. Its connections go through a relay, so
//! that the test can end them.

use super::{BatchDetector, FleetMember, Server, serve_with, server_options};
use crate::fleet::messages::{AnswerMessage, AskMessage, Instance, MarkerMessage};
use parking_lot::Mutex;
use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

/// A message that a scripted peer receives.
pub(super) enum PeerMessage<'a> {
    Ask(&'a AskMessage),
    Marker(&'a MarkerMessage),
}

/// Called with each message and the answers to its sender; `false` ends all connections.
pub(super) type Script = dyn FnMut(PeerMessage<'_>, &mut Vec<AnswerMessage>) -> bool + Send;

/// A scripted peer.
pub(super) struct Scripted {
    pub(super) member: FleetMember,
    relay: Arc<Relay>,
    _server: Server,
}

struct Following {
    script: Mutex<Box<Script>>,
    answers: Mutex<Vec<(Instance, AnswerMessage)>>,
    relay: Arc<Relay>,
}

impl Following {
    fn handle(&self, message: PeerMessage<'_>, host: Instance) {
        let mut answers = Vec::new();
        if !(self.script.lock())(message, &mut answers) {
            self.relay.cut();
        }
        self.answers.lock().extend(answers.into_iter().map(|answers| (host, answers)));
    }
}

impl BatchDetector for Following {
    fn take(&self, ask: &AskMessage, host: Instance) -> Result<(), String> {
        self.handle(PeerMessage::Ask(ask), host);
        Ok(())
    }

    fn mark(&self, marker: &MarkerMessage, host: Instance) {
        self.handle(PeerMessage::Marker(marker), host);
    }

    fn due(&self, _: Instant) -> Option<u32> {
        (!self.answers.lock().is_empty()).then_some(0)
    }

    fn compare(&self, _: u32, reply: &mut dyn FnMut(Instance, AnswerMessage)) -> io::Result<()> {
        let answers = std::mem::take(&mut *self.answers.lock());
        answers.into_iter().for_each(|(host, answers)| reply(host, answers));
        Ok(())
    }
}

impl Scripted {
    pub(super) fn start(name: &str, script: Box<Script>) -> Scripted {
        let relay = Arc::new(Relay::default());
        let answers = Mutex::default();
        let following = Following { script: Mutex::new(script), answers, relay: Arc::clone(&relay) };
        let server = serve_with(server_options(name), Arc::new(following));
        let address = relay.start(server.address().to_string());
        Scripted { member: FleetMember { name: name.to_owned(), address }, relay, _server: server }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.relay.stop.store(true, Ordering::Release);
        self.relay.cut();
        let _ = TcpStream::connect(&self.member.address);
        let threads = std::mem::take(&mut *self.relay.threads.lock());
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Forwards bytes in both directions until it is cut.
#[derive(Default)]
struct Relay {
    streams: Mutex<Vec<TcpStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stop: AtomicBool,
}

impl Relay {
    fn start(self: &Arc<Relay>, to: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let relay = Arc::clone(self);
        let accept = std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if relay.stop.load(Ordering::Acquire) {
                    return;
                }
                let far = TcpStream::connect(&to).unwrap();
                for (from, into) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                    let pass = std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut into);
                        let _ = into.shutdown(Shutdown::Both);
                    });
                    relay.threads.lock().push(pass);
                }
                relay.streams.lock().extend([near, far]);
            }
        });
        self.threads.lock().push(accept);
        address
    }

    fn cut(&self) {
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
