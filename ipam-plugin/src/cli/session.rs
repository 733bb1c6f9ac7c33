//! [`Session`]: the datastore and the outputs of a command.

use std::io::Write;

use datastore::Datastore;
use netconf::printable;

use super::error::CliError;
use super::output::Format;
use crate::host_link::{HostLinks, NoHostLinks};

/// The datastore and the outputs of a command.
pub(super) struct Session<'a> {
    /// The datastore.
    pub(super) store: &'a Datastore,
    /// The datastore's description in messages.
    pub(super) datastore: String,
    /// The datastore's name in journal entries.
    pub(super) spelling: String,
    /// The interfaces of this host.
    pub(super) links: &'a dyn HostLinks,
    /// True if this command creates the datastore.
    pub(super) is_new: bool,
    /// The format of results.
    pub(super) format: Format,
    /// The output for results.
    pub(super) out: &'a mut dyn Write,
    /// The output for all other messages.
    notices: &'a mut dyn Write,
}

/// The outcome of a completed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// No findings: exit status 0.
    Fine,
    /// The command completed with findings or refusals: exit status 1.
    Wrong,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        store: &'a Datastore,
        format: Format,
        out: &'a mut dyn Write,
        notices: &'a mut dyn Write,
    ) -> Self {
        let (datastore, spelling) = (String::new(), String::new());
        Session { store, datastore, spelling, links: &NoHostLinks, is_new: false, format, out, notices }
    }

    /// Prints a line of the result. Line breaks in its text are escaped.
    pub(super) fn say(&mut self, line: impl std::fmt::Display) -> Result<(), CliError> {
        writeln!(self.out, "{}", printable::line(&line.to_string())).map_err(CliError::Output)
    }

    /// Prints a message that is not part of the result.
    pub(super) fn notice(&mut self, line: impl std::fmt::Display) {
        // Failure to print a notice does not stop the command.
        let _ = writeln!(self.notices, "{}", printable::line(&line.to_string()));
    }
}
