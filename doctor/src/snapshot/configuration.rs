//! Observations about the configuration that a runtime uses, and about the files it names.

use std::path::PathBuf;

use super::Observed;
use installation::conflist::{COPYING, MULTUS};
use installation::template::ConfigProblem;
use installation::token::Claims;

/// A relevant configuration: the one that the runtime uses, or Calico's configuration behind it.
#[derive(Debug, Clone)]
pub struct SelectedConfig {
    /// The file name.
    pub name: String,
    /// The content, or the reason why it cannot be read.
    pub content: Observed<Content>,
}

/// The content of a configuration.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// The name of the network.
    pub network: String,
    /// The types of the plugins, in order.
    pub plugins: Vec<String>,
    /// The programs of the plugins, and those that they call: IPAM plugins and delegates.
    pub programs: Vec<String>,
    /// The version of the CNI specification.
    pub cni_version: String,
    /// The problems found in the text.
    pub problems: Vec<ConfigProblem>,
    /// Files whose plugins libcni would append to the list (INST-164).
    pub appended: Vec<String>,
    /// The error with which Calico's plugin rejects the configuration.
    pub rejection: Option<String>,
    /// The names of the networks or files that a delegating plugin calls.
    pub delegate_names: Vec<String>,
}

impl Content {
    /// Returns true if Calico's plugin is in the configuration.
    pub fn is_calicos(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin == "calico")
    }

    /// Returns true if the configuration has Calico's plugin, and that of a program that copies
    /// configurations.
    pub fn is_copy_of_calicos(&self) -> bool {
        self.is_calicos()
            && self
                .plugins
                .iter()
                .any(|plugin| COPYING.contains(&plugin.as_str()))
    }

    /// Returns true if a plugin is one of Multus', which delegate to other networks.
    pub fn delegates(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin.starts_with(MULTUS))
    }
}

/// The program of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredProgram {
    /// The file name.
    pub name: String,
    /// The version of the CNI specification that the configuration uses; may be empty.
    pub cni_version: String,
    /// The result of running the program.
    pub state: ProgramState,
    /// The origin of the file.
    pub origin: ProgramOrigin,
    /// The output of `-v`, of Calico's programs only.
    pub version: Option<String>,
}

/// The relation of a program to the installer's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramOrigin {
    /// No digest is recorded for the file, or the file cannot be read.
    Unknown,
    /// The file is the recorded one.
    Installed,
    /// The file is the installer's earlier one: the last installation did not finish.
    Former,
    /// The file differs from the recorded ones.
    Other,
}

/// The result of running a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramState {
    /// The program is in none of the directories.
    Missing,
    /// The name contains a separator, so the program was not searched or run.
    InvalidName,
    /// The file is not executable.
    NotExecutable(PathBuf),
    /// The program answers VERSION with these versions.
    Supports(PathBuf, Vec<String>),
    /// This container lacks the program's interpreter, which the node may have.
    OnlyOnNode(PathBuf),
    /// The program's answer to VERSION is missing or invalid, for this reason.
    Broken(PathBuf, String),
}

/// A kubeconfig and its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The content, or the reason why it cannot be read.
    pub file: Observed<KubeconfigFile>,
}

/// The relevant content of a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeconfigFile {
    /// The mode of the file.
    pub mode: u32,
    /// True if the kubeconfig accepts any certificate of the API server.
    pub accepts_any_certificate: bool,
    /// The claims of the token; `None` without a token, or if its claims cannot be read.
    pub claims: Option<Claims>,
}
