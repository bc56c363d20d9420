//! Rate at which a volume of three replicas loses its last in-sync one, as formulas.

use serde_json::{Value, json};

/// Failure rates and recovery times of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// Transient failures of a server per second.
    pub(crate) transient_per_s: f64,
    /// Permanent failures of a server per second.
    pub(crate) permanent_per_s: f64,
    /// Seconds from a transient failure until its replicas are in sync again.
    pub(crate) transient_s: f64,
    /// Seconds from a permanent failure until new replicas are in sync.
    pub(crate) permanent_s: f64,
}

/// Losses of one volume per second, by the number of permanent failures among the three.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeathRates {
    pub(crate) by_permanent: [f64; 4],
}

impl DeathRates {
    pub(crate) fn sum(&self) -> f64 {
        self.by_permanent.iter().sum()
    }

    pub(crate) fn json(&self, volume_seconds: f64) -> Value {
        let [tf3, tf2, tf1, pf3] = self.by_permanent.map(|rate| rate * volume_seconds);
        json!({"3tf": tf3, "2tf1pf": tf2, "1tf2pf": tf1, "3pf": pf3, "sum": self.sum() * volume_seconds})
    }
}

/// Table 3 of the paper. Where two different recovery times overlap, its mixed rows count squares of them.
/// They therefore exceed the rates of constant recovery times ([`exact`]), by more as the times differ more.
pub(crate) fn paper(rates: Rates) -> DeathRates {
    let (tf, pf) = (rates.transient_per_s, rates.permanent_per_s);
    let (t2, p2) = (rates.transient_s.powi(2), rates.permanent_s.powi(2));
    DeathRates {
        by_permanent: [
            3.0 * tf.powi(3) * t2,
            3.0 * pf * tf.powi(2) * (p2 + 2.0 * t2),
            3.0 * pf.powi(2) * tf * (2.0 * p2 + t2),
            3.0 * pf.powi(3) * p2,
        ],
    }
}

/// Rates for constant recovery times: three intervals of lengths a, b and c that begin at rates x, y and z
/// are all open xyz (ab + ac + bc) times a second.
pub(crate) fn exact(rates: Rates) -> DeathRates {
    let (tf, pf) = (rates.transient_per_s, rates.permanent_per_s);
    let (t, p) = (rates.transient_s, rates.permanent_s);
    DeathRates {
        by_permanent: [
            3.0 * tf.powi(3) * t * t,
            3.0 * pf * tf.powi(2) * (2.0 * p * t + t * t),
            3.0 * pf.powi(2) * tf * (p * p + 2.0 * p * t),
            3.0 * pf.powi(3) * p * p,
        ],
    }
}
