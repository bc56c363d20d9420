//! Several requests at the same time.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

/// Answers of `work` for each item, in their order; up to `threads` at a time, this thread among them. A thread that
/// cannot be started leaves its work to the others.
///
/// # Panics
/// When `work` panicked.
pub(super) fn map<I: Sync, T: Send>(items: &[I], threads: usize, work: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let mut answers = thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads.min(items.len()))
            .filter_map(|_| {
                thread::Builder::new().name("copal-remote".to_owned()).spawn_scoped(scope, run).ok()
            })
            .collect();
        let mut answers = run();
        for helper in helpers {
            answers.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        answers
    });
    answers.sort_unstable_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        for threads in [0, 1, 3, 200] {
            assert_eq!(
                map(&items, threads, |item| item * 2),
                items.iter().map(|item| item * 2).collect::<Vec<_>>()
            );
        }
    }
}
