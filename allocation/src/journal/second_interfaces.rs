//! Records of interface names of a pod's container that neither the datastore nor, without the
//! namespace, the kernel shows: a pod has one interface in a network, and its endpoint on an API
//! server does not contain the name.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use os::atomic_file::regular_file;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::files::write;
use super::{Journal, JournalError};

/// An interface name of a container in a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceName<'a> {
    /// Network name.
    pub network: &'a str,
    /// Container ID.
    pub container_id: &'a str,
    /// Interface name inside the container.
    pub ifname: &'a str,
}

/// The meaning of a recorded interface name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterfaceRole {
    /// The name of the container's only interface.
    First,
    /// The name of a further ADD, which created no interface and returned the result of the first
    /// ADD.
    Second,
}

impl InterfaceRole {
    const ALL: [InterfaceRole; 2] = [InterfaceRole::First, InterfaceRole::Second];

    /// Returns the extension of the file.
    fn extension(self) -> &'static str {
        match self {
            InterfaceRole::First => "first",
            InterfaceRole::Second => "second",
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Record {
    network: String,
    container_id: String,
    ifname: String,
}

impl Journal {
    /// Records an interface name so that it survives a power loss.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written.
    pub fn record_interface(
        &self,
        role: InterfaceRole,
        name: InterfaceName<'_>,
    ) -> Result<(), JournalError> {
        fs::create_dir_all(&self.directory).map_err(JournalError::at("create", &self.directory))?;
        let InterfaceName {
            network,
            container_id,
            ifname,
        } = name;
        let record = Record {
            network: network.to_owned(),
            container_id: container_id.to_owned(),
            ifname: ifname.to_owned(),
        };
        write(&self.interface_file(role, name), &record)
    }

    /// Returns true if the name is recorded with this role.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be searched.
    pub fn has_interface(
        &self,
        role: InterfaceRole,
        name: InterfaceName<'_>,
    ) -> Result<bool, JournalError> {
        let path = self.interface_file(role, name);
        match fs::symlink_metadata(&path) {
            Ok(_) => Ok(true),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(false)
            }
            Err(error) => Err(JournalError::at("find", &path)(error)),
        }
    }

    /// Removes the record of a name. A missing record is no error.
    ///
    /// # Errors
    /// Returns an error if the record cannot be removed.
    pub fn remove_interface(
        &self,
        role: InterfaceRole,
        name: InterfaceName<'_>,
    ) -> Result<(), JournalError> {
        let path = self.interface_file(role, name);
        ignore_missing(fs::remove_file(&path)).map_err(JournalError::at("remove", &path))
    }

    /// Removes the records of all names of a container in a network.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read, or a record not be removed.
    pub fn remove_interfaces_of(
        &self,
        network: &str,
        container_id: &str,
    ) -> Result<(), JournalError> {
        let prefix = prefix_of(network, container_id);
        self.remove_interfaces(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        })
    }

    /// Removes the records of a network whose container is not in `containers`, and damaged ones. A
    /// record that cannot be read at present stays.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read, or a record not be removed.
    pub fn retain_interfaces(
        &self,
        network: &str,
        containers: &BTreeSet<String>,
    ) -> Result<(), JournalError> {
        self.remove_interfaces(|path| {
            let Ok(text) = regular_file::contents(path) else {
                return false;
            };
            let record = serde_json::from_slice::<Record>(&text);
            record.map_or(true, |record| {
                record.network == network && !containers.contains(&record.container_id)
            })
        })
    }

    /// Removes all records.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read, or a record not be removed.
    pub fn remove_all_interfaces(&self) -> Result<(), JournalError> {
        self.remove_interfaces(|_| true)
    }

    fn remove_interfaces(&self, is_removed: impl Fn(&Path) -> bool) -> Result<(), JournalError> {
        let files = match fs::read_dir(&self.directory) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(());
            }
            files => files.map_err(JournalError::at("read", &self.directory))?,
        };
        for path in files
            .flatten()
            .map(|file| file.path())
            .filter(|path| is_record(path))
        {
            if is_removed(&path) {
                ignore_missing(fs::remove_file(&path))
                    .map_err(JournalError::at("remove", &path))?;
            }
        }
        Ok(())
    }

    fn interface_file(&self, role: InterfaceRole, name: InterfaceName<'_>) -> PathBuf {
        let InterfaceName {
            network,
            container_id,
            ifname,
        } = name;
        let ifname = Uuid::new_v5(&Uuid::NAMESPACE_URL, ifname.as_bytes());
        self.directory.join(format!(
            "{}{ifname}.{}",
            prefix_of(network, container_id),
            role.extension()
        ))
    }
}

/// Returns the beginning of the file names of a container's records. IDs may be longer than a file
/// name.
fn prefix_of(network: &str, container_id: &str) -> String {
    format!(
        "{}-",
        Uuid::new_v5(
            &Uuid::NAMESPACE_URL,
            format!("{network}/{container_id}").as_bytes()
        )
    )
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        InterfaceRole::ALL
            .iter()
            .any(|role| extension == role.extension())
    })
}

fn ignore_missing(removal: io::Result<()>) -> io::Result<()> {
    match removal {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(())
        }
        removal => removal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: InterfaceName<'_> = InterfaceName {
        network: "net1",
        container_id: "c1",
        ifname: "eth1",
    };

    fn has(journal: &Journal, name: InterfaceName<'_>) -> [bool; 2] {
        InterfaceRole::ALL.map(|role| journal.has_interface(role, name).unwrap())
    }

    #[test]
    fn interface_record_is_of_one_name_and_role_until_its_removal() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path().join("journal"));
        assert_eq!(has(&journal, NAME), [false; 2]);
        journal
            .remove_interface(InterfaceRole::Second, NAME)
            .unwrap();
        journal
            .record_interface(InterfaceRole::Second, NAME)
            .unwrap();
        assert_eq!(has(&journal, NAME), [false, true]);
        for other in [
            InterfaceName {
                ifname: "eth0",
                ..NAME
            },
            InterfaceName {
                network: "net2",
                ..NAME
            },
            InterfaceName {
                container_id: "c2",
                ..NAME
            },
        ] {
            assert_eq!(has(&journal, other), [false; 2], "{other:?}");
        }
        assert!(
            journal.is_empty() && journal.entries().unwrap().is_empty(),
            "a record is no deferred DEL"
        );
        journal
            .remove_interface(InterfaceRole::Second, NAME)
            .unwrap();
        assert_eq!(has(&journal, NAME), [false; 2]);
    }

    #[test]
    fn interface_records_go_with_their_container() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        let (other, foreign) = (
            InterfaceName {
                container_id: "c2",
                ..NAME
            },
            InterfaceName {
                network: "net2",
                ..NAME
            },
        );
        journal
            .record_interface(
                InterfaceRole::First,
                InterfaceName {
                    ifname: "eth0",
                    ..NAME
                },
            )
            .unwrap();
        for name in [NAME, other, foreign] {
            journal
                .record_interface(InterfaceRole::Second, name)
                .unwrap();
        }
        journal.remove_interfaces_of("net1", "c1").unwrap();
        assert_eq!(
            [NAME, other, foreign].map(|name| has(&journal, name)[1]),
            [false, true, true]
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        journal
            .retain_interfaces("net1", &["c2".to_owned()].into())
            .unwrap();
        assert_eq!(
            [other, foreign].map(|name| has(&journal, name)[1]),
            [true, true]
        );
        fs::write(directory.path().join("damaged.second"), "{").unwrap();
        journal.retain_interfaces("net1", &BTreeSet::new()).unwrap();
        assert_eq!(
            [other, foreign].map(|name| has(&journal, name)[1]),
            [false, true]
        );
        journal.remove_all_interfaces().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn file_in_place_of_the_journal_has_no_interface_records() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path().join("journal"));
        fs::write(directory.path().join("journal"), "").unwrap();
        assert_eq!(has(&journal, NAME), [false; 2]);
        journal
            .remove_interface(InterfaceRole::Second, NAME)
            .unwrap();
        journal.remove_interfaces_of("net1", "c1").unwrap();
        journal
            .record_interface(InterfaceRole::Second, NAME)
            .unwrap_err();
    }
}
