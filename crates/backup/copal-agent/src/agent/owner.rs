//! The owner of partitions: receives the requests of hosts, and decides when a partition is compared.
//!
//! A partition is compared when all hosts of a round have asked, or when the patience of a waiting host is
//! over (`markers`): half of its longest round, and at least ten seconds. So a host that is ten times slower
//! delays no other, and hosts of similar speed see each other's chunks.

use super::{early_rounds::EarlyRounds, peers::tag_of};
use crate::detect::{BatchHeader, DetectError, Detector, PopularPack, PopularPacks};
use crate::fleet::messages::{AnswerMessage, AskMessage, MarkerMessage};
use crate::markers::RoundMarkers;
use crate::server::BatchDetector;
use copal_backup::{Error, Repository, peers::Answer};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Number of rounds that are kept.
const MOST_ROUNDS: usize = 256;

/// A round of a job.
type JobRound = ([u8; 16], u32);
/// Number of partition bits, and a partition.
type PartitionPlace = (u8, u32);

/// Answers for every partition that it is asked about: the asker chooses the owner.
pub(crate) struct PartitionOwner {
    repository: Arc<Repository>,
    directory: PathBuf,
    popular_millionths: u32,
    early: Arc<EarlyRounds>,
    detectors: Mutex<BTreeMap<u8, Arc<Detector>>>,
    sessions: Mutex<OpenSessions>,
    state: Mutex<OwnerState>,
}

/// VMs with open sessions, by their tags, as last read.
#[derive(Default)]
struct OpenSessions {
    open: BTreeSet<u32>,
    read: Option<Instant>,
}

impl OpenSessions {
    /// Longest age of this information.
    const FRESH: Duration = Duration::from_secs(5);

    /// Whether a VM is being backed up; true if that cannot be read.
    fn has(&mut self, repository: &Repository, vm: u32) -> bool {
        if self.read.is_none_or(|read| read.elapsed() >= OpenSessions::FRESH) {
            match repository.sessions() {
                Ok(sessions) => self.open = sessions.into_iter().map(|(vm, _)| tag_of(vm.uuid)).collect(),
                Err(error) => {
                    tracing::debug!(%error, "open sessions not readable, retried");
                    return true;
                }
            }
            self.read = Some(Instant::now());
        }
        self.open.contains(&vm)
    }
}

#[derive(Default)]
struct OwnerState {
    rounds: BTreeMap<JobRound, RoundRequests>,
    due: BTreeSet<PartitionPlace>,
}

/// Requests of a round.
#[derive(Default)]
struct RoundRequests {
    places: BTreeSet<PartitionPlace>,
    markers: RoundMarkers<[u8; 16]>,
    /// Time of the first message.
    began: Option<Instant>,
}

impl PartitionOwner {
    pub(crate) fn new(
        repository: Arc<Repository>,
        directory: PathBuf,
        popular_millionths: u32,
        early: Arc<EarlyRounds>,
    ) -> PartitionOwner {
        PartitionOwner {
            repository,
            directory,
            popular_millionths,
            early,
            detectors: Mutex::default(),
            sessions: Mutex::default(),
            state: Mutex::default(),
        }
    }

    fn detector(&self, bits: u8) -> Result<Arc<Detector>, DetectError> {
        let mut detectors = self.detectors.lock();
        if let Some(detector) = detectors.get(&bits) {
            return Ok(Arc::clone(detector));
        }
        let directory = self.directory.join(format!("{bits}-bits"));
        let detector = Arc::new(Detector::open(&directory, bits, self.popular_millionths)?);
        detectors.insert(bits, Arc::clone(&detector));
        Ok(detector)
    }
}

impl OwnerState {
    /// The state of a round, created if needed.
    fn round(&mut self, round: JobRound, now: Instant) -> &mut RoundRequests {
        while self.rounds.len() >= MOST_ROUNDS && !self.rounds.contains_key(&round) {
            let oldest = self.rounds.iter().min_by_key(|(_, asked)| asked.began);
            let Some(oldest) = oldest.map(|(round, _)| *round) else {
                break;
            };
            let forgotten = self.rounds.remove(&oldest);
            self.due.extend(forgotten.into_iter().flat_map(|asked| asked.places));
        }
        let asked = self.rounds.entry(round).or_default();
        asked.began.get_or_insert(now);
        asked
    }
}

impl BatchDetector for PartitionOwner {
    fn take(&self, ask: &AskMessage, host: [u8; 16]) -> Result<(), String> {
        let header = BatchHeader {
            job: ask.job,
            round: ask.round,
            host,
            vm: ask.vm,
            batch: ask.batch,
            partition: ask.partition,
        };
        let detector = self.detector(ask.partition_bits).map_err(|error| error.to_string())?;
        detector.take(&header, &ask.ids).map_err(|error| error.to_string())?;
        let place = (ask.partition_bits, ask.partition);
        let mut state = self.state.lock();
        let asked = state.round((ask.job, ask.round), Instant::now());
        asked.places.insert(place);
        asked.markers.ask(host);
        Ok(())
    }

    fn mark(&self, marker: &MarkerMessage, host: [u8; 16]) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let patience = Duration::from_millis(marker.patience_ms.into());
        let asked = state.round((marker.job, marker.round), now);
        if asked.markers.mark(host, patience, marker.participants as usize, now) {
            let places = std::mem::take(&mut asked.places);
            state.due.extend(places);
        }
    }

    fn due(&self, now: Instant) -> Option<u32> {
        let mut state = self.state.lock();
        if state.due.is_empty() {
            let OwnerState { rounds, due } = &mut *state;
            for ((job, _), asked) in rounds.iter_mut() {
                if asked.markers.take_due(now) {
                    self.early.note(*job);
                    due.append(&mut asked.places);
                }
            }
        }
        state.due.pop_first().map(|(bits, partition)| u32::from(bits) << 24 | partition)
    }

    fn compare(&self, place: u32, reply: &mut dyn FnMut([u8; 16], AnswerMessage)) -> io::Result<()> {
        let (bits, partition) = ((place >> 24) as u8, place & 0x00ff_ffff);
        let detector = self.detector(bits).map_err(io::Error::other)?;
        let log = PopularLog::read(&self.repository, &self.sessions)?;
        let generation = log.newest;
        let mut answer = |header: &BatchHeader, answers: &[Answer]| {
            reply(
                header.host,
                AnswerMessage {
                    job: header.job,
                    round: header.round,
                    batch: header.batch,
                    partition: header.partition,
                    generation,
                    codes: answers.iter().map(|answer| answer.code()).collect(),
                },
            );
        };
        let compared =
            detector.compare(partition, Instant::now(), &log, &mut answer).map_err(io::Error::other)?;
        tracing::debug!(bits, partition, ?compared, "compared");
        Ok(())
    }
}

/// The log of popular packs, up to the position that was read.
struct PopularLog<'a> {
    repository: &'a Repository,
    sessions: &'a Mutex<OpenSessions>,
    newest: u64,
    generation: u64,
}

impl<'a> PopularLog<'a> {
    fn read(repository: &'a Repository, sessions: &'a Mutex<OpenSessions>) -> io::Result<PopularLog<'a>> {
        let newest = repository.newest_popular().map_err(io::Error::other)?;
        let generation = repository.popular_generation().map_err(io::Error::other)?;
        Ok(PopularLog { repository, sessions, newest, generation })
    }
}

impl PopularPacks for PopularLog<'_> {
    fn newest(&self) -> u64 {
        self.newest
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn is_backing_up(&self, vm: u32) -> bool {
        self.sessions.lock().has(self.repository, vm)
    }

    fn for_each_since(
        &self,
        after: u64,
        visit: &mut dyn FnMut(PopularPack) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut failed = None;
        let outcome = self.repository.for_each_popular_since(after, &mut |frames| {
            let pack = PopularPack {
                position: frames.position,
                first_ordinal: frames.first_ordinal,
                ids: frames.ids,
                is_checked: frames.is_checked,
            };
            visit(pack).map_err(|error| {
                let reason = error.to_string();
                failed = Some(error);
                Error::Ended { reason }
            })
        });
        match (outcome, failed) {
            (_, Some(error)) => Err(error),
            (outcome, None) => outcome.map_err(io::Error::other),
        }
    }
}
