//! [`FileCheck`]: the result that the installer reports to the agent.

use crate::conflist::Selection;

/// The result of one check of the installed files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileCheck {
    /// Number of files that were missing or changed and have been restored.
    pub restored: u64,
    /// The error or the conflict that prevented the check or the restoration; `None` if there was
    /// none.
    pub problem: Option<String>,
    /// The reason why no file is restored, if the files are those of another installation.
    pub suspension: Option<String>,
    /// The configuration that container runtimes use.
    pub selection: Selection,
}
