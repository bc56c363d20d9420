//! A peer that follows a script: what it does with each message is the test's.

use super::secret;
use crate::{
    asker::Member,
    channel::{Channel, ChannelWriter, Timeouts},
    greeting::receive_hello,
    wire::{Hello, Message},
};
use std::{
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

/// Called with each message and the way back; `false` ends the connection.
pub(super) type Script = dyn FnMut(&Message, &mut ChannelWriter) -> bool + Send;

/// A peer that follows a script, one connection at a time.
pub(super) struct Scripted {
    pub(super) member: Member,
    stop: Arc<AtomicBool>,
    current: Arc<parking_lot::Mutex<Option<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
}

impl Scripted {
    pub(super) fn start(name: &str, mut script: Box<Script>) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let member = Member { name: name.to_owned(), address: listener.local_addr().unwrap().to_string() };
        let stop = Arc::new(AtomicBool::new(false));
        let current: Arc<parking_lot::Mutex<Option<TcpStream>>> = Arc::default();
        let hello = Hello { name: name.to_owned(), instance: [1; 16] };
        let (ends, held) = (Arc::clone(&stop), Arc::clone(&current));
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                *held.lock() = stream.try_clone().ok();
                if ends.load(Ordering::Acquire) {
                    return;
                }
                let _ = follow(stream, &hello, &mut script);
                if let Some(stream) = held.lock().take() {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        });
        Scripted { member, stop, current, thread: Some(thread) }
    }
}

fn follow(stream: TcpStream, hello: &Hello, script: &mut Script) -> Result<(), Box<dyn std::error::Error>> {
    let timeouts = Timeouts::default();
    let mut channel = Channel::accept(stream, &secret(), &timeouts, &Arc::default())?;
    receive_hello(&mut channel.reader, timeouts.handshake)?;
    channel.writer.send(&Message::Hello(hello.clone()).encode())?;
    loop {
        let message = Message::decode(&channel.reader.receive(None)?)?;
        if !script(&message, &mut channel.writer) {
            return Ok(());
        }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(stream) = &*self.current.lock() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = TcpStream::connect(&self.member.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
