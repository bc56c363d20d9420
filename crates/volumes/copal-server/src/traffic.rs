//! What a server counts of its calls and connections. Counters only ever rise; nothing here takes a lock.
//!
//! Not here: how they are printed (`monitoring`).

use crate::{
    admission::{Admission, Admitted, Budgets},
    status::Status,
};
use copal_proto::{CallClass, Method, messages::failure::Code};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Upper ends of the latency histogram's buckets, in microseconds; what took longer is in the last, which has
/// no end.
pub(crate) const LATENCY_ENDS_US: [u64; 12] =
    [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 250_000, 1_000_000, 5_000_000, 30_000_000];
/// Codes of refusals that are counted apart; those of a newer release share the last.
const CODES: usize = 64;

/// Why a connection was closed by this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnedAway {
    /// No handshake: not TLS, or a certificate that the authority has not signed.
    Handshake,
    /// It did not say in time who it is, or did not end a frame that it began.
    Silent,
    /// It showed no certificate, and asked for what takes one.
    NoCertificate,
    /// It sent what is no frame.
    Garbage,
    /// Too many had not shown who they are, and it was the oldest of them.
    Crowded,
}

impl TurnedAway {
    pub(crate) const ALL: [TurnedAway; 5] = [
        TurnedAway::Handshake,
        TurnedAway::Silent,
        TurnedAway::NoCertificate,
        TurnedAway::Garbage,
        TurnedAway::Crowded,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            TurnedAway::Handshake => "handshake",
            TurnedAway::Silent => "silent",
            TurnedAway::NoCertificate => "no_certificate",
            TurnedAway::Garbage => "garbage",
            TurnedAway::Crowded => "crowded",
        }
    }
}

/// Counts of one method.
pub(crate) struct OfMethod {
    pub(crate) calls: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) micros: AtomicU64,
    latencies: [AtomicU64; LATENCY_ENDS_US.len() + 1],
    refusals: [AtomicU64; CODES],
}

impl OfMethod {
    fn new() -> OfMethod {
        OfMethod {
            calls: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            micros: AtomicU64::new(0),
            latencies: [const { AtomicU64::new(0) }; LATENCY_ENDS_US.len() + 1],
            refusals: [const { AtomicU64::new(0) }; CODES],
        }
    }

    /// Calls by bucket of the histogram, the one without end last.
    pub(crate) fn latencies(&self) -> impl Iterator<Item = u64> + '_ {
        self.latencies.iter().map(|count| count.load(Ordering::Relaxed))
    }

    /// Refusals by their code, those that there were.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self.refusals.iter().enumerate();
        counts.map(|(code, count)| (code, count.load(Ordering::Relaxed))).filter(|(_, count)| *count > 0).map(
            |(code, count)| {
                let known = Code::try_from(code as i32);
                (known.map_or("OTHER", |code| code.as_str_name()), count)
            },
        )
    }
}

/// How a call went.
pub(crate) struct Called {
    pub(crate) method: Method,
    pub(crate) bytes_in: usize,
    pub(crate) bytes_out: usize,
    pub(crate) took: Duration,
    /// Code of the refusal.
    pub(crate) refusal: Option<i32>,
}

/// See the module.
pub struct Traffic {
    methods: Vec<OfMethod>,
    turned_away: [AtomicU64; TurnedAway::ALL.len()],
    open: AtomicU64,
    accepted: AtomicU64,
    pub(crate) admission: Admission,
}

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic::new(&Budgets::default())
    }
}

impl Traffic {
    /// Nothing yet; calls have these budgets.
    pub(crate) fn new(budgets: &Budgets) -> Traffic {
        Traffic {
            admission: Admission::new(budgets),
            methods: Method::ALL.iter().map(|_| OfMethod::new()).collect(),
            turned_away: [const { AtomicU64::new(0) }; TurnedAway::ALL.len()],
            open: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
        }
    }

    /// What calls of a class hold.
    pub fn admitted(&self, class: CallClass) -> Admitted {
        self.admission.counted(class)
    }

    /// A call was refused before it was looked at.
    pub(crate) fn refuse(&self, method: u16, status: &Status) {
        if let Some(method) = Method::of_number(method) {
            self.note(&Called {
                method,
                bytes_in: 0,
                bytes_out: 0,
                took: Duration::ZERO,
                refusal: Some(status.code().into()),
            });
        }
    }

    /// Connections that were closed because of what they sent, or did not.
    pub fn turned_away(&self) -> u64 {
        let counts = self.turned_away.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn turned_away_for(&self, why: TurnedAway) -> u64 {
        self.turned_away[why as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn turn_away(&self, why: TurnedAway) {
        self.turned_away[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections that were accepted, and those of them that are there.
    pub fn connections(&self) -> (u64, u64) {
        (self.accepted.load(Ordering::Relaxed), self.open.load(Ordering::Relaxed))
    }

    /// Methods that were called, each with its counts.
    pub(crate) fn called(&self) -> impl Iterator<Item = (Method, &OfMethod)> {
        let all = Method::ALL.iter().copied().zip(&self.methods);
        all.filter(|(_, counts)| counts.calls.load(Ordering::Relaxed) > 0)
    }

    pub(crate) fn note(&self, called: &Called) {
        let at = Method::ALL.iter().position(|method| *method == called.method);
        let Some(counts) = at.and_then(|at| self.methods.get(at)) else {
            return;
        };
        let micros = called.took.as_micros() as u64;
        let bucket = LATENCY_ENDS_US.partition_point(|end| *end < micros);
        counts.calls.fetch_add(1, Ordering::Relaxed);
        counts.bytes_in.fetch_add(called.bytes_in as u64, Ordering::Relaxed);
        counts.bytes_out.fetch_add(called.bytes_out as u64, Ordering::Relaxed);
        counts.micros.fetch_add(micros, Ordering::Relaxed);
        counts.latencies[bucket].fetch_add(1, Ordering::Relaxed);
        if let Some(code) = called.refusal {
            let slot = usize::try_from(code).unwrap_or(CODES).min(CODES - 1);
            counts.refusals[slot].fetch_add(1, Ordering::Relaxed);
        }
    }
}
