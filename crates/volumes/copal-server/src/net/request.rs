//! Reader of requests: the body of a frame is read only after its memory is admitted.
//!
//! Invariant: before its next request is admitted, a connection takes no more memory than a small frame.

use crate::net::admission::{AdmittedBytes, CallAdmission};
use crate::net::status::Status;
use bytes::BytesMut;
use copal_proto::{CallCost, FRAME_HEADER_LEN, MAX_FRAME_BYTES, Method, SMALL_BYTES, WireFrame};
use std::{io::ErrorKind, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, BufReader},
    time::timeout,
};

/// Longest pause inside a frame.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// A long frame gets one more second per this many bytes: other calls wait for its memory.
const BYTES_PER_S: u64 = 64 << 10;
const LENGTH_LEN: usize = 4;

/// A request as it arrived.
pub(crate) enum IncomingRequest {
    /// An admitted request and its memory.
    Admitted(WireFrame, AdmittedBytes),
    /// A later frame of a chain, covered by the memory of its first frame.
    ChainPart(WireFrame),
    /// A request without free memory. The body of a long one was skipped.
    Refused(WireFrame, Status),
}

/// Why a connection can no longer be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// It broke, or ended in the middle of a frame.
    Broken(String),
    /// It sent malformed bytes.
    Malformed(String),
    /// It did not finish a frame in time.
    TimedOut,
}

impl From<std::io::Error> for RequestError {
    fn from(error: std::io::Error) -> RequestError {
        match error.kind() {
            // Bytes that TLS cannot decrypt.
            ErrorKind::InvalidData => RequestError::Malformed(error.to_string()),
            _ => RequestError::Broken(error.to_string()),
        }
    }
}

/// The reading half of a connection. See the module.
pub(crate) struct RequestReader<R> {
    from: BufReader<R>,
}

impl<R: AsyncRead + Unpin> RequestReader<R> {
    pub(crate) fn new(from: R) -> RequestReader<R> {
        RequestReader { from: BufReader::with_capacity(SMALL_BYTES, from) }
    }

    /// The next request; `None`: the peer has closed the connection.
    /// # Errors
    /// The bytes are no request; the connection cannot be used any more.
    pub(crate) async fn next(
        &mut self,
        admission: &CallAdmission,
    ) -> Result<Option<IncomingRequest>, RequestError> {
        let mut head = [0; LENGTH_LEN + FRAME_HEADER_LEN];
        let first = self.from.read(&mut head).await?;
        if first == 0 {
            return Ok(None);
        }
        let rest = timeout(FRAME_TIMEOUT, self.from.read_exact(&mut head[first..])).await;
        rest.map_err(|_| RequestError::TimedOut)??;
        let (length, header) = head.split_at(LENGTH_LEN);
        let length = u32::from_be_bytes(length.try_into().unwrap_or_default()) as usize;
        if !(FRAME_HEADER_LEN..=MAX_FRAME_BYTES).contains(&length) {
            return Err(RequestError::Malformed(format!("a frame of {length} bytes")));
        }
        if length <= SMALL_BYTES {
            let frame = self.read(header, length).await?;
            let method = Method::of_number(frame.method);
            if matches!(method, Some(Method::ChainData | Method::ChainCommit)) {
                return Ok(Some(IncomingRequest::ChainPart(frame)));
            }
            let cost = match method {
                Some(method) => CallCost::of(method, &frame.message),
                None => CallCost::of_length(None, length),
            };
            return Ok(Some(match admission.admit(cost).await {
                Ok(room) => IncomingRequest::Admitted(frame, room),
                Err(busy) => IncomingRequest::Refused(frame, busy),
            }));
        }
        // Until the checksum is verified only the length of the frame is trusted.
        let peeked = WireFrame::peek(header);
        let method = Method::of_number(peeked.method);
        if matches!(method, Some(Method::PutChain | Method::ChainData | Method::ChainCommit)) {
            let reason = format!("a frame of a chain of {length} bytes");
            return Err(RequestError::Malformed(reason));
        }
        match admission.admit(CallCost::of_length(method, length)).await {
            Ok(room) => Ok(Some(IncomingRequest::Admitted(self.read(header, length).await?, room))),
            Err(busy) => {
                self.pass_over((length - FRAME_HEADER_LEN) as u64).await?;
                Ok(Some(IncomingRequest::Refused(peeked, busy)))
            }
        }
    }

    async fn read(&mut self, header: &[u8], length: usize) -> Result<WireFrame, RequestError> {
        let mut bytes = BytesMut::with_capacity(length);
        bytes.extend_from_slice(header);
        let mut rest = (&mut self.from).take((length - header.len()) as u64);
        let body = async {
            while bytes.len() < length {
                let more = timeout(FRAME_TIMEOUT, rest.read_buf(&mut bytes)).await;
                if more.map_err(|_| RequestError::TimedOut)?? == 0 {
                    return Err(ended());
                }
            }
            Ok(())
        };
        let body = timeout(frame_timeout(length as u64), body).await;
        body.map_err(|_| RequestError::TimedOut)??;
        let frame =
            WireFrame::decode(bytes.freeze()).map_err(|error| RequestError::Malformed(error.to_string()))?;
        match frame.is_reply {
            false => Ok(frame),
            true => Err(RequestError::Malformed("it sent a reply to no request".to_owned())),
        }
    }

    async fn pass_over(&mut self, bytes: u64) -> Result<(), RequestError> {
        let mut rest = (&mut self.from).take(bytes);
        let passed = async {
            let (mut nowhere, mut passed) = (vec![0; SMALL_BYTES], 0);
            while passed < bytes {
                let more = timeout(FRAME_TIMEOUT, rest.read(&mut nowhere)).await;
                match more.map_err(|_| RequestError::TimedOut)?? {
                    0 => return Err(ended()),
                    more => passed += more as u64,
                }
            }
            Ok(())
        };
        let passed = timeout(frame_timeout(bytes), passed).await;
        passed.map_err(|_| RequestError::TimedOut)?
    }
}

/// Time limit for a frame of this length.
fn frame_timeout(bytes: u64) -> Duration {
    FRAME_TIMEOUT + Duration::from_secs(bytes / BYTES_PER_S)
}

fn ended() -> RequestError {
    RequestError::Broken("it ended in the middle of a frame".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::admission::ClassBudgets;
    use tokio::io::AsyncWriteExt;

    /// The error of a connection that receives `bytes` and then nothing, and the time until then on a paused
    /// clock.
    fn read(bytes: &'static [u8]) -> (RequestError, Duration) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let (mut to, from) = tokio::io::duplex(1 << 20);
            to.write_all(bytes).await.unwrap();
            let began = tokio::time::Instant::now();
            let read = RequestReader::new(from).next(&CallAdmission::new(&ClassBudgets::default())).await;
            (read.err().unwrap(), began.elapsed())
        })
    }

    /// Symptom: an authenticated client held memory for 30 s with each unfinished frame.
    /// Fix: 10 s, as for unauthenticated peers.
    #[test]
    fn a_frame_that_is_begun_and_not_ended_is_waited_for_ten_seconds() {
        const LONG: [u8; 40] = {
            let mut begun = [0; 40];
            begun[1] = 0x20;
            begun
        };
        for bytes in [&LONG[..2], &LONG[..4], &LONG[..10], &LONG[..]] {
            assert_eq!(read(bytes), (RequestError::TimedOut, FRAME_TIMEOUT), "{} bytes", bytes.len());
        }
    }
}
