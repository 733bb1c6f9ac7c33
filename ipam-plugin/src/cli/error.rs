//! [`CliError`]: why a command failed, and the way out.

use std::io;

use datastore::ConfigError;
use datastore::config::DEFAULT_PATH;
use datastore::transfer::TransferError;
use libcalico::net::{Cidr, CidrParseError};
use libcalico::store::StoreError;
use libcalico::validation::ValidationError;
use libcalico::validation::manifest::ManifestError;

use crate::error::IpamError;
use crate::journal::JournalError;

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// Nothing says where the addresses are.
    #[error(
        "no datastore is configured and {DEFAULT_PATH} does not exist; name one: `--datastore-type local` (creates that \
         file), `--datastore-path FILE`, `--etcd-endpoints URL`, `--kubeconfig FILE`, or \
         `--config /etc/cni/net.d/10-calico.conflist`; DATASTORE_TYPE, DATASTORE_PATH, ETCD_ENDPOINTS and, beside \
         DATASTORE_TYPE=kubernetes, KUBECONFIG in the environment do the same"
    )]
    NothingConfigured,
    /// What is configured cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The network configuration of `--config`.
    #[error("network configuration {path}: {reason}")]
    NetworkConf {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The datastore.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An operation on addresses.
    #[error("{}", .0.to_string().trim_end())]
    Ipam(#[from] IpamError),
    /// The journal of this node.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A datastore to which no debt can be given.
    #[error(
        "datastore {datastore} has no identity: its ClusterInformation has no clusterGUID; calico-node or `calico-ipam init` \
         writes it"
    )]
    NoIdentity {
        /// The datastore.
        datastore: String,
    },
    /// A file that is no datastore yet.
    #[error("{datastore} does not exist, so nothing can be owed to it; name the datastore that the debts are owed to")]
    NoSuchFile {
        /// The datastore.
        datastore: String,
    },
    /// A container that is networked again.
    #[error(
        "container {container} has its interface {interface}: it was added again after the DEL, and the debt would take its \
         addresses; if nothing else is owed, remove {entry}"
    )]
    Living {
        /// The container.
        container: String,
        /// Its interface on the host.
        interface: String,
        /// The journal entry.
        entry: String,
    },
    /// A container without a debt.
    #[error(
        "no debt of a container whose id begins with {container} is in the journal; `calico-ipam journal` lists them"
    )]
    NoDebt {
        /// What the id was to begin with.
        container: String,
    },
    /// A file that was to be read or written.
    #[error("{what} {path}: {cause}")]
    File {
        /// `read`, `write`.
        what: &'static str,
        /// The file.
        path: String,
        /// Why not.
        cause: io::Error,
    },
    /// Neither YAML nor JSON.
    #[error("{file}, document {number}: {reason}")]
    Document {
        /// The file.
        file: String,
        /// Counted from 1.
        number: usize,
        /// The parser's words.
        reason: String,
    },
    /// A document that is no object of ours.
    #[error("{file}, document {number}: {cause}")]
    Manifest {
        /// The file.
        file: String,
        /// Counted from 1.
        number: usize,
        /// What is wrong.
        cause: ManifestError,
    },
    /// Nothing to apply.
    #[error("{file} holds no object; write documents with apiVersion, kind, metadata and spec")]
    NoDocuments {
        /// The file.
        file: String,
    },
    /// An object that may not be written.
    #[error("{kind} {name}: {cause}")]
    Invalid {
        /// The kind.
        kind: &'static str,
        /// The name.
        name: String,
        /// Which fields.
        cause: Box<ValidationError>,
    },
    /// The manifest names a revision that is not the stored one.
    #[error(
        "{object} changed since it was read: the manifest has resourceVersion {given}, stored is {stored}; get it again, \
         or drop metadata.resourceVersion to replace what is there"
    )]
    Outdated {
        /// The object.
        object: String,
        /// What the manifest says.
        given: String,
        /// What is stored.
        stored: String,
    },
    /// Others kept changing the object.
    #[error("{object} was changed by others each time it was to be written; try again")]
    Contended {
        /// The object.
        object: String,
    },
    /// A pool that nothing says the name of.
    #[error("no pool is called `{pool}` or has that CIDR; `calico-ipam get ippools` lists them")]
    NoSuchPool {
        /// What was asked for.
        pool: String,
    },
    /// A pool's range on the command line.
    #[error("--pool {text}: {cause}; write it like 10.65.0.0/16 or fd65::/112")]
    PoolRange {
        /// What was given.
        text: String,
        /// What is wrong.
        cause: CidrParseError,
    },
    /// The name of this node.
    #[error("{0}; name the node with --node")]
    NodeName(String),
    /// An export or import.
    #[error("{}", advice(.0))]
    Transfer(#[from] TransferError),
    /// A report that `check` did not write.
    #[error("report {path}: {reason}; write it with `calico-ipam check --json-report {path}`")]
    Report {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The object to delete is not there.
    #[error(transparent)]
    Missing(StoreError),
    /// A block that could not be given up.
    #[error("block {block} of {of} could not be given up: {cause}; {of} was not deleted, try again")]
    BlockKept {
        /// The pool or node.
        of: String,
        /// The block.
        block: Cidr,
        /// Why not.
        cause: Box<IpamError>,
    },
    /// A node that is to be deleted has endpoints.
    #[error("node {node} has {endpoints} endpoints (`calico-ipam endpoints --node {node}`); --force deletes them too")]
    NodeInUse {
        /// The node.
        node: String,
        /// How many endpoints.
        endpoints: usize,
    },
    /// A value that has no text form.
    #[error("print the result: {0}")]
    Encode(String),
    /// stdout.
    #[error("print the result: {0}")]
    Output(io::Error),
}

fn advice(error: &TransferError) -> String {
    match error {
        TransferError::Occupied { .. } => format!("{error} (--overwrite)"),
        _ => error.to_string(),
    }
}

impl CliError {
    /// An object that breaks rules.
    pub(super) fn invalid(kind: &'static str, name: &str, cause: ValidationError) -> Self {
        CliError::Invalid { kind, name: name.into(), cause: Box::new(cause) }
    }

    /// Whoever read our output went away.
    pub(super) fn is_closed_pipe(&self) -> bool {
        let (CliError::Output(error) | CliError::Transfer(TransferError::Io(error))) = self else { return false };
        error.kind() == io::ErrorKind::BrokenPipe
    }
}
