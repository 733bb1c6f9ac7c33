//! Progress on stderr if stderr is a terminal, and only for work that takes a while.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval between redraws.
const REDRAW: Duration = Duration::from_millis(100);

/// A bar that disappears when it is dropped.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Creates a bar over `total` steps of `what`. indicatif draws nothing if stderr is not a terminal.
    pub(super) fn new(what: &'static str, total: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix:>24} [{bar:40}] {human_pos}/{human_len} {elapsed}");
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("## "));
        }
        bar.set_prefix(what);
        bar.enable_steady_tick(REDRAW);
        Progress(bar)
    }

    /// Sets the number of completed steps and the total.
    pub(super) fn at(&self, done: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
    }

    /// Counts a completed step.
    pub(super) fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
