//! Metric families, encoded by `prometheus-client`: a name with its type and help, then its samples.
//!
//! Names appear in the source as dashboards read them. A counter's name ends with `_total`, which the crate
//! adds itself.
//!
//! Not here: the values (`data_metrics`, `master_metrics`, `traffic_metrics`).

use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, prometheus_text,
    },
    metrics::MetricType,
    registry::Registry,
};
use std::fmt;

/// Counts of a histogram: its buckets with their upper ends, and the sum of all values.
pub(super) struct BucketCounts {
    pub(super) buckets: Vec<(f64, u64)>,
    pub(super) sum: f64,
}

/// Writes families in order.
pub(super) struct FamilyEncoder<'a>(DescriptorEncoder<'a>);

impl FamilyEncoder<'_> {
    /// Writes a gauge.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// Writes gauges with labels.
    pub(super) fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Writes a counter.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        let mut family = self.0.encode_descriptor(stem(name), help, None, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// Writes counters with labels.
    pub(super) fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(stem(name), help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// Writes histograms with labels.
    pub(super) fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, BucketCounts)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, counts) in samples {
            let count = counts.buckets.iter().map(|(_, count)| count).sum();
            let mut sample = family.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(counts.sum, count, &counts.buckets, None)?;
        }
        Ok(())
    }
}

/// The name of a counter without the suffix that the crate adds.
fn stem(name: &str) -> &str {
    name.strip_suffix("_total").unwrap_or(name)
}

/// Writes a page for each request.
struct PageCollector<F>(F);

impl<F> fmt::Debug for PageCollector<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageCollector")
    }
}

impl<F> Collector for PageCollector<F>
where
    F: Fn(&mut FamilyEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
{
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut FamilyEncoder(encoder))
    }
}

/// The `/metrics` page of the families that `write` encodes.
/// # Errors
/// `write` failed.
pub(super) fn page(
    write: impl Fn(&mut FamilyEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(PageCollector(write)));
    let mut page = String::new();
    prometheus_text::encode(&mut page, &registry)?;
    Ok(page)
}

/// Microseconds as seconds.
pub(super) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// Milliseconds of either sign as seconds.
pub(super) fn signed_seconds(ms: i64) -> f64 {
    ms as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_end_its_line() {
        let write = |families: &mut FamilyEncoder<'_>| {
            families.gauges("copal_x", "A name.", [([("label", "a\"b\nc\\")], 1u64)])
        };
        let expected = "# HELP copal_x A name.\n# TYPE copal_x gauge\ncopal_x{label=\"a\\\"b\\nc\\\\\"} 1\n";
        assert_eq!(page(write).unwrap(), expected);
    }

    #[test]
    fn a_counter_has_its_suffix_once() {
        let expected = "# HELP copal_x_total A name.\n# TYPE copal_x_total counter\ncopal_x_total 7\n";
        assert_eq!(page(|families| families.counter("copal_x_total", "A name.", 7u64)).unwrap(), expected);
    }
}
