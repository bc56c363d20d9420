//! Virtual clock, and the links that carry bytes: disks, and connections to the back end.
//!
//! A link shares its speed evenly among its flows. This module has no thread and no real clock: simultaneous
//! events happen in the order in which they were entered.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Nanoseconds since the run began.
pub(super) type Nanos = u64;

pub(super) fn nanos(seconds: f64) -> Nanos {
    (seconds * 1e9).ceil() as Nanos
}

pub(super) fn hours(nanos: Nanos) -> f64 {
    nanos as f64 / 3.6e12
}

/// Index of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkId(pub(super) usize);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due<T> {
    Timer(T),
    Link { link: LinkId, version: u64 },
}

/// Queue of events by time; the end of a flow or timer yields its tag.
pub(super) struct Engine<T> {
    now: Nanos,
    entered: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, Due<T>)>>,
    links: Vec<Link<T>>,
}

impl<T: Copy + Ord> Engine<T> {
    pub(super) fn new() -> Engine<T> {
        Engine { now: 0, entered: 0, events: BinaryHeap::new(), links: Vec::new() }
    }

    pub(super) fn now(&self) -> Nanos {
        self.now
    }

    pub(super) fn link(&mut self, bytes_per_s: f64) -> LinkId {
        self.links.push(Link::new(bytes_per_s));
        LinkId(self.links.len() - 1)
    }

    pub(super) fn after(&mut self, seconds: f64, tag: T) {
        self.enter(self.now + nanos(seconds), Due::Timer(tag));
    }

    /// Sends bytes over a link; 0 bytes end at once, but in their order.
    pub(super) fn send(&mut self, LinkId(link): LinkId, bytes: f64, tag: T) {
        let number = self.entered;
        self.links[link].settle(self.now);
        self.links[link].add(bytes, number, tag);
        self.schedule(link);
    }

    /// Tag of the next event; `None`: no event is left.
    pub(super) fn next(&mut self) -> Option<T> {
        while let Some(Reverse((at, _, due))) = self.events.pop() {
            match due {
                Due::Timer(tag) => {
                    self.now = at;
                    return Some(tag);
                }
                Due::Link { link, version } if self.links[link.0].version == version => {
                    self.now = at;
                    let tag = self.links[link.0].take_first(at);
                    self.schedule(link.0);
                    return tag;
                }
                // Another flow began meanwhile.
                Due::Link { .. } => {}
            }
        }
        None
    }

    fn enter(&mut self, at: Nanos, due: Due<T>) {
        self.events.push(Reverse((at, self.entered, due)));
        self.entered += 1;
    }

    fn schedule(&mut self, link: usize) {
        self.links[link].version += 1;
        let version = self.links[link].version;
        if let Some(seconds) = self.links[link].seconds_left() {
            let link = LinkId(link);
            self.enter(self.now + nanos(seconds), Due::Link { link, version });
        }
    }
}

struct Link<T> {
    bytes_per_s: f64,
    /// Bytes that a flow would have received since the beginning.
    served: f64,
    /// Flows by the value of `served` at which they end, as bits: those of positive numbers have the same
    /// order.
    flows: BTreeMap<(u64, u64), T>,
    settled: Nanos,
    version: u64,
}

impl<T> Link<T> {
    fn new(bytes_per_s: f64) -> Link<T> {
        Link { bytes_per_s, served: 0.0, flows: BTreeMap::new(), settled: 0, version: 0 }
    }

    /// Adds the bytes served since the last call.
    fn settle(&mut self, now: Nanos) {
        let bytes = (now - self.settled) as f64 / 1e9 * self.bytes_per_s;
        self.settled = now;
        if !self.flows.is_empty() {
            self.served += bytes / self.flows.len() as f64;
        }
    }

    fn add(&mut self, bytes: f64, number: u64, tag: T) {
        let end = self.served + bytes.max(0.0);
        self.flows.insert((end.to_bits(), number), tag);
    }

    fn seconds_left(&self) -> Option<f64> {
        let ((end, _), _) = self.flows.first_key_value()?;
        let left = (f64::from_bits(*end) - self.served).max(0.0);
        Some(left * self.flows.len() as f64 / self.bytes_per_s)
    }

    /// Removes the flow that ends now.
    fn take_first(&mut self, now: Nanos) -> Option<T> {
        self.settle(now);
        let ((end, _), tag) = self.flows.pop_first()?;
        // Corrects rounding of the clock.
        self.served = self.served.max(f64::from_bits(end));
        Some(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tags with the second of their events.
    fn play(engine: &mut Engine<u32>) -> Vec<(u32, u64)> {
        std::iter::from_fn(|| engine.next().map(|tag| (tag, (engine.now() + 500_000_000) / 1_000_000_000)))
            .collect()
    }

    #[test]
    fn flows_share_a_link_evenly() {
        let mut engine = Engine::new();
        let link = engine.link(10.0);
        engine.send(link, 100.0, 1);
        engine.send(link, 50.0, 2);
        assert_eq!(play(&mut engine), [(2, 10), (1, 15)]);
    }

    #[test]
    fn a_later_flow_slows_running_ones() {
        let mut engine = Engine::new();
        let link = engine.link(10.0);
        engine.send(link, 100.0, 1);
        engine.after(5.0, 9);
        assert_eq!(engine.next(), Some(9));
        engine.send(link, 10.0, 2);
        engine.send(link, 0.0, 3);
        assert_eq!(play(&mut engine), [(3, 5), (2, 7), (1, 11)]);
        assert_eq!(engine.next(), None);
    }
}
