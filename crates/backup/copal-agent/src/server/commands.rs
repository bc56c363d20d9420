//! Commands of control messages: each on a thread of its own, so that one that takes an hour holds up
//! nothing.

use super::{Shared, outbox::PeerId};
use crate::{
    control::Control,
    wire::{JSON_BYTES, Message},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{sync::Arc, thread::JoinHandle};

/// Commands under way.
pub(super) struct Commands {
    control: Arc<dyn Control>,
    most: usize,
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Commands {
    pub(super) fn new(control: Arc<dyn Control>, most: usize) -> Commands {
        Commands { control, most, running: Mutex::default() }
    }

    /// Begins a command; its reply goes to `peer` when it is there.
    pub(super) fn carry_out(&self, shared: &Arc<Shared>, peer: PeerId, json: &[u8]) {
        let refuse = |why: String| reply(shared, peer, &json!({ "error": why }));
        let request: Value = match serde_json::from_slice(json) {
            Ok(request) => request,
            Err(error) => return refuse(format!("the command is not valid JSON: {error}")),
        };
        let mut running = self.running.lock();
        for done in running.extract_if(.., |thread| thread.is_finished()) {
            let _ = done.join();
        }
        if running.len() >= self.most {
            return refuse(format!("{} commands are under way: try again later", running.len()));
        }
        let control = Arc::clone(&self.control);
        let for_thread = Arc::clone(shared);
        let spawned = std::thread::Builder::new()
            .name("agent-command".to_owned())
            .spawn(move || reply(&for_thread, peer, &control.handle(request)));
        match spawned {
            Ok(thread) => running.push(thread),
            Err(error) => refuse(format!("no thread for the command: {error}")),
        }
    }

    /// Waits for all of them. None begins any more: the readers are gone.
    pub(super) fn join(&self) {
        for thread in self.running.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

fn reply(shared: &Shared, peer: PeerId, value: &Value) {
    let mut json = value.to_string().into_bytes();
    if json.len() > JSON_BYTES {
        let error = format!("the reply has {} bytes, at most {JSON_BYTES} are sent", json.len());
        json = json!({ "error": error }).to_string().into_bytes();
    }
    shared.outbox.put(peer, Message::ControlReply(json).encode());
}
