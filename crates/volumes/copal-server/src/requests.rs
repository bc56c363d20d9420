//! Requests as they come in on a connection: a body is read only when there is room for it.
//!
//! Invariant: a connection takes no more memory than a small frame before its next request is admitted.

use crate::{
    admission::{Admission, Held},
    status::Status,
};
use bytes::BytesMut;
use copal_proto::{CallCost, FRAME_HEADER_LEN, MAX_FRAME_BYTES, Method, SMALL_BYTES, WireFrame};
use std::{io::ErrorKind, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, BufReader},
    time::timeout,
};

/// How long a frame may stand still once its first bytes are here.
const TO_ARRIVE: Duration = Duration::from_secs(10);
/// A long frame has a second more for so many bytes, and no more than that: its room is wanted by others.
const BYTES_PER_S: u64 = 64 << 10;
const LENGTH_LEN: usize = 4;

/// What came.
pub(crate) enum Request {
    /// A request, and the room it has.
    Admitted(WireFrame, Held),
    /// Part of a chain, in the room of its first frame.
    Part(WireFrame),
    /// One that finds no room; of a long one all but the header was passed over.
    NoRoom(WireFrame, Status),
}

/// Why nothing more can be read of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It broke, or ended in the middle of a frame.
    Broken(String),
    /// It sent what is no request.
    Garbage(String),
    /// It began a frame and did not end it in time.
    Late,
}

impl From<std::io::Error> for Unreadable {
    fn from(error: std::io::Error) -> Unreadable {
        match error.kind() {
            // What TLS cannot decrypt.
            ErrorKind::InvalidData => Unreadable::Garbage(error.to_string()),
            _ => Unreadable::Broken(error.to_string()),
        }
    }
}

/// See the module.
pub(crate) struct Requests<R> {
    from: BufReader<R>,
}

impl<R: AsyncRead + Unpin> Requests<R> {
    pub(crate) fn new(from: R) -> Requests<R> {
        Requests { from: BufReader::with_capacity(SMALL_BYTES, from) }
    }

    /// The next request; `None`: no more come.
    /// # Errors
    /// What came is no request; the connection cannot be used any more.
    pub(crate) async fn next(&mut self, admission: &Admission) -> Result<Option<Request>, Unreadable> {
        let mut head = [0; LENGTH_LEN + FRAME_HEADER_LEN];
        let first = self.from.read(&mut head).await?;
        if first == 0 {
            return Ok(None);
        }
        let rest = timeout(TO_ARRIVE, self.from.read_exact(&mut head[first..])).await;
        rest.map_err(|_| Unreadable::Late)??;
        let (length, header) = head.split_at(LENGTH_LEN);
        let length = u32::from_be_bytes(length.try_into().unwrap_or_default()) as usize;
        if !(FRAME_HEADER_LEN..=MAX_FRAME_BYTES).contains(&length) {
            return Err(Unreadable::Garbage(format!("a frame of {length} bytes")));
        }
        if length <= SMALL_BYTES {
            let frame = self.read(header, length).await?;
            let method = Method::of_number(frame.method);
            if matches!(method, Some(Method::ChainData | Method::ChainCommit)) {
                return Ok(Some(Request::Part(frame)));
            }
            let cost = match method {
                Some(method) => CallCost::of(method, &frame.message),
                None => CallCost::of_length(None, length),
            };
            return Ok(Some(match admission.admit(cost).await {
                Ok(room) => Request::Admitted(frame, room),
                Err(busy) => Request::NoRoom(frame, busy),
            }));
        }
        // Nothing of these is believed before the checksum, but the room that it asks for.
        let peeked = WireFrame::peek(header);
        let method = Method::of_number(peeked.method);
        if matches!(method, Some(Method::PutChain | Method::ChainData | Method::ChainCommit)) {
            let reason = format!("a frame of a chain of {length} bytes");
            return Err(Unreadable::Garbage(reason));
        }
        match admission.admit(CallCost::of_length(method, length)).await {
            Ok(room) => Ok(Some(Request::Admitted(self.read(header, length).await?, room))),
            Err(busy) => {
                self.pass_over((length - FRAME_HEADER_LEN) as u64).await?;
                Ok(Some(Request::NoRoom(peeked, busy)))
            }
        }
    }

    async fn read(&mut self, header: &[u8], length: usize) -> Result<WireFrame, Unreadable> {
        let mut bytes = BytesMut::with_capacity(length);
        bytes.extend_from_slice(header);
        let mut rest = (&mut self.from).take((length - header.len()) as u64);
        let whole = async {
            while bytes.len() < length {
                let more = timeout(TO_ARRIVE, rest.read_buf(&mut bytes)).await;
                if more.map_err(|_| Unreadable::Late)?? == 0 {
                    return Err(ended());
                }
            }
            Ok(())
        };
        let whole = timeout(to_arrive(length as u64), whole).await;
        whole.map_err(|_| Unreadable::Late)??;
        let frame =
            WireFrame::decode(bytes.freeze()).map_err(|error| Unreadable::Garbage(error.to_string()))?;
        match frame.is_reply {
            false => Ok(frame),
            true => Err(Unreadable::Garbage("it answered what nobody asked".to_owned())),
        }
    }

    async fn pass_over(&mut self, bytes: u64) -> Result<(), Unreadable> {
        let mut rest = (&mut self.from).take(bytes);
        let passed = async {
            let (mut nowhere, mut passed) = (vec![0; SMALL_BYTES], 0);
            while passed < bytes {
                let more = timeout(TO_ARRIVE, rest.read(&mut nowhere)).await;
                match more.map_err(|_| Unreadable::Late)?? {
                    0 => return Err(ended()),
                    more => passed += more as u64,
                }
            }
            Ok(())
        };
        let passed = timeout(to_arrive(bytes), passed).await;
        passed.map_err(|_| Unreadable::Late)?
    }
}

/// How long so many bytes of a frame may take.
fn to_arrive(bytes: u64) -> Duration {
    TO_ARRIVE + Duration::from_secs(bytes / BYTES_PER_S)
}

fn ended() -> Unreadable {
    Unreadable::Broken("it ended in the middle of a frame".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Budgets;
    use tokio::io::AsyncWriteExt;

    /// What comes of a connection over which `bytes` come and then nothing, and how long that took by a clock
    /// that does not wait.
    fn read(bytes: &'static [u8]) -> (Unreadable, Duration) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let (mut to, from) = tokio::io::duplex(1 << 20);
            to.write_all(bytes).await.unwrap();
            let began = tokio::time::Instant::now();
            let read = Requests::new(from).next(&Admission::new(&Budgets::default())).await;
            (read.err().unwrap(), began.elapsed())
        })
    }

    /// Symptom: a client with a certificate held room for 30 s with each frame that it began and did not end.
    /// Fix: 10 s, as before the certificate is shown.
    #[test]
    fn a_frame_that_is_begun_and_not_ended_is_waited_for_ten_seconds() {
        const LONG: [u8; 40] = {
            let mut begun = [0; 40];
            begun[1] = 0x20;
            begun
        };
        for bytes in [&LONG[..2], &LONG[..4], &LONG[..10], &LONG[..]] {
            assert_eq!(read(bytes), (Unreadable::Late, TO_ARRIVE), "{} bytes", bytes.len());
        }
    }
}
