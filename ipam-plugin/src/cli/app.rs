//! [`App`]: the datastore and the outputs of a command.

use std::io::Write;

use datastore::Datastore;
use netconf::printable;

use super::documents::Format;
use super::error::CliError;
pub(super) use super::progress::Progress;
use super::services_api::ServicesApi;
use dataplane::host_link::HostLinks;

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

    /// Shows that the command is busy with `what` until the value is dropped.
    #[must_use]
    pub(super) fn progress(&self, what: &'static str) -> Progress {
        Progress::new(what, 0)
    }

    pub(super) fn notice(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.notices, "{}", printable::line(&line.to_string()));
    }
}
