//! The operations a runtime asks for with `CNI_COMMAND`.

use std::fmt;

use crate::{CniError, Code, Version};

/// An operation of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Attach a container to the network.
    Add,
    /// Detach it, as far as it is attached.
    Del,
    /// Verify that an attachment is as ADD left it.
    Check,
    /// Say whether an ADD could be served now.
    Status,
    /// Remove what belongs to attachments that no longer exist.
    Gc,
    /// Say which versions of the specification are served.
    Version,
}

impl Command {
    /// Every command.
    pub const ALL: [Command; 6] =
        [Command::Add, Command::Del, Command::Check, Command::Status, Command::Gc, Command::Version];

    /// The value of `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Status => "STATUS",
            Command::Gc => "GC",
            Command::Version => "VERSION",
        }
    }

    /// The command that `CNI_COMMAND` names; letter case counts.
    ///
    /// # Errors
    /// Code 4 with upstream's text for any other value.
    pub fn parse(text: &str) -> Result<Command, CniError> {
        Command::ALL.into_iter().find(|command| command.as_str() == text).ok_or_else(|| {
            let known: Vec<_> = Command::ALL.iter().map(|command| command.as_str()).collect();
            CniError::new(Code::INVALID_ENVIRONMENT, format!("unknown CNI_COMMAND: {text}"))
                .with_details(format!("known are {}", known.join(", ")))
        })
    }

    /// The first version of the specification that has the command.
    pub fn since(self) -> Version {
        match self {
            Command::Add | Command::Del | Command::Version => Version::V0_1_0,
            Command::Check => Version::V0_4_0,
            Command::Status | Command::Gc => Version::V1_1_0,
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for command in Command::ALL {
            assert_eq!(Command::parse(command.as_str()).unwrap(), command);
        }
    }

    #[test]
    fn unknown_commands_are_code_4() {
        for text in ["NONSENSE", "add", " ADD", "ADD "] {
            let error = Command::parse(text).unwrap_err();
            assert_eq!(error.code, Code::INVALID_ENVIRONMENT);
            assert_eq!(error.msg, format!("unknown CNI_COMMAND: {text}"));
        }
    }
}
