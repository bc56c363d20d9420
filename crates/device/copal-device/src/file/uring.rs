//! Engine on io_uring: one thread owns the ring and everything in flight.
//!
//! Submitters put jobs into the queue. The thread moves them into the ring as the queue's rules allow, sleeps
//! in the kernel, and delivers results, so hooks run on it. It polls an eventfd that wakes a sleeping ring.
//!
//! Invariants
//! - The buffer of an I/O stays in its slot from submission until its completion is reaped; nothing else
//!   refers to it.
//! - The thread ends only when the queue is closed and nothing is in flight.
//! - Only reads and writes use the ring, see [`takes`]. The kernel would run a flush on a worker of its own:
//!   that wakes two threads more than a thread of this process that waits for the flush. Discards and zeroes
//!   are missing in the ring, or in older kernels.
//!
//! Not used, with reasons: SQPOLL (12 against 79 thousand IOPS on two shared cores), IOPOLL (needs poll
//! queues), linked entries (they serialise).
#![expect(unsafe_code, reason = "hands buffers to the kernel")]

use super::pread::{self, join_unless_self};
use super::queue::{IoJob, JobQueue, NextJob};
use super::target::FileTarget;
use crate::completion::enter_delivering_thread;
use crate::device::tally::IoTally;
use crate::{DeviceError, IoDone, IoKind};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::EventfdFlags;
use rustix::fd::{AsRawFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Largest number of I/Os in flight.
const DEPTH: usize = 64;
/// Entries of the submission ring: enough for all I/Os in flight and the wake-up poll.
const ENTRIES: u32 = 128;
/// Id of the wake-up poll's completion.
const WAKE: u64 = u64::MAX;

/// The engine. Dropping it finishes waiting jobs and joins its thread.
pub(crate) struct IoRing {
    queue: Arc<JobQueue>,
    thread: Option<JoinHandle<()>>,
}

impl IoRing {
    /// Starts the engine on `target`.
    /// # Errors
    /// The error of `io_uring_setup`: ENOSYS, or EPERM where it is blocked. The caller then uses the pool.
    pub(crate) fn start(target: &Arc<FileTarget>, tally: &Arc<IoTally>) -> io::Result<IoRing> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = Arc::new(rustix::event::eventfd(0, flags)?);
        let bell = Arc::clone(&event);
        let queue = Arc::new(JobQueue::new(DEPTH, move || signal_wake(&bell)));
        let (target, tally, jobs) = (Arc::clone(target), Arc::clone(tally), Arc::clone(&queue));
        let (report, started) = sync_channel(1);
        let builder = std::thread::Builder::new().name(String::from("copal-uring"));
        let thread = builder.spawn(move || serve(&target, &tally, &jobs, &event, &report))?;
        let ring = IoRing { queue, thread: Some(thread) };
        match started.recv() {
            Ok(result) => result.map(|()| ring),
            Err(_) => Err(io::Error::other("the thread of the ring ended before it began")),
        }
    }

    pub(crate) fn queue(&self) -> &JobQueue {
        &self.queue
    }
}

impl Drop for IoRing {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(thread) = self.thread.take() {
            join_unless_self(thread);
        }
    }
}

/// Whether the ring runs commands of this kind; otherwise the pool beside it does.
pub(crate) fn takes(kind: &IoKind) -> bool {
    matches!(kind, IoKind::Read(_) | IoKind::Write { .. })
}

fn signal_wake(event: &OwnedFd) {
    // It fails only when the counter is full, and then the ring is being woken already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// A ring with the newest features of the kernel; it must be made on the thread that submits.
fn make_ring(target: &FileTarget) -> io::Result<IoUring> {
    let newest = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES);
    let ring = match newest {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(ENTRIES)?,
        other => other?,
    };
    ring.submitter().register_files(&[target.fd.as_raw_fd()])?;
    Ok(ring)
}

fn serve(
    target: &Arc<FileTarget>,
    tally: &Arc<IoTally>,
    queue: &Arc<JobQueue>,
    event: &OwnedFd,
    report: &SyncSender<io::Result<()>>,
) {
    enter_delivering_thread();
    let made = make_ring(target);
    let ring = match made {
        Ok(ring) => ring,
        Err(error) => {
            // The starter waits for this. If it has ended, the error is not needed.
            let _ = report.send(Err(error));
            return;
        }
    };
    let _ = report.send(Ok(()));
    let mut reactor = RingReactor {
        ring,
        target,
        tally,
        queue,
        event,
        slots: (0..DEPTH).map(|_| None).collect(),
        free: (0..DEPTH).collect(),
        reaped: Vec::with_capacity(ENTRIES as usize * 2),
        polling: false,
    };
    if let Err(error) = reactor.run() {
        reactor.give_up(&error);
    }
    // The kernel releases a closed ring later; the file and its lock must not wait for that.
    if let Err(error) = reactor.ring.submitter().unregister_files() {
        tracing::debug!(%error, "a ring could not release its file early; it stays open until the kernel frees the ring");
    }
}

/// An I/O in the kernel.
struct InFlight {
    job: IoJob,
    /// Bytes transferred so far.
    done: u64,
}

struct RingReactor<'a> {
    ring: IoUring,
    target: &'a Arc<FileTarget>,
    tally: &'a Arc<IoTally>,
    queue: &'a Arc<JobQueue>,
    event: &'a OwnedFd,
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    reaped: Vec<(u64, i32)>,
    polling: bool,
}

impl RingReactor<'_> {
    fn run(&mut self) -> io::Result<()> {
        loop {
            if self.free.len() == DEPTH {
                // Nothing is in the kernel: sleep where waking is cheapest.
                match self.queue.take_blocking() {
                    Some(job) => self.accept(job),
                    None => return Ok(()),
                }
            }
            if self.fill() {
                return Ok(());
            }
            if self.free.len() == DEPTH {
                continue;
            }
            self.poll_wake();
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    // Interrupted, or the completion ring must be emptied first.
                    Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                    _ => return Err(error),
                },
            }
            self.reap();
        }
    }

    /// Starts jobs that may start; true once the queue is closed and nothing is left to do.
    fn fill(&mut self) -> bool {
        loop {
            match self.queue.take() {
                NextJob::Job(job) => self.accept(job),
                NextJob::Nothing => return false,
                NextJob::Closed => return true,
            }
        }
    }

    fn accept(&mut self, job: IoJob) {
        if let Err(error) = pread::allowed(self.target, &job.io.kind) {
            return self.answer(job, Err(error));
        }
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(InFlight { job, done: 0 });
                self.issue(slot);
            }
            None => unreachable!("the queue gives out at most as many jobs as there are slots"),
        }
    }

    /// Puts the rest of a slot's I/O into the ring.
    fn issue(&mut self, slot: usize) {
        let Some(InFlight { job, done }) = &mut self.slots[slot] else {
            return;
        };
        let at = job.io.at + *done;
        let file = types::Fixed(0);
        let skip = *done as usize;
        let entry = match &mut job.io.kind {
            IoKind::Read(buf) => {
                let end = skip + self.target.transfer_bytes(buf.len() - skip);
                let rest = &mut buf[skip..end];
                opcode::Read::new(file, rest.as_mut_ptr(), rest.len() as u32).offset(at).build()
            }
            IoKind::Write { buf, fua } => {
                let flags = if *fua { libc::RWF_DSYNC } else { 0 };
                let rest = &buf[skip..skip + self.target.transfer_bytes(buf.len() - skip)];
                opcode::Write::new(file, rest.as_ptr(), rest.len() as u32).offset(at).rw_flags(flags).build()
            }
            IoKind::Flush | IoKind::Discard(_) | IoKind::WriteZeroes(_) => {
                unreachable!("only commands that the ring takes are pushed to its queue")
            }
        };
        self.push(&entry.user_data(slot as u64));
    }

    fn poll_wake(&mut self) {
        if !self.polling {
            self.polling = true;
            let poll = opcode::PollAdd::new(types::Fd(self.event.as_raw_fd()), libc::POLLIN as u32);
            self.push(&poll.build().user_data(WAKE));
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: an entry names memory of a slot's buffer, and the slot keeps it until the completion is
        // reaped (`give_up` leaks it). The file is registered, and `target` outlives the ring.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the ring has room for everything in flight and one poll");
    }

    fn reap(&mut self) {
        let mut reaped = std::mem::take(&mut self.reaped);
        reaped.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (name, result) in reaped.drain(..) {
            if name == WAKE {
                self.polling = false;
                // Resets the counter, so that the next poll waits for the next wake-up.
                let _ = rustix::io::read(self.event, &mut [0u8; 8]);
            } else {
                self.completed(name as usize, result);
            }
        }
        self.reaped = reaped;
    }

    fn completed(&mut self, slot: usize, result: i32) {
        let Some(in_flight) = &mut self.slots[slot] else {
            return;
        };
        let kind = &in_flight.job.io.kind;
        let left = kind.len_bytes() - in_flight.done;
        let outcome = match result {
            error if error < 0 => {
                if matches!(-error, libc::EINTR | libc::EAGAIN) {
                    return self.issue(slot);
                }
                Err(io::Error::from_raw_os_error(-error))
            }
            0 if matches!(kind, IoKind::Read(_)) => Err(io::ErrorKind::UnexpectedEof.into()),
            0 => Err(io::ErrorKind::WriteZero.into()),
            moved if (moved as u64) < left => {
                in_flight.done += moved as u64;
                return self.issue(slot);
            }
            _ => Ok(()),
        };
        let Some(InFlight { job, .. }) = self.slots[slot].take() else {
            return;
        };
        self.free.push(slot);
        let io = &job.io;
        let result = outcome.map_err(|error| {
            let error = DeviceError::io(io.kind.name(), io.at, io.kind.len_bytes(), error);
            if pread::poisons(&io.kind) {
                self.target.poison(&error);
            }
            error
        });
        self.answer(job, result);
    }

    fn answer(&self, job: IoJob, result: Result<(), DeviceError>) {
        if result.is_ok() {
            self.tally.count(&job.io.kind);
        }
        self.queue.finished(job.io.class);
        let done = IoDone { result, buf: job.io.kind.into_buf() };
        job.reply.deliver_from_engine(done, self.target);
        self.queue.answered();
    }

    /// The ring itself failed: I/Os in flight may still reach memory and medium. Their buffers are leaked,
    /// the device is poisoned, and every command gets an error from now on.
    fn give_up(&mut self, error: &io::Error) {
        tracing::error!(%error, "the io_uring of a device failed; the device takes no more I/O");
        self.target.poison(&DeviceError::Poisoned);
        for slot in &mut self.slots {
            if let Some(InFlight { job, .. }) = slot.take() {
                std::mem::forget(job.io.kind);
                self.queue.finished(job.io.class);
                let done = IoDone { result: Err(DeviceError::Poisoned), buf: None };
                job.reply.deliver_from_engine(done, self.target);
                self.queue.answered();
            }
        }
        while let Some(job) = self.queue.take_blocking() {
            self.answer(job, Err(DeviceError::Poisoned));
        }
    }
}
