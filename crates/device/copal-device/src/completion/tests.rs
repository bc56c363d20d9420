//! Each way of delivery, on one thread, across threads, and through a driver.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_ready_value_is_returned_at_once() {
    assert_eq!(Completion::ready(7).wait(), 7);
    let mut twice = Completion::ready(7);
    assert!(twice.is_ready());
    assert_eq!(twice.try_take(), Some(7));
    assert_eq!(twice.try_take(), None);
}

#[test]
fn a_thread_waits_for_another() {
    for _ in 0..200 {
        let (completer, completion) = Completion::pair(None);
        let waiter = std::thread::spawn(move || completion.wait());
        completer.complete(String::from("here"));
        assert_eq!(waiter.join().unwrap(), "here");
    }
}

#[test]
fn try_take_is_empty_until_delivered() {
    let (completer, mut completion) = Completion::pair(None);
    assert_eq!(completion.try_take(), None);
    completer.complete(3);
    assert_eq!(completion.try_take(), Some(3));
}

#[test]
fn hooks_run_whether_hung_before_or_after_delivery() {
    let sum = Arc::new(AtomicUsize::new(0));
    let add = |sum: &Arc<AtomicUsize>| {
        let sum = Arc::clone(sum);
        move |value| {
            sum.fetch_add(value, Ordering::Relaxed);
        }
    };
    let (completer, completion) = Completion::pair(None);
    completion.on_complete(add(&sum));
    completer.complete(1);
    let (completer, completion) = Completion::pair(None);
    completer.complete(10);
    completion.on_complete(add(&sum));
    Completion::ready(100).on_complete(add(&sum));
    assert_eq!(sum.load(Ordering::Relaxed), 111);
}

#[test]
fn map_and_join_keep_order_for_any_order_of_arrival() {
    let (pairs, completions): (Vec<_>, Vec<_>) = (0..5).map(|_| Completion::<u32>::pair(None)).unzip();
    let mut parts: Vec<_> = completions.into_iter().map(|c| c.map(|value| value * 2)).collect();
    parts.push(Completion::ready(100));
    let joined = Completion::join(parts);
    for (index, completer) in pairs.into_iter().enumerate().rev() {
        assert!(!joined.is_ready());
        completer.complete(index as u32);
    }
    assert_eq!(joined.wait(), [0, 2, 4, 6, 8, 100]);
    assert_eq!(Completion::<u32>::join(Vec::new()).wait(), Vec::<u32>::new());
}

#[test]
fn a_detached_completion_lets_its_operation_finish() {
    let (completer, completion) = Completion::pair(None);
    drop(completion);
    completer.complete(1);
}

#[test]
#[should_panic(expected = "dropped before it completed")]
fn an_abandoned_operation_panics_its_waiter() {
    let (completer, completion) = Completion::<u32>::pair(None);
    let mapped = completion.map(|value| value + 1);
    drop(completer);
    mapped.wait();
}

/// Delivers one queued completion per event.
#[derive(Default)]
struct Queue(Mutex<Vec<Completer<usize>>>);

impl CompletionDriver for Queue {
    fn drive(&self) -> bool {
        let next = self.0.lock().pop();
        let Some(completer) = next else { return false };
        let left = self.0.lock().len();
        completer.complete(left);
        true
    }
}

#[test]
fn waiting_drives_a_device_without_a_thread() {
    let queue = Arc::new(Queue::default());
    let driver: Arc<dyn CompletionDriver> = queue.clone();
    let (completers, mut completions): (Vec<_>, Vec<_>) =
        (0..4).map(|_| Completion::pair(Some(Arc::clone(&driver)))).unzip();
    *queue.0.lock() = completers;
    let first = completions.remove(0).map(|left| left + 10);
    assert_eq!(first.wait(), 10, "the first was queued first and driven last");
    assert!(completions.iter().all(Completion::is_ready));
}

#[test]
fn several_threads_wait_on_one_driver() {
    let queue = Arc::new(Queue::default());
    let driver: Arc<dyn CompletionDriver> = queue.clone();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (queue, driver) = (Arc::clone(&queue), Arc::clone(&driver));
            std::thread::spawn(move || {
                for _ in 0..300 {
                    let (completer, completion) = Completion::pair(Some(Arc::clone(&driver)));
                    queue.0.lock().push(completer);
                    completion.wait();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn the_future_wakes_and_drives() {
    struct Count(AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let mut cx = Context::from_waker(&waker);

    let (completer, mut completion) = Completion::pair(None);
    assert!(Pin::new(&mut completion).poll(&mut cx).is_pending());
    completer.complete(5);
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert_eq!(Pin::new(&mut completion).poll(&mut cx), Poll::Ready(5));

    let queue = Arc::new(Queue::default());
    let (completer, mut driven) = Completion::pair(Some(queue.clone() as Arc<dyn CompletionDriver>));
    queue.0.lock().push(completer);
    assert_eq!(Pin::new(&mut driven).poll(&mut cx), Poll::Ready(0));
}

#[test]
fn a_delivering_thread_refuses_to_wait_for_a_missing_value() {
    let waiter = std::thread::spawn(|| {
        enter_delivering_thread();
        assert_eq!(Completion::ready(1).wait(), 1, "a present value needs no waiting");
        let (_completer, completion) = Completion::<u32>::pair(None);
        completion.wait()
    });
    assert!(waiter.join().is_err());
}
