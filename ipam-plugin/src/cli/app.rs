//! [`App`]: the datastore and the outputs of a command. [`Progress`]: a bar on stderr.

use std::io::Write;
use std::time::Duration;

use datastore::Datastore;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use netconf::printable;

use super::documents::Format;
use super::error::CliError;
use super::services_api::ServicesApi;
use crate::host_link::HostLinks;

const REDRAW: Duration = Duration::from_millis(100);

pub(super) struct App<'a> {
    pub(super) store: &'a Datastore,
    /// The API server that has the Services, beside a datastore that is none.
    pub(super) services: &'a ServicesApi,
    /// The datastore's description in messages.
    pub(super) datastore: String,
    /// The datastore's name in journal entries.
    pub(super) journal_name: String,
    pub(super) links: &'a dyn HostLinks,
    /// True if the file of the embedded datastore did not exist before this command.
    pub(super) is_new: bool,
    pub(super) format: Format,
    /// The output for results.
    pub(super) out: &'a mut dyn Write,
    /// The output for all other messages.
    pub(super) notices: &'a mut dyn Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandOutcome {
    /// Exit status 0.
    Success,
    /// Exit status 1.
    Findings,
}

impl App<'_> {
    /// Line breaks in the text are escaped.
    pub(super) fn print_line(&mut self, line: impl std::fmt::Display) -> Result<(), CliError> {
        writeln!(self.out, "{}", printable::line(&line.to_string())).map_err(CliError::Output)
    }

    pub(super) fn notice(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.notices, "{}", printable::line(&line.to_string()));
    }
}

/// A bar that disappears when it is dropped.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// indicatif draws nothing if stderr is not a terminal.
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

    pub(super) fn set(&self, completed: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(completed as u64);
    }

    pub(super) fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
