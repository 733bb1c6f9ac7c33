//! [`NetworkManager`]: a program that manages the interfaces of a node, and its configuration.
//! Pure.
//!
//! Such a program may remove addresses and routes that it did not create, or set an interface down.
//! It leaves an interface alone only if its configuration says so.

mod network_manager;
mod networkd;
mod pattern;

use std::path::PathBuf;

use self::pattern::Link;

/// A running program that manages interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkManager {
    /// The program.
    pub program: ManagingProgram,
    /// The prefix of the names of pods' interfaces.
    pub prefix: String,
    /// The files of its configuration, in the order in which the program reads them.
    pub files: Vec<ConfigFile>,
}

/// A program that manages interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagingProgram {
    /// NetworkManager.
    NetworkManager,
    /// systemd-networkd.
    Networkd,
}

/// A file of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// The path on the node.
    pub path: PathBuf,
    /// The content, with the contents of its drop-ins after it.
    pub text: String,
}

/// The reason why a program manages interfaces of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The program manages each interface without an exception.
    NoException,
    /// This file applies to interfaces of pods.
    File(PathBuf),
}

impl NetworkManager {
    /// Returns the reason why the program manages interfaces of pods, or `None` if it leaves them
    /// alone.
    pub fn claim(&self) -> Option<Claim> {
        let link = Link::of_pod(&self.prefix);
        match self.program {
            ManagingProgram::NetworkManager => {
                (!network_manager::leaves_alone(&self.files, &link)).then_some(Claim::NoException)
            }
            ManagingProgram::Networkd => networkd::file_in_charge(&self.files, &link)
                .map(|file| Claim::File(file.path.clone())),
        }
    }
}

/// A line of a configuration.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'t> {
    /// The section; empty before the first one.
    section: &'t str,
    key: &'t str,
    value: &'t str,
}

/// Returns the entries of a file with sections in brackets. Comments begin with `#` or `;`.
fn entries(text: &str) -> impl Iterator<Item = Entry<'_>> {
    let mut section = "";
    text.lines()
        .map(str::trim)
        .filter(|line| !line.starts_with(['#', ';']))
        .filter_map(move |line| {
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
            {
                section = name.trim();
                return None;
            }
            let (key, value) = line.split_once('=')?;
            Some(Entry {
                section,
                key: key.trim(),
                value: value.trim(),
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_their_sections() {
        let text = "a = 1\n# b=2\n[ x ]\nlist+=y;z = 1\n;c=3\nnonsense\n[y]\nd=\n";
        let entry = |section, key, value| Entry {
            section,
            key,
            value,
        };
        let expected = [
            entry("", "a", "1"),
            entry("x", "list+", "y;z = 1"),
            entry("y", "d", ""),
        ];
        assert_eq!(entries(text).collect::<Vec<_>>(), expected);
    }
}
