//! [`Session`]: what a command works with.

use std::io::Write;

use datastore::Datastore;
use netconf::printable;

use super::error::CliError;
use super::output::Format;
use crate::host_link::{HostLinks, NoHostLinks};

/// The datastore, and where words go.
pub(super) struct Session<'a> {
    /// The datastore.
    pub(super) store: &'a Datastore,
    /// Its name for people.
    pub(super) datastore: String,
    /// The same as journal entries spell it.
    pub(super) spelling: String,
    /// The interfaces of this host.
    pub(super) links: &'a dyn HostLinks,
    /// Whether it came to be with this command.
    pub(super) is_new: bool,
    /// How results are printed.
    pub(super) format: Format,
    /// Results.
    pub(super) out: &'a mut dyn Write,
    /// Everything else that should be said.
    notices: &'a mut dyn Write,
}

/// How a command that worked ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing is wrong: exit status 0.
    Fine,
    /// It did its work, and something is wrong: exit status 1.
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

    /// Prints a line of the result. A text in it cannot begin another line.
    pub(super) fn say(&mut self, line: impl std::fmt::Display) -> Result<(), CliError> {
        writeln!(self.out, "{}", printable::line(&line.to_string())).map_err(CliError::Output)
    }

    /// Tells something that is not part of the result.
    pub(super) fn notice(&mut self, line: impl std::fmt::Display) {
        // A notice that nobody reads is no reason to stop.
        let _ = writeln!(self.notices, "{}", printable::line(&line.to_string()));
    }
}
