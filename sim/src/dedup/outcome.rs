//! Result of a scheme's job, in the units of the paper's tables.

use super::engine::{Nanos, hours};
use super::inputs::GB;
use serde_json::{Value, json};

/// Bytes transferred by a whole job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bytes {
    /// Read and written on the disks of all hosts.
    pub(super) local_io: f64,
    /// Stored at the back end.
    pub(super) stored: f64,
    /// Part of that given up at the end of the job for popular chunks.
    pub(super) given_up: f64,
    /// Requests and answers between hosts.
    pub(super) messages: f64,
}

/// Results of the chunks, counted in ids of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    /// All ids in dirty segments.
    pub(super) all: u64,
    /// Found in the VM itself.
    pub(super) inner: u64,
    /// Found as popular.
    pub(super) hits: u64,
    /// Stored as popular chunks.
    pub(super) popular: u64,
    /// Stored as private chunks of the VM.
    pub(super) private: u64,
    /// Part of those without an answer in time, or not there when the time was over.
    pub(super) unresolved: u64,
}

impl Chunks {
    /// Whether the results of the chunks add up to all chunks.
    pub(super) fn adds_up(&self) -> bool {
        self.all == self.inner + self.hits + self.popular + self.private
    }
}

/// A host's share of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VmTime {
    pub(super) host: usize,
    pub(super) began: Nanos,
    pub(super) ended: Nanos,
}

/// Result of one scheme's job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) scheme: &'static str,
    /// Memory of a host for waiting answers; `None` if the scheme has none.
    pub(super) memory_bytes: Option<f64>,
    pub(super) bytes: Bytes,
    pub(super) chunks: Chunks,
    pub(super) vms: Vec<VmTime>,
    pub(super) hosts: usize,
    /// Number of slow hosts; they come first.
    pub(super) slow: usize,
}

impl Outcome {
    pub(super) fn span_h(&self) -> f64 {
        self.last_h(|_| true)
    }

    pub(super) fn healthy_span_h(&self) -> f64 {
        self.last_h(|vm| vm.host >= self.slow)
    }

    fn last_h(&self, of: impl Fn(&VmTime) -> bool) -> f64 {
        let ended = self.vms.iter().filter(|vm| of(vm)).map(|vm| vm.ended);
        hours(ended.max().unwrap_or(0))
    }

    /// Mean time of a VM, from its own beginning.
    pub(super) fn per_vm_h(&self) -> f64 {
        let hours = self.vms.iter().map(|vm| hours(vm.ended - vm.began));
        hours.sum::<f64>() / self.vms.len().max(1) as f64
    }

    pub(super) fn local_io_gb(&self) -> f64 {
        self.bytes.local_io / GB / self.hosts as f64
    }

    pub(super) fn storage_gb(&self) -> f64 {
        (self.bytes.stored - self.bytes.given_up) / GB
    }

    pub(super) fn given_up_gb(&self) -> f64 {
        self.bytes.given_up / GB
    }

    pub(super) fn network_gb(&self) -> f64 {
        (self.bytes.stored + self.bytes.messages) / GB
    }

    pub(super) fn messages_gb(&self) -> f64 {
        self.bytes.messages / GB / self.hosts as f64
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "scheme": self.scheme,
            "memory_mb": self.memory_bytes.map(|bytes| bytes / 1e6),
            "local_io_gb_a_host": self.local_io_gb(),
            "storage_gb": self.storage_gb(),
            "given_up_gb": self.given_up_gb(),
            "network_gb": self.network_gb(),
            "messages_gb_a_host": self.messages_gb(),
            "span_h": self.span_h(),
            "healthy_span_h": self.healthy_span_h(),
            "per_vm_h": self.per_vm_h(),
            "ids": {
                "all": self.chunks.all, "inner": self.chunks.inner, "hits": self.chunks.hits,
                "popular": self.chunks.popular, "private": self.chunks.private, "unresolved": self.chunks.unresolved,
            },
        })
    }
}
