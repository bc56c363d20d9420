//! A simulated process: the [`Machine`] of the product code.
//!
//! Its tasks are polled while it is neither dead nor paused. The one thread also runs work that may block on
//! a device. Handed-over work waits for a moment, so that batches form, and runs before other blocking work.

use super::{hosts::takes_no_writes, network::Network, world::World};
use copal_client::machine::{Machine, Stream, within};
use copal_device::fault::FaultDevice;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Tasks {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

/// One simulated process.
pub(super) struct Process {
    me: Weak<Process>,
    /// Its number in the network; each start has a new one.
    pub(super) number: u64,
    /// Its host; links are cut between hosts.
    pub(super) host: u32,
    /// Certificate of its outgoing calls; none: unauthenticated.
    pub(super) certificate: Option<Arc<[u8]>>,
    pub(super) world: Arc<World>,
    network: Arc<Network>,
    is_dead: AtomicBool,
    is_paused: AtomicBool,
    /// Offset of its wall clock, ms.
    pub(super) skew_ms: Arc<AtomicI64>,
    /// Longest wait for its device, ms.
    pub(super) device_ms: Arc<AtomicU64>,
    tasks: Mutex<Tasks>,
    handed_over: Mutex<VecDeque<Work>>,
    /// Disk whose next failed write cuts the power of the process, before it sees the failure.
    doom: Mutex<Option<Arc<FaultDevice>>>,
}

/// State of a host that outlives its processes.
#[derive(Clone, Default)]
pub(super) struct Host {
    pub(super) skew_ms: Arc<AtomicI64>,
    pub(super) device_ms: Arc<AtomicU64>,
}

impl Process {
    pub(super) fn start(
        network: &Arc<Network>,
        number: u32,
        host: &Host,
        certificate: Option<Arc<[u8]>>,
    ) -> Arc<Process> {
        Arc::new_cyclic(|me| Process {
            me: me.clone(),
            number: network.next_process(),
            host: number,
            certificate,
            world: Arc::clone(&network.world),
            network: Arc::clone(network),
            is_dead: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            skew_ms: Arc::clone(&host.skew_ms),
            device_ms: Arc::clone(&host.device_ms),
            tasks: Mutex::default(),
            handed_over: Mutex::default(),
            doom: Mutex::default(),
        })
    }

    /// Spawns a task of the process.
    pub(super) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.task(Box::pin(task)));
    }

    /// Runs a future as a task of the process; `None`: the process died before the end.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = tokio::sync::oneshot::channel();
        self.spawn(async move {
            // The caller may have been dropped.
            let _ = tell.send(work.await);
        });
        told.await.ok()
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// Kills it: none of its tasks is polled again, and all are dropped soon.
    pub(super) fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.handed_over.lock().clear();
        self.wake_all();
    }

    /// Cuts its power in the middle of a write that the disk is going to fail.
    pub(super) fn doom(&self, disk: &Arc<FaultDevice>) {
        *self.doom.lock() = Some(Arc::clone(disk));
    }

    /// Whether that write has failed; then the process is dead, and silent.
    fn meets_its_doom(&self) -> bool {
        let disk = self.doom.lock().clone();
        let meets = disk.is_some_and(|disk| takes_no_writes(&disk));
        if meets {
            self.doom.lock().take();
            self.network.silence(self);
            self.kill();
        }
        meets
    }

    /// Pauses or resumes it.
    pub(super) fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
        self.wake_all();
    }

    fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.tasks.lock().wakers);
        for waker in wakers.into_values() {
            waker.wake();
        }
    }

    /// Runs the handed-over work.
    fn serve(&self) {
        loop {
            let work = self.handed_over.lock().pop_front();
            match work {
                Some(work) if !self.is_dead() => work(),
                _ => return,
            }
        }
    }

    fn device_wait(&self) -> Duration {
        let longest = self.device_ms.load(Ordering::Relaxed).max(3);
        self.world.between(0, longest)
    }

    fn me(&self) -> Arc<Process> {
        self.me.upgrade().expect("the caller holds it")
    }
}

/// A task of a process.
struct OfProcess {
    process: Arc<Process>,
    number: u64,
    task: Option<BoxFuture<'static, ()>>,
}

impl Future for OfProcess {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let process = Arc::clone(&self.process);
        let number = self.number;
        if !process.is_dead() && !process.meets_its_doom() {
            let waker = context.waker().clone();
            process.tasks.lock().wakers.insert(number, waker);
            if process.is_paused() {
                return Poll::Pending;
            }
            process.world.take_turn(process.host);
            if let Some(task) = &mut self.task
                && task.as_mut().poll(context).is_pending()
            {
                return Poll::Pending;
            }
        }
        self.task = None;
        process.tasks.lock().wakers.remove(&number);
        Poll::Ready(())
    }
}

impl Machine for Process {
    fn wall_ms(&self) -> u64 {
        let skew = self.skew_ms.load(Ordering::Relaxed);
        self.world.wall_ms().saturating_add_signed(skew)
    }

    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let process = self.me();
        let number = {
            let mut tasks = self.tasks.lock();
            tasks.next += 1;
            tasks.next
        };
        let machine: Arc<dyn Machine> = Arc::clone(&process) as _;
        Box::pin(OfProcess { process, number, task: Some(Box::pin(within(machine, task))) })
    }

    fn blocking_turn(&self) -> BoxFuture<'static, ()> {
        let process = self.me();
        Box::pin(async move {
            tokio::time::sleep(process.device_wait()).await;
            process.serve();
        })
    }

    fn queue_blocking(&self, work: Work) {
        self.handed_over.lock().push_back(work);
        let process = self.me();
        let serving = Arc::clone(&process);
        process.spawn(async move {
            tokio::time::sleep(serving.device_wait()).await;
            serving.serve();
        });
    }

    fn connect(
        &self,
        address: &str,
        name: ServerName<'static>,
    ) -> BoxFuture<'static, std::io::Result<Stream>> {
        let (process, address) = (self.me(), address.to_owned());
        Box::pin(async move {
            let network = Arc::clone(&process.network);
            network.connect(&process, &address, &name).await
        })
    }

    fn draw(&self) -> u64 {
        self.world.draw()
    }
}
