//! Requests of one connection: one thread reads them, a few answer.
//!
//! Generic over both halves, so that tests and the fuzzer feed it bytes.
//! Invariants
//! - No request is longer than [`limits::REQUEST_BYTES`]; its bytes are taken from a budget that all connections share.
//! - Who holds bytes of the budget while its own are on their way is not waited for for ever ([`Receive`]).
//! - What a client may not do gets an error, and the connection goes on; what makes the stream unreadable ends it.

use super::{
    budget::{Budget, Taken},
    export::{Disk, DiskError, Run},
    handshake::Choice,
    reply::Replies,
};
use crate::{
    NbdError,
    wire::{self, BASE_ALLOCATION, Command, Cursor, STATE_ZERO, limits},
};
use parking_lot::Mutex;
use std::{
    io::{self, Read, Write},
    sync::mpsc::{Receiver, sync_channel},
    time::{Duration, Instant},
};

/// Threads that answer requests of one connection.
const WORKERS: usize = 4;
/// Requests of one connection that wait for a thread.
const WAITING: usize = 16;
/// A structured read is answered in pieces of so many bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Most extents that one reply tells of one context.
const EXTENTS: usize = 4096;

/// A client that sends a write more slowly than this is no longer waited for, beyond one pause.
const LEAST_BYTES_PER_S: u64 = 64 << 10;

const EINVAL: u32 = 22;
const EPERM: u32 = 1;

/// A half that is read.
pub(crate) trait Receive: Read {
    /// Ends each read that gets nothing for so long; `None`: however long.
    fn set_pause(&mut self, most: Option<Duration>) -> io::Result<()>;
}

/// A request whose fields fit the disk.
struct Request<'a> {
    flags: u16,
    command: Command,
    cookie: u64,
    offset: u64,
    len: u32,
    /// Bytes of a write.
    data: Vec<u8>,
    /// What it takes of the budget until it is answered.
    _taken: Taken<'a>,
}

/// What came in.
enum Incoming<'a> {
    Request(Request<'a>),
    /// To be refused with a number, in words.
    Refused(u64, u32, &'static str),
    Left,
}

/// Answers requests until the client leaves or the stream breaks.
/// # Errors
/// Why it ended, if not in peace.
pub(crate) fn run<R: Receive, W: Write + Send>(
    mut reader: R,
    writer: W,
    choice: &Choice,
    budget: &Budget,
    pause: Duration,
) -> Result<(), NbdError> {
    let replies = Replies::new(writer, choice.is_structured);
    let (sender, receiver) = sync_channel::<Request<'_>>(WAITING);
    let receiver = Mutex::new(receiver);
    std::thread::scope(|scope| {
        // Goes with this scope's work, whatever ends it: then the workers end.
        let sender = sender;
        for _ in 0..WORKERS {
            let worker = std::thread::Builder::new().name("nbd-answer".to_owned());
            let (receiver, replies) = (&receiver, &replies);
            worker.spawn_scoped(scope, move || answer_all(receiver, choice, replies))?;
        }
        loop {
            match receive(&mut reader, &*choice.disk, budget, pause)? {
                // Workers end with the sender, so there is one to receive.
                Incoming::Request(request) => drop(sender.send(request)),
                Incoming::Refused(cookie, errno, why) => replies.done(cookie, Err((errno, why)))?,
                Incoming::Left => return Ok(()),
            }
        }
    })
}

/// Reads one request and what follows it, whatever is wrong with it.
fn receive<'a, R: Receive>(
    reader: &mut R,
    disk: &dyn Disk,
    budget: &'a Budget,
    pause: Duration,
) -> Result<Incoming<'a>, NbdError> {
    let mut header = [0; 28];
    reader.read_exact(&mut header)?;
    let mut cursor = Cursor::new(&header);
    if cursor.u32()? != wire::REQUEST_MAGIC {
        return Err(NbdError::protocol(
            "a request does not begin with its magic number",
        ));
    }
    let (flags, kind, cookie) = (cursor.u16()?, cursor.u16()?, cursor.u64()?);
    let (offset, len) = (cursor.u64()?, cursor.u32()?);
    let refused = |errno, why| Ok(Incoming::Refused(cookie, errno, why));
    let commands = [
        Command::Read,
        Command::Write,
        Command::Disconnect,
        Command::Flush,
        Command::Trim,
        Command::WriteZeroes,
        Command::BlockStatus,
    ];
    let Some(command) = commands.into_iter().find(|command| *command as u16 == kind) else {
        return refused(EINVAL, "unknown command");
    };
    let refusal = refusal(disk, command, flags, offset, len);
    if command == Command::Write {
        if len > limits::REQUEST_BYTES {
            return Err(NbdError::protocol(format!("a write claims {len} bytes")));
        }
        if let Some((errno, why)) = refusal {
            discard(reader, len)?;
            return refused(errno, why);
        }
    }
    if command == Command::Disconnect {
        return Ok(Incoming::Left);
    }
    if let Some((errno, why)) = refusal {
        return refused(errno, why);
    }
    let taken = budget.take(match command {
        Command::Read | Command::Write => u64::from(len),
        _ => 0,
    });
    let mut data = Vec::new();
    if command == Command::Write {
        data.resize(len as usize, 0);
        reader.set_pause(Some(pause))?;
        receive_data(reader, &mut data, pause)?;
        reader.set_pause(None)?;
    }
    Ok(Incoming::Request(Request {
        flags,
        command,
        cookie,
        offset,
        len,
        data,
        _taken: taken,
    }))
}

/// The bytes of a write, which has to come at some rate.
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
            return Err(NbdError::protocol("a write takes too long to come"));
        }
    }
    Ok(())
}

/// Why a request is not even tried.
fn refusal(
    disk: &dyn Disk,
    command: Command,
    flags: u16,
    offset: u64,
    len: u32,
) -> Option<(u32, &'static str)> {
    let allowed = match command {
        // Where nothing is written there is nothing to wait for.
        Command::Read => wire::REQUEST_FUA,
        Command::Write | Command::Trim | Command::Flush => wire::REQUEST_FUA,
        Command::WriteZeroes => wire::REQUEST_FUA | wire::REQUEST_NO_HOLE,
        Command::BlockStatus => wire::REQUEST_ONE | wire::REQUEST_FUA,
        Command::Disconnect => u16::MAX,
    };
    if flags & !allowed != 0 {
        return Some((EINVAL, "unknown flags"));
    }
    if matches!(command, Command::Flush | Command::Disconnect) {
        return None;
    }
    let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
    if writes && !disk.is_writable() {
        return Some((EPERM, "this export is read-only"));
    }
    let size = disk.size_bytes();
    if offset.checked_add(u64::from(len)).is_none_or(|end| end > size) {
        let errno = if writes { 28 } else { EINVAL };
        return Some((errno, "outside of the disk"));
    }
    if len == 0 && command == Command::BlockStatus {
        return Some((EINVAL, "nothing was asked about"));
    }
    if len > limits::REQUEST_BYTES && command == Command::Read {
        return Some((EINVAL, "a request has at most 32 MiB"));
    }
    None
}

/// Reads and forgets the bytes of a write that is refused.
fn discard<R: Read>(reader: &mut R, len: u32) -> Result<(), NbdError> {
    let copied = io::copy(&mut reader.take(u64::from(len)), &mut io::sink())?;
    match copied == u64::from(len) {
        true => Ok(()),
        false => Err(NbdError::Closed),
    }
}

/// Answers requests until there are no more, or replies fail; the rest are dropped then, and the reader meets the broken
/// stream itself.
fn answer_all<W: Write>(requests: &Mutex<Receiver<Request<'_>>>, choice: &Choice, replies: &Replies<W>) {
    let mut is_broken = false;
    loop {
        let next = requests.lock().recv();
        let Ok(request) = next else { return };
        is_broken = is_broken || answer(&request, choice, replies).is_err();
    }
}

fn answer<W: Write>(request: &Request<'_>, choice: &Choice, replies: &Replies<W>) -> Result<(), NbdError> {
    let disk = &*choice.disk;
    let (offset, len) = (request.offset, u64::from(request.len));
    let outcome = match request.command {
        Command::Read => return read(request, disk, replies),
        Command::BlockStatus => return block_status(request, choice, replies),
        Command::Write => disk.write_at(offset, &request.data),
        Command::Trim | Command::WriteZeroes if len == 0 => Ok(()),
        Command::Trim | Command::WriteZeroes => disk.zero(offset, len),
        Command::Flush => disk.flush(),
        Command::Disconnect => return Ok(()),
    };
    let wants_more = request.flags & wire::REQUEST_FUA != 0 && request.command != Command::Flush;
    let outcome = outcome.and_then(|()| if wants_more { disk.flush() } else { Ok(()) });
    replies.done(request.cookie, outcome.map_err(refused))
}

fn refused(error: DiskError) -> (u32, &'static str) {
    let why = match error {
        DiskError::Damaged => "this range is damaged",
        DiskError::NoSpace => "there is no room for it",
        DiskError::ReadOnly => "this export is read-only",
        DiskError::Closing => "this export is being closed",
    };
    (error.errno(), why)
}

fn read<W: Write>(request: &Request<'_>, disk: &dyn Disk, replies: &Replies<W>) -> Result<(), NbdError> {
    let cookie = request.cookie;
    if !replies.is_structured {
        // The number stands before the bytes: all of them must be there first.
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
            Ok(Run { len, flags }) if flags & STATE_ZERO != 0 => {
                let len = len.clamp(1, end - at);
                replies.hole(cookie, at, len as u32)?;
                len
            }
            run => {
                let len = run
                    .map_or(end - at, |run| run.len)
                    .clamp(1, end - at)
                    .min(PIECE_BYTES);
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

fn block_status<W: Write>(
    request: &Request<'_>,
    choice: &Choice,
    replies: &Replies<W>,
) -> Result<(), NbdError> {
    let Some((last, _)) = choice.contexts.split_last() else {
        let why = "no metadata context was agreed on";
        return replies.done(request.cookie, Err((EINVAL, why)));
    };
    let most = if request.flags & wire::REQUEST_ONE != 0 {
        1
    } else {
        EXTENTS
    };
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

/// Extents of one context from the start of a request on; neighbours that are alike are one.
fn extents(
    disk: &dyn Disk,
    context: &str,
    request: &Request<'_>,
    most: usize,
) -> Result<Vec<(u32, u32)>, DiskError> {
    let (mut at, end) = (request.offset, request.offset + u64::from(request.len));
    let mut found: Vec<(u32, u32)> = Vec::new();
    while at < end {
        let run = match disk.run_at(context, at, end - at) {
            Ok(run) => run,
            // What was found is worth more than the error, which the next question meets.
            Err(_) if !found.is_empty() => break,
            Err(error) => return Err(error),
        };
        // The request's length is a u32, so what lies within it is.
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
