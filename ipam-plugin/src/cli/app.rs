//! [`App`]: the datastore and the outputs of a command. [`Progress`]: a bar on stderr for work that takes a while.

use std::io::Write;
use std::time::Duration;

use datastore::Datastore;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use netconf::printable;

use super::documents::Format;
use super::error::CliError;
use crate::host_link::HostLinks;

/// Interval between two redraws of a progress bar.
const REDRAW: Duration = Duration::from_millis(100);

/// The datastore and the outputs of a command.
pub(super) struct App<'a> {
    /// The datastore.
    pub(super) store: &'a Datastore,
    /// The datastore's description in messages.
    pub(super) datastore: String,
    /// The datastore's name in journal entries.
    pub(super) journal_name: String,
    /// The interfaces of this host.
    pub(super) links: &'a dyn HostLinks,
    /// True if the file of the embedded datastore did not exist before this command.
    pub(super) is_new: bool,
    /// The format of results.
    pub(super) format: Format,
    /// The output for results.
    pub(super) out: &'a mut dyn Write,
    /// The output for all other messages.
    pub(super) notices: &'a mut dyn Write,
}

/// The outcome of a completed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandOutcome {
    /// No findings: exit status 0.
    Success,
    /// The command completed with findings or refusals: exit status 1.
    Findings,
}

impl App<'_> {
    /// Prints a line of the result. Line breaks in its text are escaped.
    pub(super) fn print_line(&mut self, line: impl std::fmt::Display) -> Result<(), CliError> {
        writeln!(self.out, "{}", printable::line(&line.to_string())).map_err(CliError::Output)
    }

    /// Prints a message that is not part of the result.
    pub(super) fn notice(&mut self, line: impl std::fmt::Display) {
        // Failure to print a notice does not stop the command.
        let _ = writeln!(self.notices, "{}", printable::line(&line.to_string()));
    }
}

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
    pub(super) fn set(&self, completed: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(completed as u64);
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
