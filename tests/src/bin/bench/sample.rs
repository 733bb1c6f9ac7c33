//! Measured durations and their statistics.

use std::time::Duration;

/// Durations sorted by length.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(Vec<Duration>);

impl FromIterator<Duration> for Sample {
    fn from_iter<I: IntoIterator<Item = Duration>>(durations: I) -> Self {
        let mut durations: Vec<_> = durations.into_iter().collect();
        durations.sort_unstable();
        Self(durations)
    }
}

impl Sample {
    /// Returns the duration at `percent` percent of the sorted durations, or zero if nothing was
    /// measured.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0
            .get(last * percent / 100)
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn p50(&self) -> Duration {
        self.percentile(50)
    }

    pub(crate) fn min(&self) -> Duration {
        self.percentile(0)
    }
}

/// Formats a duration in milliseconds.
pub(crate) fn ms(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1e3)
}
