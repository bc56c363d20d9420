//! A detector in memory: its answer is a function of the id, and a partition is due when all markers have
//! arrived.

use super::known;
use crate::fleet::messages::{AnswerMessage, AskMessage, MarkerMessage};
use crate::server::BatchDetector;
use copal_backup::peers::ShortId;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Instant,
};

type Host = [u8; 16];

#[derive(Default)]
struct State {
    asks: BTreeMap<u32, Vec<(Host, AskMessage)>>,
    marks: BTreeMap<u32, BTreeSet<Host>>,
    whole: BTreeSet<u32>,
    taken: usize,
    marked: usize,
}

/// Deviations of a detector.
#[derive(Clone, Copy, Default)]
pub(super) struct Manner {
    /// Refuses every batch.
    pub(super) unwilling: bool,
    /// Accepts batches and never compares them.
    pub(super) silent: bool,
    pub(super) generation: u64,
}

/// A detector in memory.
#[derive(Default)]
pub(super) struct Twin {
    state: Mutex<State>,
    manner: Manner,
}

impl Twin {
    pub(super) fn of(manner: Manner) -> Arc<Twin> {
        Arc::new(Twin { manner, ..Twin::default() })
    }

    pub(super) fn taken(&self) -> usize {
        self.state.lock().taken
    }

    pub(super) fn marked(&self) -> usize {
        self.state.lock().marked
    }
}

pub(super) fn number_of(id: &ShortId) -> u32 {
    u32::from_be_bytes([id[12], id[13], id[14], id[15]])
}

pub(super) fn answers_to(ask: &AskMessage) -> AnswerMessage {
    AnswerMessage {
        job: ask.job,
        round: ask.round,
        batch: ask.batch,
        partition: ask.partition,
        generation: 0,
        codes: ask.ids.iter().map(|id| known(number_of(id)).code()).collect(),
    }
}

impl BatchDetector for Twin {
    fn take(&self, ask: &AskMessage, host: Host) -> Result<(), String> {
        if self.manner.unwilling {
            return Err("not today".to_owned());
        }
        let mut state = self.state.lock();
        state.taken += 1;
        state.asks.entry(ask.partition).or_default().push((host, ask.clone()));
        Ok(())
    }

    fn mark(&self, marker: &MarkerMessage, host: Host) {
        let mut state = self.state.lock();
        state.marked += 1;
        let marks = state.marks.entry(marker.round).or_default();
        marks.insert(host);
        if marks.len() >= marker.participants as usize {
            state.whole.insert(marker.round);
        }
    }

    fn due(&self, _now: Instant) -> Option<u32> {
        let state = self.state.lock();
        let due = |asks: &[(Host, AskMessage)]| asks.iter().any(|(_, ask)| state.whole.contains(&ask.round));
        let mut partitions = state.asks.iter().filter(|_| !self.manner.silent);
        partitions.find(|(_, asks)| due(asks)).map(|(&partition, _)| partition)
    }

    fn compare(&self, partition: u32, reply: &mut dyn FnMut(Host, AnswerMessage)) -> io::Result<()> {
        let asks = self.state.lock().asks.remove(&partition).unwrap_or_default();
        for (host, ask) in asks {
            let generation = self.manner.generation;
            reply(host, AnswerMessage { generation, ..answers_to(&ask) });
        }
        Ok(())
    }
}
