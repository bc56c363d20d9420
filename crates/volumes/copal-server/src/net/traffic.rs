//! Counters of calls and connections. They only rise, and no lock is taken.
//!
//! Not here: their text format (`monitoring`).

use crate::net::admission::{CallAdmission, ClassBudgets, ClassUsage};
use crate::net::status::Status;
use copal_proto::{CallClass, Method, messages::failure::Code};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Upper ends of the latency histogram's buckets, in microseconds. A last bucket without end follows.
pub(crate) const LATENCY_ENDS_US: [u64; 12] =
    [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 250_000, 1_000_000, 5_000_000, 30_000_000];
/// Error codes counted separately; unknown codes of newer releases share the last counter.
const CODES: usize = 64;

/// Why this side closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The handshake failed: no TLS, or a certificate of another authority.
    Handshake,
    /// No handshake in time, or an unfinished frame.
    Silent,
    /// A call that needs a certificate, without one.
    NoCertificate,
    /// Malformed bytes.
    Garbage,
    /// Evicted: too many connections were unauthenticated, and this was the oldest.
    Crowded,
}

impl CloseReason {
    pub(crate) const ALL: [CloseReason; 5] = [
        CloseReason::Handshake,
        CloseReason::Silent,
        CloseReason::NoCertificate,
        CloseReason::Garbage,
        CloseReason::Crowded,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            CloseReason::Handshake => "handshake",
            CloseReason::Silent => "silent",
            CloseReason::NoCertificate => "no_certificate",
            CloseReason::Garbage => "garbage",
            CloseReason::Crowded => "crowded",
        }
    }
}

/// Counters of one method.
pub(crate) struct MethodCounts {
    pub(crate) calls: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) micros: AtomicU64,
    latencies: [AtomicU64; LATENCY_ENDS_US.len() + 1],
    refusals: [AtomicU64; CODES],
}

impl MethodCounts {
    fn new() -> MethodCounts {
        MethodCounts {
            calls: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            micros: AtomicU64::new(0),
            latencies: [const { AtomicU64::new(0) }; LATENCY_ENDS_US.len() + 1],
            refusals: [const { AtomicU64::new(0) }; CODES],
        }
    }

    /// Calls by bucket of the histogram; the bucket without end is last.
    pub(crate) fn latencies(&self) -> impl Iterator<Item = u64> + '_ {
        self.latencies.iter().map(|count| count.load(Ordering::Relaxed))
    }

    /// Error codes with at least one refusal, and their counts.
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

/// Outcome of one call.
pub(crate) struct CallRecord {
    pub(crate) method: Method,
    pub(crate) bytes_in: usize,
    pub(crate) bytes_out: usize,
    pub(crate) took: Duration,
    /// Error code of a refused call.
    pub(crate) refusal: Option<i32>,
}

/// Counters of one server. See the module.
pub struct TrafficCounters {
    methods: Vec<MethodCounts>,
    closes: [AtomicU64; CloseReason::ALL.len()],
    open: AtomicU64,
    accepted: AtomicU64,
    pub(crate) admission: CallAdmission,
}

impl Default for TrafficCounters {
    fn default() -> TrafficCounters {
        TrafficCounters::new(&ClassBudgets::default())
    }
}

impl TrafficCounters {
    /// All counters at zero; calls get these budgets.
    pub(crate) fn new(budgets: &ClassBudgets) -> TrafficCounters {
        TrafficCounters {
            admission: CallAdmission::new(budgets),
            methods: Method::ALL.iter().map(|_| MethodCounts::new()).collect(),
            closes: [const { AtomicU64::new(0) }; CloseReason::ALL.len()],
            open: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
        }
    }

    /// Memory use of a class.
    pub fn class_usage(&self, class: CallClass) -> ClassUsage {
        self.admission.counted(class)
    }

    /// Records a call refused before it was dispatched.
    pub(crate) fn record_refusal(&self, method: u16, status: &Status) {
        if let Some(method) = Method::of_number(method) {
            self.record(&CallRecord {
                method,
                bytes_in: 0,
                bytes_out: 0,
                took: Duration::ZERO,
                refusal: Some(status.code().into()),
            });
        }
    }

    /// Connections that this side closed: for malformed input, for missing rights, or for silence.
    pub fn refused_connections(&self) -> u64 {
        let counts = self.closes.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn closes_for(&self, why: CloseReason) -> u64 {
        self.closes[why as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn record_close(&self, why: CloseReason) {
        self.closes[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_opened(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections accepted so far, and connections open now.
    pub fn connections(&self) -> (u64, u64) {
        (self.accepted.load(Ordering::Relaxed), self.open.load(Ordering::Relaxed))
    }

    /// Methods called at least once, with their counters.
    pub(crate) fn called_methods(&self) -> impl Iterator<Item = (Method, &MethodCounts)> {
        let all = Method::ALL.iter().copied().zip(&self.methods);
        all.filter(|(_, counts)| counts.calls.load(Ordering::Relaxed) > 0)
    }

    pub(crate) fn record(&self, record: &CallRecord) {
        let at = Method::ALL.iter().position(|method| *method == record.method);
        let Some(counts) = at.and_then(|at| self.methods.get(at)) else {
            return;
        };
        let micros = record.took.as_micros() as u64;
        let bucket = LATENCY_ENDS_US.partition_point(|end| *end < micros);
        counts.calls.fetch_add(1, Ordering::Relaxed);
        counts.bytes_in.fetch_add(record.bytes_in as u64, Ordering::Relaxed);
        counts.bytes_out.fetch_add(record.bytes_out as u64, Ordering::Relaxed);
        counts.micros.fetch_add(micros, Ordering::Relaxed);
        counts.latencies[bucket].fetch_add(1, Ordering::Relaxed);
        if let Some(code) = record.refusal {
            let slot = usize::try_from(code).unwrap_or(CODES).min(CODES - 1);
            counts.refusals[slot].fetch_add(1, Ordering::Relaxed);
        }
    }
}
