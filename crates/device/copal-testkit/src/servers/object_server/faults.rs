//! Faults of the network between a client and the server, chosen by a test for each request.

use std::{sync::Arc, time::Duration};

/// The facts about a request by which a test chooses a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// Position among all requests of the server, from 1.
    pub number: u64,
    /// Such as `PUT`.
    pub method: String,
    /// Name of the bucket; empty for the list of buckets.
    pub bucket: String,
    /// Decoded key; empty for operations on a bucket.
    pub key: String,
    /// Query as it was sent, without the question mark.
    pub query: String,
    /// Whether it has `If-Match` or `If-None-Match`.
    pub has_condition: bool,
    /// Length of its body.
    pub body_bytes: usize,
}

/// A fault of one request. The connection stays open unless the variant ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    /// The request is answered as usual.
    None,
    /// The connection ends without an effect of the request.
    LoseRequest,
    /// The request takes effect; then the connection ends without a byte of the answer.
    LoseAnswer,
    /// The request takes effect twice, and the second answer is sent.
    Twice,
    /// The connection ends after that many bytes of the answer's body.
    CutAnswer(usize),
    /// The request takes effect after that time.
    Delay(Duration),
    /// The request takes effect at once; the second half of the answer is sent after that time.
    Stall(Duration),
    /// The request has no effect and gets an error of S3.
    Refuse {
        /// Status of HTTP.
        status: u16,
        /// Code in the XML.
        code: String,
    },
    /// The connection ends at once without an answer; the request takes effect after that time.
    LateEffect(Duration),
}

/// A test's choice.
pub(super) type FaultRule = Arc<dyn Fn(&RequestFacts) -> NetworkFault + Send + Sync>;
