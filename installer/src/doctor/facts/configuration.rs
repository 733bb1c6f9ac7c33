//! The configuration that a runtime picks, and what it names.

use std::path::PathBuf;

use crate::template::Finding as ConfFinding;
use crate::token::claims::Claims;

/// A configuration that counts: the one that a runtime picks, or that of Calico's which it calls.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// What it holds, or why nobody can read it.
    pub content: Result<Content, String>,
}

/// Types of plugins that come first and call another network by themselves begin so.
const DELEGATING: &str = "multus";

/// What a configuration holds.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// Name of the network.
    pub network: String,
    /// The types of its plugins, in order.
    pub plugins: Vec<String>,
    /// The version of the specification.
    pub cni_version: String,
    /// What is odd about it.
    pub findings: Vec<ConfFinding>,
    /// Configurations that libcni would append to the list (INST-164).
    pub appended: Vec<String>,
    /// Why Calico's plugin takes nothing of what is written for it; `None` where it does, or is not in it.
    pub refused: Option<String>,
    /// Where a plugin calls another network by itself, what it calls it: a network, or a file.
    pub calls: Vec<String>,
}

impl Content {
    /// Whether Calico's plugin is in it.
    pub fn is_calicos(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin == "calico")
    }

    /// Whether a plugin in it calls another network by itself.
    pub fn delegates(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin.starts_with(DELEGATING))
    }
}

/// A plugin's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// The version of the specification in which it is called; may be empty.
    pub cni_version: String,
    /// How it is.
    pub state: ProgramState,
    /// Whether it is what was installed.
    pub origin: Origin,
    /// What it says to `-v`; `None` where it was not asked, not being one of Calico's, or says nothing.
    pub version: Option<String>,
}

/// Whether a program is what the installer noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Nothing is noted of it.
    Unknown,
    /// It is.
    Installed,
    /// It is the one of ours that the noted one was to take the place of.
    Former,
    /// It is another one.
    Other,
}

/// How a program is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramState {
    /// In none of the directories.
    Missing,
    /// There, without permission to execute it.
    NotExecutable(PathBuf),
    /// It answers VERSION with these.
    Speaks(PathBuf, Vec<String>),
    /// It answers VERSION with something else, or not at all.
    Broken(PathBuf, String),
}

/// A kubeconfig and the token in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFile {
    /// On the node.
    pub path: PathBuf,
    /// Who may read it, or why it cannot be read.
    pub file: Result<File, String>,
}

/// A file that could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its mode.
    pub mode: u32,
    /// Whether it takes any certificate of the API server.
    pub trusts_anybody: bool,
    /// What the token says; `None` where there is no token, or none that says anything.
    pub claims: Option<Claims>,
}
