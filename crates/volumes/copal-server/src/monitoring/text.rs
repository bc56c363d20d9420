//! Numbers as Prometheus reads them: text, format 0.0.4.

use crate::{
    admission::Admitted,
    traffic::{LATENCY_ENDS_US, Traffic, TurnedAway},
};
use copal_proto::{Class, Method};
use std::{fmt::Write, sync::atomic::Ordering};

/// A page of numbers in the making. Samples of one name follow each other.
#[derive(Default)]
pub(super) struct Numbers {
    text: String,
}

impl Numbers {
    /// Begins a name: what it counts, and whether it only rises.
    pub(super) fn name(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// A sample of the name that was begun last.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text.push_str(name);
        for (at, (label, word)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{label}=\"{}\"", escaped(word));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// A number that rises and falls.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.name(name, "gauge", help);
        self.sample(name, &[], value);
    }

    /// A number that only rises.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.name(name, "counter", help);
        self.sample(name, &[], value);
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Calls and connections, as every server has them.
    pub(super) fn traffic(&mut self, traffic: &Traffic) {
        let called: Vec<_> = traffic.called().collect();
        self.name("copal_rpc_requests_total", "counter", "Calls that were answered.");
        for (method, counts) in &called {
            let labels = [("method", method.name())];
            self.sample("copal_rpc_requests_total", &labels, counts.calls.load(Ordering::Relaxed));
        }
        self.name(
            "copal_rpc_errors_total",
            "counter",
            "Calls that were refused, by the code of the refusal.",
        );
        for (method, counts) in &called {
            for (code, count) in counts.refusals() {
                let labels = [("method", method.name()), ("code", code)];
                self.sample("copal_rpc_errors_total", &labels, count);
            }
        }
        self.name("copal_rpc_bytes_total", "counter", "Bytes of messages.");
        for (method, counts) in &called {
            for (way, bytes) in [("in", &counts.bytes_in), ("out", &counts.bytes_out)] {
                let labels = [("method", method.name()), ("direction", way)];
                self.sample("copal_rpc_bytes_total", &labels, bytes.load(Ordering::Relaxed));
            }
        }
        self.name("copal_rpc_seconds", "histogram", "Time from a request to its answer.");
        for (method, counts) in &called {
            self.histogram(*method, counts.latencies(), counts.micros.load(Ordering::Relaxed));
        }
        self.name(
            "copal_connections_refused_total",
            "counter",
            "Connections that were closed because of what they sent, or did not.",
        );
        for why in TurnedAway::ALL {
            let labels = [("why", why.name())];
            self.sample("copal_connections_refused_total", &labels, traffic.turned_away_for(why));
        }
        self.admitted(traffic);
        let (accepted, open) = traffic.connections();
        self.counter("copal_connections_total", "Connections that were accepted.", accepted);
        self.gauge("copal_connections_open", "Connections that are there.", open);
    }

    fn admitted(&mut self, traffic: &Traffic) {
        let each = Class::ALL.map(|class| (class.name(), traffic.admitted(class)));
        type Of = fn(&Admitted) -> u64;
        let names: [(&str, &str, &str, Of); 4] = [
            ("copal_admitted_bytes", "gauge", "Bytes that calls under way hold, by class.", |of| {
                of.held_bytes
            }),
            ("copal_admitted_peak_bytes", "gauge", "The most that they held at a time.", |of| of.peak_bytes),
            ("copal_admitted_limit_bytes", "gauge", "The most that they may hold.", |of| of.limit_bytes),
            (
                "copal_calls_without_room_total",
                "counter",
                "Calls that were told to come again later.",
                |of| of.refused,
            ),
        ];
        for (name, kind, help, of) in names {
            self.name(name, kind, help);
            for (class, counted) in &each {
                self.sample(name, &[("class", class)], of(counted));
            }
        }
    }

    fn histogram(&mut self, method: Method, counts: impl Iterator<Item = u64>, micros: u64) {
        let mut below = 0;
        let ends = LATENCY_ENDS_US.iter().map(|end| seconds(*end));
        for (end, count) in ends.chain(["+Inf".to_owned()]).zip(counts) {
            below += count;
            let labels = [("method", method.name()), ("le", &end)];
            self.sample("copal_rpc_seconds_bucket", &labels, below);
        }
        let labels = [("method", method.name())];
        self.sample("copal_rpc_seconds_sum", &labels, seconds(micros));
        self.sample("copal_rpc_seconds_count", &labels, below);
    }
}

/// Microseconds as seconds.
pub(super) fn seconds(micros: u64) -> String {
    format!("{}", micros as f64 / 1e6)
}

/// Milliseconds of either sign as seconds.
pub(super) fn signed_seconds(ms: i64) -> String {
    format!("{}", ms as f64 / 1e3)
}

fn escaped(word: &str) -> String {
    word.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Called;
    use copal_proto::messages::failure::Code;
    use std::time::Duration;

    #[test]
    fn a_call_is_counted_in_its_bucket_and_every_later_one() {
        let traffic = Traffic::default();
        traffic.note(&Called {
            method: Method::Put,
            bytes_in: 4096,
            bytes_out: 2,
            took: Duration::from_millis(2),
            refusal: Some(Code::Stale.into()),
        });
        traffic.turn_away(TurnedAway::Garbage);
        let mut numbers = Numbers::default();
        numbers.traffic(&traffic);
        let text = numbers.finish();
        for line in [
            "copal_rpc_requests_total{method=\"Put\"} 1",
            "copal_rpc_errors_total{method=\"Put\",code=\"STALE\"} 1",
            "copal_rpc_bytes_total{method=\"Put\",direction=\"in\"} 4096",
            "copal_rpc_seconds_bucket{method=\"Put\",le=\"0.001\"} 0",
            "copal_rpc_seconds_bucket{method=\"Put\",le=\"0.0025\"} 1",
            "copal_rpc_seconds_bucket{method=\"Put\",le=\"+Inf\"} 1",
            "copal_rpc_seconds_sum{method=\"Put\"} 0.002",
            "copal_connections_refused_total{why=\"garbage\"} 1",
            "copal_admitted_bytes{class=\"bulk\"} 0",
            "copal_calls_without_room_total{class=\"recovery\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("method=\"Get\""), "{text}");
    }

    #[test]
    fn a_label_cannot_end_its_line() {
        let mut numbers = Numbers::default();
        numbers.sample("name", &[("label", "a\"b\nc\\")], 1);
        assert_eq!(numbers.finish(), "name{label=\"a\\\"b\\nc\\\\\"} 1\n");
    }
}
