//! Requests as they come in on a connection: a body is read only when there is room for it.
//!
//! Invariant: a connection takes no more memory than a small frame before its next request is admitted.

use crate::{
    admission::{Admission, Held},
    refusal::Refused,
};
use bytes::BytesMut;
use copal_proto::{Cost, FRAME_HEADER_LEN, Frame, MAX_FRAME_BYTES, Method, SMALL_BYTES};
use std::time::Duration;
use tokio::{
    io::{AsyncRead, AsyncReadExt, BufReader},
    time::timeout,
};

/// How long the rest of a frame may take to come once its first bytes are here.
const TO_ARRIVE: Duration = Duration::from_secs(30);
const LENGTH_LEN: usize = 4;

/// What came.
pub(crate) enum Request {
    /// A request, and the room it has.
    Admitted(Frame, Held),
    /// Part of a chain, in the room of its first frame.
    Part(Frame),
    /// One that finds no room; of a long one all but the header was passed over.
    NoRoom(Frame, Refused),
}

/// See the module.
pub(crate) struct Requests<R> {
    from: BufReader<R>,
}

impl<R: AsyncRead + Unpin> Requests<R> {
    pub(crate) fn new(from: R) -> Requests<R> {
        Requests {
            from: BufReader::with_capacity(SMALL_BYTES, from),
        }
    }

    /// The next request; `None`: no more come.
    /// # Errors
    /// What came is no request; the connection cannot be used any more.
    pub(crate) async fn next(&mut self, admission: &Admission) -> Result<Option<Request>, String> {
        let mut head = [0; LENGTH_LEN + FRAME_HEADER_LEN];
        let first = self.from.read(&mut head).await;
        let first = first.map_err(|error| error.to_string())?;
        if first == 0 {
            return Ok(None);
        }
        let rest = timeout(TO_ARRIVE, self.from.read_exact(&mut head[first..])).await;
        rest.map_err(|_| LATE)?.map_err(|error| error.to_string())?;
        let (length, header) = head.split_at(LENGTH_LEN);
        let length = u32::from_be_bytes(length.try_into().unwrap_or_default()) as usize;
        if !(FRAME_HEADER_LEN..=MAX_FRAME_BYTES).contains(&length) {
            return Err(format!("a frame of {length} bytes"));
        }
        if length <= SMALL_BYTES {
            let frame = self.read(header, length).await?;
            let method = Method::of_number(frame.method);
            if matches!(method, Some(Method::ChainData | Method::ChainCommit)) {
                return Ok(Some(Request::Part(frame)));
            }
            let cost = match method {
                Some(method) => Cost::of(method, &frame.message),
                None => Cost::of_length(None, length),
            };
            return Ok(Some(match admission.admit(cost).await {
                Ok(room) => Request::Admitted(frame, room),
                Err(busy) => Request::NoRoom(frame, busy),
            }));
        }
        // Nothing of these is believed before the checksum, but the room that it asks for.
        let peeked = Frame::peek(header);
        let method = Method::of_number(peeked.method);
        if matches!(
            method,
            Some(Method::PutChain | Method::ChainData | Method::ChainCommit)
        ) {
            return Err(format!("a frame of a chain of {length} bytes"));
        }
        match admission.admit(Cost::of_length(method, length)).await {
            Ok(room) => Ok(Some(Request::Admitted(self.read(header, length).await?, room))),
            Err(busy) => {
                self.pass_over((length - FRAME_HEADER_LEN) as u64).await?;
                Ok(Some(Request::NoRoom(peeked, busy)))
            }
        }
    }

    async fn read(&mut self, header: &[u8], length: usize) -> Result<Frame, String> {
        let mut bytes = BytesMut::with_capacity(length);
        bytes.extend_from_slice(header);
        let mut rest = (&mut self.from).take((length - header.len()) as u64);
        let whole = async {
            while bytes.len() < length {
                if rest
                    .read_buf(&mut bytes)
                    .await
                    .map_err(|error| error.to_string())?
                    == 0
                {
                    return Err("it ended in the middle of a frame".to_owned());
                }
            }
            Ok(())
        };
        timeout(TO_ARRIVE, whole).await.map_err(|_| LATE)??;
        let frame = Frame::decode(bytes.freeze()).map_err(|error| error.to_string())?;
        match frame.is_reply {
            false => Ok(frame),
            true => Err("it answered what nobody asked".to_owned()),
        }
    }

    async fn pass_over(&mut self, bytes: u64) -> Result<(), String> {
        let mut rest = (&mut self.from).take(bytes);
        let mut nowhere = tokio::io::sink();
        let passed = timeout(TO_ARRIVE, tokio::io::copy(&mut rest, &mut nowhere)).await;
        match passed.map_err(|_| LATE)? {
            Ok(passed) if passed == bytes => Ok(()),
            Ok(_) => Err("it ended in the middle of a frame".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

const LATE: &str = "the rest of a frame did not come";
