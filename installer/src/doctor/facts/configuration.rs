//! The configuration that a runtime picks, and what it names.

use std::path::PathBuf;

use crate::template::Finding as ConfFinding;
use crate::token::claims::Claims;

/// The configuration that a runtime picks.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// What it holds, or why nobody can read it.
    pub content: Result<Content, String>,
}

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
}

/// A plugin's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: ProgramState,
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
    /// What the token says; `None` where there is no token, or none that says anything.
    pub claims: Option<Claims>,
}
