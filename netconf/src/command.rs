//! The operations that a runtime requests with `CNI_COMMAND`.

use std::fmt;

use crate::{CniError, Code, Version};

/// An operation of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Attaches a container to the network.
    Add,
    /// Detaches a container. Succeeds too if the container is not, or only partly, attached.
    Del,
    /// Verifies that an attachment is as ADD left it.
    Check,
    /// Succeeds if an ADD could be served now.
    Status,
    /// Removes the remains of attachments that no longer exist.
    Gc,
    /// Reports the supported versions of the CNI specification.
    Version,
}

impl Command {
    /// Every command.
    pub const ALL: [Command; 6] = [
        Self::Add,
        Self::Del,
        Self::Check,
        Self::Status,
        Self::Gc,
        Self::Version,
    ];

    /// Returns the value of `CNI_COMMAND`.
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

    /// Returns the command that `CNI_COMMAND` names. The match is case-sensitive.
    ///
    /// # Errors
    /// Code 4 with upstream's text for any other value.
    pub fn parse(text: &str) -> Result<Command, CniError> {
        Command::ALL
            .into_iter()
            .find(|command| command.as_str() == text)
            .ok_or_else(|| {
                let commands = Command::ALL.map(Command::as_str).join(", ");
                CniError::new(
                    Code::INVALID_ENVIRONMENT,
                    format!("unknown CNI_COMMAND: {text}"),
                )
                .with_details(format!("known are {commands}"))
            })
    }

    /// Returns the first version of the CNI specification that has the command.
    pub fn since(self) -> Version {
        match self {
            Command::Add | Command::Del | Command::Version => Version::V0_1_0,
            Command::Check => Version::V0_4_0,
            Command::Status | Command::Gc => Version::V1_1_0,
        }
    }

    /// Checks that a configuration of this version may be used with the command.
    ///
    /// # Errors
    /// Code 1 if `version` of the CNI specification does not have the command.
    pub fn check_version(self, version: Version) -> Result<(), CniError> {
        if version >= self.since() {
            return Ok(());
        }
        Err(CniError::new(
            Code::INCOMPATIBLE_VERSION,
            format!("config version does not allow {self}"),
        )
        .with_details(format!(
            "the configuration has cniVersion {version}; {self} needs at least {}",
            self.since()
        )))
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
    fn command_texts_round_trip() {
        for command in Command::ALL {
            assert_eq!(Command::parse(command.as_str()).unwrap(), command);
        }
    }

    #[test]
    fn unknown_command_is_an_environment_error() {
        for text in ["NONSENSE", "add", " ADD", "ADD "] {
            let error = Command::parse(text).unwrap_err();
            assert_eq!(error.code, Code::INVALID_ENVIRONMENT);
            assert_eq!(error.msg, format!("unknown CNI_COMMAND: {text}"));
        }
    }

    #[test]
    fn allowed_commands_depend_on_the_version() {
        use Command::{Add, Check, Del, Gc, Status};
        let table = [
            (Version::V0_1_0, vec![Add, Del, Command::Version]),
            (Version::V0_3_1, vec![Add, Del, Command::Version]),
            (Version::V0_4_0, vec![Add, Del, Check, Command::Version]),
            (Version::V1_0_0, vec![Add, Del, Check, Command::Version]),
            (
                Version::V1_1_0,
                vec![Add, Del, Check, Status, Gc, Command::Version],
            ),
        ];
        for (version, allowed) in table {
            for command in Command::ALL {
                let answer = command.check_version(version);
                assert_eq!(
                    answer.is_ok(),
                    allowed.contains(&command),
                    "{command} with {version}"
                );
                if let Err(error) = answer {
                    assert_eq!(
                        error.msg,
                        format!("config version does not allow {command}")
                    );
                }
            }
        }
    }
}
