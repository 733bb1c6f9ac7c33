//! [`CliError`]: the error of a command, with advice.

use std::io;
use std::path::Path;

use datastore::ConfigError;
use datastore::config::DEFAULT_PATH;
use datastore::export::TransferError;
use libcalico::net::{Cidr, CidrParseError};
use libcalico::store::StoreError;
use libcalico::validation_error::ValidationError;

use crate::error::IpamError;
use crate::journal::JournalError;

/// The error of a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// No datastore is configured.
    #[error(
        "no datastore is configured and {DEFAULT_PATH} does not exist; name one: `--datastore-type local` (creates \
         that file), `--datastore-path FILE`, `--etcd-endpoints URL`, `--kubeconfig FILE`, or \
         `--config /etc/cni/net.d/10-calico.conflist`; DATASTORE_TYPE, DATASTORE_PATH, ETCD_ENDPOINTS and, beside \
         DATASTORE_TYPE=kubernetes, KUBECONFIG in the environment do the same"
    )]
    NothingConfigured,
    /// The configured datastore is unusable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The network configuration of `--config` is invalid.
    #[error("network configuration {path}: {reason}")]
    NetworkConf { path: String, reason: String },
    /// An error of the datastore.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error of an operation on addresses.
    #[error("{}", .0.to_string().trim_end())]
    Ipam(#[from] IpamError),
    /// An error of this node's journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The datastore has no identity, so no deferred DEL can be assigned to it.
    #[error(
        "datastore {0} has no identity: its ClusterInformation has no clusterGUID; start calico-node or run \
         `calico-ipam init`"
    )]
    NoIdentity(String),
    /// The datastore's file does not exist yet.
    #[error("{0} does not exist, so no deferred DEL can belong to it; name the datastore of the deferred DELs")]
    NoSuchFile(String),
    /// The container has its interface again.
    #[error(
        "container {container} has its interface {interface}: it was added again after the DEL, and the replay would \
         release its addresses; if no other cleanup remains, remove {entry}"
    )]
    InterfaceExists { container: String, interface: String, entry: String },
    /// The journal has no deferred DEL of the container.
    #[error(
        "the journal has no deferred DEL of a container whose ID begins with {0}; `calico-ipam journal` lists them"
    )]
    NoEntry(String),
    /// A file cannot be read or written. `what` is the action.
    #[error("cannot {what} {path}: {cause}")]
    File { what: &'static str, path: String, cause: io::Error },
    /// A document is neither YAML nor JSON, or not an object that this program supports. Documents count from 1.
    #[error("{file}, document {number}: {reason}")]
    Document { file: String, number: usize, reason: String },
    /// The file contains no object.
    #[error("{0} contains no object; write documents with apiVersion, kind, metadata and spec")]
    NoDocuments(String),
    /// An object is invalid.
    #[error("{kind} {name}: {cause}")]
    Invalid { kind: &'static str, name: String, cause: Box<ValidationError> },
    /// The manifest's revision differs from the stored one.
    #[error(
        "{object} changed since it was read: the manifest has resourceVersion {given}, stored is {stored}; get it \
         again, or remove metadata.resourceVersion to replace the stored object"
    )]
    Outdated { object: String, given: String, stored: String },
    /// Other processes changed the object before each write.
    #[error("cannot write {0}: other processes changed it before each attempt; try again")]
    Contended(String),
    /// No pool has this name or CIDR.
    #[error("no pool is called `{0}` or has that CIDR; `calico-ipam get ippools` lists them")]
    NoSuchPool(String),
    /// The range of `--pool` is invalid.
    #[error("--pool {text}: {cause}; write it like 10.65.0.0/16 or fd65::/112")]
    PoolRange { text: String, cause: CidrParseError },
    /// The name of this node cannot be determined.
    #[error("{0}; name the node with --node")]
    NodeName(String),
    /// An export or import failed.
    #[error("{}", advice(.0))]
    Transfer(#[from] TransferError),
    /// A file is not a report of `check`.
    #[error("report {path}: {reason}; write it with `calico-ipam check --json-report {path}`")]
    Report { path: String, reason: String },
    /// The object to delete is missing.
    #[error(transparent)]
    Missing(StoreError),
    /// A block of a pool or node cannot be released.
    #[error("cannot release block {block} of {of}: {cause}; {of} was not deleted, try again")]
    BlockKept { of: String, block: Cidr, cause: Box<IpamError> },
    /// The node to delete has this number of endpoints.
    #[error("node {node} has {endpoints} endpoints (`calico-ipam endpoints --node {node}`); --force deletes them too")]
    NodeInUse { node: String, endpoints: usize },
    /// The result cannot be encoded, or writing to stdout failed.
    #[error("cannot print the result: {0}")]
    Output(io::Error),
}

fn advice(error: &TransferError) -> String {
    match error {
        TransferError::ConflictingPairs { .. } => format!("{error} (--overwrite)"),
        _ => error.to_string(),
    }
}

impl CliError {
    /// Creates the error for a file that cannot be read or written. `what` is the action.
    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| CliError::File { what, path: path.display().to_string(), cause }
    }

    /// Creates the error for a value that cannot be encoded.
    pub(super) fn encode(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        CliError::Output(io::Error::other(error))
    }

    /// Creates the error for an invalid object.
    pub(super) fn invalid(kind: &'static str, name: &str, cause: ValidationError) -> Self {
        CliError::Invalid { kind, name: name.into(), cause: Box::new(cause) }
    }

    /// Returns true if the reader of the output has closed the pipe.
    pub(super) fn is_closed_pipe(&self) -> bool {
        let (CliError::Output(error) | CliError::Transfer(TransferError::Io(error))) = self else { return false };
        error.kind() == io::ErrorKind::BrokenPipe
    }
}
