//! Transmission phase of one connection: one thread reads requests, a few answer them.
//!
//! Generic over both halves, so that tests and the fuzzer can supply bytes.
//! Invariants
//! - No request is longer than [`limits::REQUEST_BYTES`]. A connection holds at most [`MAX_HELD_BYTES`] of writes
//!   and one piece per thread. Unreceived replies and unfinished writes use memory of their own connection
//!   only.
//! - A client that pauses within a write, or does not receive a reply, is disconnected after a time limit
//!   ([`ReceiveHalf`]).
//! - A forbidden request gets an error reply, and the connection stays open. An unreadable stream ends it.

use super::{
    admission::{OpenRequest, PeerActivity},
    budget::{ByteBudget, TakenBytes},
    export::{DiskError, ExportDisk, StatusRun},
    handshake::ExportChoice,
    reply::ReplyWriter,
};
use crate::{
    NbdError,
    stream::LEAST_BYTES_PER_S,
    wire::{self, BASE_ALLOCATION, FieldReader, RequestKind, STATE_ZERO, limits},
};
use parking_lot::Mutex;
use std::{
    io::{self, Read, Write},
    sync::mpsc::{Receiver, sync_channel},
    time::{Duration, Instant},
};

/// Threads that answer the requests of one connection.
const WORKERS: usize = 4;
/// Requests of one connection that wait for a thread.
const MAX_QUEUED: usize = 16;
/// Piece size of structured read replies and of long writes.
const PIECE_BYTES: u64 = 256 << 10;
/// Maximum number of write bytes that one connection holds.
const MAX_HELD_BYTES: u64 = 4 * PIECE_BYTES;
/// Maximum number of extents per context in one reply.
const EXTENTS: usize = 4096;

const EINVAL: u32 = 22;
const EPERM: u32 = 1;

/// The receiving half of a connection.
pub(crate) trait ReceiveHalf: Read {
    /// Sets the time limit of each read; `None` removes it.
    fn set_pause(&mut self, most: Option<Duration>) -> io::Result<()>;
}

/// A request whose fields fit the disk.
struct ClientRequest<'a> {
    flags: u16,
    command: RequestKind,
    cookie: u64,
    offset: u64,
    len: u32,
    /// Bytes of a write.
    data: Vec<u8>,
    /// Its part of the connection's budget, until it is answered.
    _taken: TakenBytes<'a>,
    _open: OpenRequest<'a>,
}

/// State that the threads of one connection share.
pub(crate) struct ConnectionState<'a> {
    pub(crate) choice: &'a ExportChoice,
    pub(crate) activity: &'a PeerActivity,
    /// Pool for long simple replies.
    pub(crate) pool: &'a ByteBudget,
    /// Longest pause of a client within a write.
    pub(crate) pause: Duration,
    /// Ends the connection after an incomplete reply.
    pub(crate) disconnect: &'a (dyn Fn() + Sync),
}

/// A received request.
enum ReceivedRequest<'a> {
    Request(ClientRequest<'a>),
    /// Refused with an error number and a message.
    Refused(u64, u32, &'static str),
    /// A long write, completed or failed.
    Written(u64, Result<(), DiskError>),
    Left,
}

/// Answers requests until the client disconnects or the stream fails.
/// # Errors
/// The reason of the end, unless the client disconnected.
pub(crate) fn run<R: ReceiveHalf, W: Write + Send>(
    mut reader: R,
    writer: W,
    serving: &ConnectionState<'_>,
) -> Result<(), NbdError> {
    let replies = ReplyWriter::new(writer, serving.choice.is_structured);
    let held = ByteBudget::new(MAX_HELD_BYTES);
    let (sender, receiver) = sync_channel::<ClientRequest<'_>>(MAX_QUEUED);
    let receiver = Mutex::new(receiver);
    std::thread::scope(|scope| {
        // Dropped at the end of this scope, also after an error: then the workers end.
        let sender = sender;
        for _ in 0..WORKERS {
            let worker = std::thread::Builder::new().name("nbd-answer".to_owned());
            let (receiver, replies) = (&receiver, &replies);
            worker.spawn_scoped(scope, move || answer_all(receiver, serving, replies))?;
        }
        loop {
            match receive(&mut reader, serving, &held)? {
                // Workers end only with the sender, so a receiver exists.
                ReceivedRequest::Request(request) => drop(sender.send(request)),
                ReceivedRequest::Refused(cookie, errno, why) => replies.done(cookie, Err((errno, why)))?,
                ReceivedRequest::Written(cookie, outcome) => {
                    replies.done(cookie, outcome.map_err(refused))?
                }
                ReceivedRequest::Left => return Ok(()),
            }
        }
    })
}

/// Reads one request with its data, even if the request is refused.
fn receive<'a, R: ReceiveHalf>(
    reader: &mut R,
    serving: &ConnectionState<'a>,
    held: &'a ByteBudget,
) -> Result<ReceivedRequest<'a>, NbdError> {
    let disk = &*serving.choice.disk;
    let mut header = [0; 28];
    reader.read_exact(&mut header)?;
    let open = serving.activity.begin();
    let mut cursor = FieldReader::new(&header);
    if cursor.u32()? != wire::REQUEST_MAGIC {
        return Err(NbdError::protocol("a request does not begin with its magic number"));
    }
    let (flags, kind, cookie) = (cursor.u16()?, cursor.u16()?, cursor.u64()?);
    let (offset, len) = (cursor.u64()?, cursor.u32()?);
    let refused = |errno, why| Ok(ReceivedRequest::Refused(cookie, errno, why));
    let commands = [
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Disconnect,
        RequestKind::Flush,
        RequestKind::Trim,
        RequestKind::WriteZeroes,
        RequestKind::BlockStatus,
    ];
    let Some(command) = commands.into_iter().find(|command| *command as u16 == kind) else {
        return refused(EINVAL, "unknown command");
    };
    let refusal = refusal(disk, command, flags, offset, len);
    if command == RequestKind::Write {
        if len > limits::REQUEST_BYTES {
            return Err(NbdError::protocol(format!("a write claims {len} bytes")));
        }
        if let Some((errno, why)) = refusal {
            limited(reader, serving.pause, |reader| discard(reader, len, serving.pause))?;
            return refused(errno, why);
        }
        if u64::from(len) > PIECE_BYTES {
            let written = limited(reader, serving.pause, |reader| {
                write_in_pieces(reader, disk, (offset, len), serving.pause)
            })?;
            let written = written.and_then(|()| flush_if(flags, disk));
            return Ok(ReceivedRequest::Written(cookie, written));
        }
    }
    if command == RequestKind::Disconnect {
        return Ok(ReceivedRequest::Left);
    }
    if let Some((errno, why)) = refusal {
        return refused(errno, why);
    }
    let taken = held.take(match command {
        RequestKind::Write => u64::from(len),
        _ => 0,
    });
    let mut data = Vec::new();
    if command == RequestKind::Write {
        data.resize(len as usize, 0);
        limited(reader, serving.pause, |reader| receive_data(reader, &mut data, serving.pause))?;
    }
    Ok(ReceivedRequest::Request(ClientRequest {
        flags,
        command,
        cookie,
        offset,
        len,
        data,
        _taken: taken,
        _open: open,
    }))
}

/// Runs `work`, which reads the bytes of a write, with a time limit on each pause.
fn limited<R: ReceiveHalf, T>(
    reader: &mut R,
    pause: Duration,
    work: impl FnOnce(&mut R) -> Result<T, NbdError>,
) -> Result<T, NbdError> {
    reader.set_pause(Some(pause))?;
    let done = work(reader)?;
    reader.set_pause(None)?;
    Ok(done)
}

/// Writes a request that is too long to be held in memory piece by piece. After a failed piece the rest is
/// read and discarded.
fn write_in_pieces<R: Read>(
    reader: &mut R,
    disk: &dyn ExportDisk,
    (offset, len): (u64, u32),
    pause: Duration,
) -> Result<Result<(), DiskError>, NbdError> {
    let (mut at, end) = (offset, offset + u64::from(len));
    let mut piece = vec![0; PIECE_BYTES as usize];
    let mut written = Ok(());
    while at < end {
        let part = &mut piece[..(end - at).min(PIECE_BYTES) as usize];
        receive_data(reader, part, pause)?;
        written = written.and_then(|()| disk.write_at(at, part));
        at += part.len() as u64;
    }
    Ok(written)
}

fn flush_if(flags: u16, disk: &dyn ExportDisk) -> Result<(), DiskError> {
    match flags & wire::REQUEST_FUA != 0 {
        true => disk.flush(),
        false => Ok(()),
    }
}

/// Reads the bytes of a write, which must arrive at the least rate.
fn receive_data<R: Read>(reader: &mut R, data: &mut [u8], pause: Duration) -> Result<(), NbdError> {
    let most = pause + Duration::from_secs(data.len() as u64 / LEAST_BYTES_PER_S);
    let (began, mut filled) = (Instant::now(), 0);
    while filled < data.len() {
        match reader.read(&mut data[filled..]) {
            Ok(0) => return Err(NbdError::Closed),
            Ok(came) => filled += came,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if filled < data.len() && began.elapsed() > most {
            return Err(NbdError::protocol("a write arrives too slowly"));
        }
    }
    Ok(())
}

/// Reason to refuse a request before it is tried.
fn refusal(
    disk: &dyn ExportDisk,
    command: RequestKind,
    flags: u16,
    offset: u64,
    len: u32,
) -> Option<(u32, &'static str)> {
    let allowed = match command {
        // FUA has no effect on a read.
        RequestKind::Read => wire::REQUEST_FUA,
        RequestKind::Write | RequestKind::Trim | RequestKind::Flush => wire::REQUEST_FUA,
        RequestKind::WriteZeroes => wire::REQUEST_FUA | wire::REQUEST_NO_HOLE,
        RequestKind::BlockStatus => wire::REQUEST_ONE | wire::REQUEST_FUA,
        RequestKind::Disconnect => u16::MAX,
    };
    if flags & !allowed != 0 {
        return Some((EINVAL, "unknown flags"));
    }
    if matches!(command, RequestKind::Flush | RequestKind::Disconnect) {
        return None;
    }
    let writes = matches!(command, RequestKind::Write | RequestKind::Trim | RequestKind::WriteZeroes);
    if writes && !disk.is_writable() {
        return Some((EPERM, "this export is read-only"));
    }
    let size = disk.size_bytes();
    if offset.checked_add(u64::from(len)).is_none_or(|end| end > size) {
        let errno = if writes { 28 } else { EINVAL };
        return Some((errno, "outside the disk"));
    }
    if len == 0 && command == RequestKind::BlockStatus {
        return Some((EINVAL, "the range is empty"));
    }
    if len > limits::REQUEST_BYTES && command == RequestKind::Read {
        return Some((EINVAL, "a request has at most 32 MiB"));
    }
    None
}

/// Reads and discards the bytes of a refused write.
fn discard<R: Read>(reader: &mut R, len: u32, pause: Duration) -> Result<(), NbdError> {
    let mut rest = len as usize;
    let mut piece = vec![0; rest.min(PIECE_BYTES as usize)];
    while rest > 0 {
        let part = rest.min(piece.len());
        receive_data(reader, &mut piece[..part], pause)?;
        rest -= part;
    }
    Ok(())
}

/// Answers requests until there are no more. After a failed reply the connection ends and further requests
/// are dropped.
fn answer_all<W: Write>(
    requests: &Mutex<Receiver<ClientRequest<'_>>>,
    serving: &ConnectionState<'_>,
    replies: &ReplyWriter<W>,
) {
    let mut is_broken = false;
    loop {
        let next = requests.lock().recv();
        let Ok(request) = next else { return };
        if !is_broken && answer(&request, serving, replies).is_err() {
            is_broken = true;
            (serving.disconnect)();
        }
    }
}

fn answer<W: Write>(
    request: &ClientRequest<'_>,
    serving: &ConnectionState<'_>,
    replies: &ReplyWriter<W>,
) -> Result<(), NbdError> {
    let choice = serving.choice;
    let disk = &*choice.disk;
    let (offset, len) = (request.offset, u64::from(request.len));
    let outcome = match request.command {
        RequestKind::Read => return read(request, disk, serving.pool, replies),
        RequestKind::BlockStatus => return block_status(request, choice, replies),
        RequestKind::Write => disk.write_at(offset, &request.data),
        RequestKind::Trim | RequestKind::WriteZeroes if len == 0 => Ok(()),
        RequestKind::Trim => disk.trim(offset, len),
        RequestKind::WriteZeroes => disk.zero(offset, len),
        RequestKind::Flush => disk.flush(),
        RequestKind::Disconnect => return Ok(()),
    };
    let outcome = match request.command {
        RequestKind::Flush => outcome,
        _ => outcome.and_then(|()| flush_if(request.flags, disk)),
    };
    replies.done(request.cookie, outcome.map_err(refused))
}

fn refused(error: DiskError) -> (u32, &'static str) {
    let why = match error {
        DiskError::Damaged => "this range is damaged",
        DiskError::NoSpace => "no space left",
        DiskError::ReadOnly => "this export is read-only",
        DiskError::Closing => "this export is being closed",
    };
    (error.errno(), why)
}

fn read<W: Write>(
    request: &ClientRequest<'_>,
    disk: &dyn ExportDisk,
    pool: &ByteBudget,
    replies: &ReplyWriter<W>,
) -> Result<(), NbdError> {
    let cookie = request.cookie;
    if !replies.is_structured {
        let len = u64::from(request.len);
        let in_pool = if len > PIECE_BYTES { len } else { 0 };
        let Some(_taken) = pool.try_take(in_pool) else {
            return read_in_pieces(request, disk, replies);
        };
        // A simple reply begins with its error number, so all bytes must be read first.
        let mut data = vec![0; request.len as usize];
        return match disk.read_at(request.offset, &mut data) {
            Ok(()) => replies.simple(cookie, 0, &data),
            Err(error) => replies.simple(cookie, error.errno(), &[]),
        };
    }
    let (mut at, end) = (request.offset, request.offset + u64::from(request.len));
    let mut data = Vec::new();
    while at < end {
        let run = disk.run_at(BASE_ALLOCATION, at, end - at);
        let len = match run {
            Ok(StatusRun { len, flags }) if flags & STATE_ZERO != 0 => {
                let len = len.clamp(1, end - at);
                replies.hole(cookie, at, len as u32)?;
                len
            }
            run => {
                let len = run.map_or(end - at, |run| run.len).clamp(1, end - at).min(PIECE_BYTES);
                data.resize(len as usize, 0);
                if let Err(error) = disk.read_at(at, &mut data) {
                    return replies.done(cookie, Err(refused(error)));
                }
                replies.data(cookie, at, &data)?;
                len
            }
        };
        at += len;
    }
    replies.done(cookie, Ok(()))
}

/// Answers a long read while it is read. A failure in the middle can only be reported by ending the
/// connection.
fn read_in_pieces<W: Write>(
    request: &ClientRequest<'_>,
    disk: &dyn ExportDisk,
    replies: &ReplyWriter<W>,
) -> Result<(), NbdError> {
    let (mut at, end) = (request.offset, request.offset + u64::from(request.len));
    let mut piece = vec![0; PIECE_BYTES as usize];
    let mut next = |piece: &mut Vec<u8>| {
        piece.resize((end - at).min(PIECE_BYTES) as usize, 0);
        disk.read_at(at, piece)?;
        at += piece.len() as u64;
        Ok::<bool, DiskError>(at < end)
    };
    match next(&mut piece) {
        Ok(_) => replies.simple_in_pieces(request.cookie, piece, |piece| {
            next(piece).map_err(|_| NbdError::protocol("a long read failed after its first piece"))
        }),
        Err(error) => replies.simple(request.cookie, error.errno(), &[]),
    }
}

fn block_status<W: Write>(
    request: &ClientRequest<'_>,
    choice: &ExportChoice,
    replies: &ReplyWriter<W>,
) -> Result<(), NbdError> {
    let Some((last, _)) = choice.contexts.split_last() else {
        let why = "no metadata context was negotiated";
        return replies.done(request.cookie, Err((EINVAL, why)));
    };
    let most = if request.flags & wire::REQUEST_ONE != 0 { 1 } else { EXTENTS };
    let mut found = Vec::with_capacity(choice.contexts.len());
    for context in &choice.contexts {
        match extents(&*choice.disk, &context.name, request, most) {
            Ok(extents) => found.push((context.id, extents)),
            Err(error) => return replies.done(request.cookie, Err(refused(error))),
        }
    }
    for (id, extents) in found {
        replies.extents(request.cookie, id, &extents, id == last.id)?;
    }
    Ok(())
}

/// Extents of one context from the start of a request on; adjacent extents with equal flags are merged.
fn extents(
    disk: &dyn ExportDisk,
    context: &str,
    request: &ClientRequest<'_>,
    most: usize,
) -> Result<Vec<(u32, u32)>, DiskError> {
    let (mut at, end) = (request.offset, request.offset + u64::from(request.len));
    let mut found: Vec<(u32, u32)> = Vec::new();
    while at < end {
        let run = match disk.run_at(context, at, end - at) {
            Ok(run) => run,
            // Return the extents found so far; the next request reports the error.
            Err(_) if !found.is_empty() => break,
            Err(error) => return Err(error),
        };
        // The length of the request is a u32, so that of the run is.
        let len = run.len.clamp(1, end - at) as u32;
        let is_full = found.len() == most;
        match found.last_mut() {
            Some((before, flags)) if *flags == run.flags => *before += len,
            _ if is_full => break,
            _ => found.push((len, run.flags)),
        }
        at += u64::from(len);
    }
    Ok(found)
}
