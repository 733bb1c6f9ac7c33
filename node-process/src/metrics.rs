//! [`metrics!`](crate::metrics!): the declaration of metrics of Prometheus. The name, the help, the
//! type and the labels of a metric stand in one place.

use prometheus::core::{
    Atomic, Collector, GenericCounter, GenericCounterVec, GenericGauge, GenericGaugeVec,
};
use prometheus::{Histogram, HistogramOpts, HistogramVec, Opts};

pub use prometheus;

/// Reason why a metric can be made: a wrong declaration fails in each test.
const VALID: &str = "a constant name, constant labels and increasing buckets";

/// The declaration of one metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Name of the metric.
    pub name: &'static str,
    /// Help for readers of the metric.
    pub help: &'static str,
    /// Names of the labels, for a type with labels.
    pub labels: &'static [&'static str],
    /// Upper limits of the buckets of a histogram.
    pub buckets: &'static [f64],
}

impl Metric {
    /// Returns the name and the help, for a metric that gets constant labels.
    pub fn opts(&self) -> Opts {
        Opts::new(self.name, self.help.trim_start())
    }

    fn histogram_opts(&self) -> HistogramOpts {
        HistogramOpts::from(self.opts()).buckets(self.buckets.to_vec())
    }
}

/// A type of metric, with or without labels.
pub trait Family: Collector + Clone + 'static {
    /// Makes the metric. A metric with labels has no sample yet.
    fn declared(metric: &Metric) -> Self;
}

impl<P: Atomic + 'static> Family for GenericCounter<P> {
    fn declared(metric: &Metric) -> Self {
        Self::with_opts(metric.opts()).expect(VALID)
    }
}

impl<P: Atomic + 'static> Family for GenericGauge<P> {
    fn declared(metric: &Metric) -> Self {
        Self::with_opts(metric.opts()).expect(VALID)
    }
}

impl Family for Histogram {
    fn declared(metric: &Metric) -> Self {
        Self::with_opts(metric.histogram_opts()).expect(VALID)
    }
}

impl<P: Atomic + 'static> Family for GenericCounterVec<P> {
    fn declared(metric: &Metric) -> Self {
        Self::new(metric.opts(), metric.labels).expect(VALID)
    }
}

impl<P: Atomic + 'static> Family for GenericGaugeVec<P> {
    fn declared(metric: &Metric) -> Self {
        Self::new(metric.opts(), metric.labels).expect(VALID)
    }
}

impl Family for HistogramVec {
    fn declared(metric: &Metric) -> Self {
        Self::new(metric.histogram_opts(), metric.labels).expect(VALID)
    }
}

/// A type of metric that is one of several with the same name and another value of the label.
pub trait Series {
    /// All metrics of that name.
    type Family: Family;
    /// Returns the metric with that value of the only label.
    fn with_label(family: &Self::Family, value: &str) -> Self;
}

impl<P: Atomic + 'static> Series for GenericCounter<P> {
    type Family = GenericCounterVec<P>;

    fn with_label(family: &Self::Family, value: &str) -> Self {
        family.with_label_values(&[value])
    }
}

impl<P: Atomic + 'static> Series for GenericGauge<P> {
    type Family = GenericGaugeVec<P>;

    fn with_label(family: &Self::Family, value: &str) -> Self {
        family.with_label_values(&[value])
    }
}

impl Series for Histogram {
    type Family = HistogramVec;

    fn with_label(family: &Self::Family, value: &str) -> Self {
        family.with_label_values(&[value])
    }
}

/// Declares metrics as the fields of a struct, which is a
/// [`Collector`] of all of them.
///
/// The comment of a field is the help. The type is one of the crate [`prometheus`]. Names of
/// labels are in brackets, and the buckets of a histogram follow `in`:
///
/// ```
/// use node_process::metrics;
/// use node_process::metrics::prometheus::{HistogramVec, IntCounter};
///
/// const SECONDS: [f64; 2] = [0.1, 1.0];
///
/// metrics! {
///     /// Metrics of connections.
///     pub struct ConnectionMetrics {
///         /// Failed connections of clients.
///         failed: IntCounter = "connections_failed_total",
///         /// Time that a connection was open, in seconds.
///         open: HistogramVec = "connection_open_seconds"["client"] in SECONDS,
///     }
/// }
///
/// let metrics = ConnectionMetrics::new();
/// metrics.failed.inc();
/// metrics.open.with_label_values(&["kubelet"]).observe(0.2);
/// ```
///
/// Metrics with the same only label are declared together, and used by its values:
///
/// ```
/// use node_process::metrics;
/// use node_process::metrics::prometheus::IntCounter;
///
/// metrics! {
///     /// Metrics of the watch of one kind.
///     pub struct WatchMetrics of WatchFamilies["kind"] {
///         /// Full lists of a kind.
///         lists: IntCounter = "lists_total",
///     }
/// }
///
/// let families = WatchFamilies::new();
/// families.with_label("Pod").lists.inc();
/// ```
#[macro_export]
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        $vis:vis struct $metrics:ident {$(
            $(#[doc = $help:literal])+
            $field_vis:vis $field:ident: $family:ty =
                $name:literal $([$($label:literal),+])? $(in $buckets:ident)?,
        )+}
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        $vis struct $metrics {$(
            $(#[doc = $help])+
            $field_vis $field: $family,
        )+}

        impl $metrics {
            /// Makes the metrics. Those with labels have no samples yet.
            $vis fn new() -> Self {
                use $crate::metrics::{Family, Metric};
                $metrics {$(
                    $field: <$family as Family>::declared(&Metric {
                        name: $name,
                        help: concat!($($help),+),
                        labels: &[$($($label),+)?],
                        buckets: [$(&$buckets as &[f64],)? &[]][0],
                    }),
                )+}
            }
        }

        impl $crate::metrics::prometheus::core::Collector for $metrics {
            fn desc(&self) -> Vec<&$crate::metrics::prometheus::core::Desc> {
                [$(self.$field.desc()),+].concat()
            }

            fn collect(&self) -> Vec<$crate::metrics::prometheus::proto::MetricFamily> {
                [$(self.$field.collect()),+].concat()
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $metrics:ident of $families:ident[$label:literal] {$(
            $(#[doc = $help:literal])+
            $field_vis:vis $field:ident: $series:ty = $name:literal $(in $buckets:ident)?,
        )+}
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        $vis struct $metrics {$(
            $(#[doc = $help])+
            $field_vis $field: $series,
        )+}

        $crate::metrics! {
            /// The metrics of all values of the label.
            $vis struct $families {$(
                $(#[doc = $help])+
                $field: <$series as $crate::metrics::Series>::Family =
                    $name[$label] $(in $buckets)?,
            )+}
        }

        impl $families {
            /// Returns the metrics with that value of the label.
            $vis fn with_label(&self, value: &str) -> $metrics {
                $metrics {$(
                    $field: <$series as $crate::metrics::Series>::with_label(&self.$field, value),
                )+}
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramVec, IntCounter, IntGauge, Registry, TextEncoder};

    const SECONDS: [f64; 2] = [0.5, 1.0];

    crate::metrics! {
        struct OfProcess {
            /// Failures that were not
            /// tried again.
            failures: IntCounter = "failures_total",
            /// Time of a request, in seconds.
            took: HistogramVec = "took_seconds"["verb", "kind"] in SECONDS,
        }
    }

    crate::metrics! {
        /// Metrics of one queue.
        struct OfQueue of OfQueues["name"] {
            /// Keys that wait.
            depth: IntGauge = "depth",
        }
    }

    #[test]
    fn declared_metric_has_its_name_help_type_and_labels() {
        let (registry, process, queues) = (Registry::new(), OfProcess::new(), OfQueues::new());
        registry.register(Box::new(process.clone())).unwrap();
        registry.register(Box::new(queues.clone())).unwrap();
        process.failures.inc();
        process
            .took
            .with_label_values(&["get", "pods"])
            .observe(0.7);
        queues.with_label("policy").depth.set(3);
        let text = TextEncoder::new().encode_to_string(&registry.gather());
        let expected = "\
# HELP depth Keys that wait.
# TYPE depth gauge
depth{name=\"policy\"} 3
# HELP failures_total Failures that were not tried again.
# TYPE failures_total counter
failures_total 1
# HELP took_seconds Time of a request, in seconds.
# TYPE took_seconds histogram
took_seconds_bucket{kind=\"pods\",verb=\"get\",le=\"0.5\"} 0
took_seconds_bucket{kind=\"pods\",verb=\"get\",le=\"1\"} 1
took_seconds_bucket{kind=\"pods\",verb=\"get\",le=\"+Inf\"} 1
took_seconds_sum{kind=\"pods\",verb=\"get\"} 0.7
took_seconds_count{kind=\"pods\",verb=\"get\"} 1
";
        assert_eq!(text.unwrap(), expected);
        registry
            .register(Box::new(OfProcess::new()))
            .expect_err("a metric with that name exists");
    }
}
