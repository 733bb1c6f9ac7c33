//! [`CliError`]: the error of a command, with advice.

use std::io;
use std::path::Path;

use datastore::ConfigError;
use datastore::config::DEFAULT_PATH;
use datastore::export::TransferError;
use libcalico::ipam::SplitError;
use libcalico::ipam::report::ReleaseRefusal;
use libcalico::migration::calicoctl_file::{ExportError, FileError};
use libcalico::net::{Cidr, CidrParseError};
use libcalico::store::StoreError;
use libcalico::validation_error::ValidationError;

use allocation::error::IpamError;
use allocation::journal::JournalError;

#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(
        "no datastore is configured and {DEFAULT_PATH} does not exist; name one: `--datastore-type \
         local` (creates that file), `--datastore-path FILE`, `--etcd-endpoints URL`, \
         `--kubeconfig FILE`, or `--config /etc/cni/net.d/10-calico.conflist`; DATASTORE_TYPE, \
         DATASTORE_PATH, ETCD_ENDPOINTS and, beside DATASTORE_TYPE=kubernetes, KUBECONFIG in the \
         environment do the same"
    )]
    NothingConfigured,
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("network configuration {path}: {reason}")]
    NetworkConf { path: String, reason: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{}", .0.to_string().trim_end())]
    Ipam(#[from] IpamError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(
        "datastore {0} has no identity: its ClusterInformation has no clusterGUID; start \
         calico-node or run `calico-ipam init`"
    )]
    NoIdentity(String),
    #[error(
        "{0} does not exist, so no deferred DEL can belong to it; name the datastore of the \
         deferred DELs"
    )]
    NoSuchFile(String),
    #[error(
        "container {container} has its interface {interface}: it was probably added again after \
         the DEL, and the replay would release its addresses; if no other cleanup remains, remove \
         {entry}"
    )]
    InterfaceExists {
        container: String,
        interface: String,
        entry: String,
    },
    #[error(
        "the journal has no deferred DEL of a container whose ID begins with {0}; `calico-ipam \
         journal` lists them"
    )]
    NoEntry(String),
    /// `what` is the action.
    #[error("cannot {what} {path}: {cause}")]
    File {
        what: &'static str,
        path: String,
        cause: io::Error,
    },
    /// Documents count from 1.
    #[error("{file}, document {number}: {reason}")]
    Document {
        file: String,
        number: usize,
        reason: String,
    },
    #[error("{0} contains no object; write documents with apiVersion, kind, metadata and spec")]
    NoDocuments(String),
    #[error("{kind} {name}: {cause}")]
    Invalid {
        kind: &'static str,
        name: String,
        cause: Box<ValidationError>,
    },
    #[error(
        "{object} changed since it was read: the manifest has resourceVersion {given}, stored is \
         {stored}; get it again, or remove metadata.resourceVersion to replace the stored object"
    )]
    Outdated {
        object: String,
        given: String,
        stored: String,
    },
    #[error("cannot write {0}: other processes changed it before each attempt; try again")]
    Contended(String),
    #[error("no pool is called `{0}` or has that CIDR; `calico-ipam get ippools` lists them")]
    NoSuchPool(String),
    #[error(
        "no node {0} exists, owns a block or uses an address; `calico-ipam usage --by node` lists \
         the nodes"
    )]
    NoSuchNode(String),
    #[error(
        "Kubernetes has no Node {0}, and only its kubelet or kubectl create it; name a node of the \
         cluster with --node"
    )]
    NoKubernetesNode(String),
    #[error("--pool {text}: {cause}; write it like 10.65.0.0/16 or fd65::/112")]
    PoolRange { text: String, cause: CidrParseError },
    #[error("{0}; name the node with --node")]
    NodeName(String),
    #[error("{}", advice(.0))]
    Transfer(#[from] TransferError),
    #[error("report {path}: {reason}; write it with `calico-ipam check --report {path}`")]
    Report { path: String, reason: String },
    #[error(
        "ClusterInformation has no calicoVersion, which calico-node writes; name the version of \
         calicoctl with --report-version"
    )]
    NoReportVersion,
    #[error(transparent)]
    ReleaseRefused(#[from] ReleaseRefusal),
    #[error(
        "ClusterInformation changed while addresses were released, so that the datastore may have \
         been unlocked; run `calico-ipam check`"
    )]
    LockChanged,
    #[error(transparent)]
    Missing(StoreError),
    #[error("cannot release block {block} of {of}: {cause}; {of} was not deleted, try again")]
    BlockKept {
        of: String,
        block: Cidr,
        cause: Box<IpamError>,
    },
    #[error(
        "node {node} has {endpoints} endpoints (`calico-ipam endpoints --node {node}`); --force \
         deletes them too"
    )]
    NodeInUse { node: String, endpoints: usize },
    // Upstream's text.
    #[error(
        "at least one configuration option must be specified; `calico-ipam configure --help` lists them"
    )]
    NothingToConfigure,
    /// The text of upstream, with the way out.
    #[error("{0}")]
    ConflictingSettings(&'static str),
    // Upstream's text.
    #[error("no name or CIDR provided. Provide a name or CIDR to denote the IP pool to split")]
    NoPoolNamed,
    /// Upstream's text up to `Run`.
    #[error(
        "datastore is not locked. Run `calico-ipam migrate lock`, so that no node assigns addresses meanwhile"
    )]
    NotLocked,
    #[error("datastore {0} has no ClusterInformation; name the datastore of the cluster")]
    NoClusterInformation(String),
    #[error(
        "a migration to projectcalico.org/v3 is under way, which locks and unlocks the datastore; \
         `kubectl get datastoremigrations` shows its state, and `kubectl delete datastoremigration \
         v1-to-v3` ends it"
    )]
    MigratesToV3,
    #[error(
        "an import into this datastore is incomplete, so that pods would get addresses that other \
         pods have; run `calico-ipam migrate import` or `calico-ipam import` again, which \
         continues, or unlock with --force"
    )]
    ImportIncomplete,
    #[error(
        "an import of the cluster with clusterGUID {0} is incomplete; complete it, or end it with \
         `calico-ipam migrate unlock --force`"
    )]
    OtherImport(String),
    /// Upstream's text up to `etcdv3`.
    #[error(
        "invalid datastore type: {0} to export from for datastore migration. Datastore type must \
         be etcdv3; name etcd with --etcd-endpoints"
    )]
    ExportSource(&'static str),
    /// Upstream's text up to `kubernetes;`.
    #[error(
        "invalid datastore type: {0} to import to for datastore migration. Datastore type must be \
         kubernetes; name the API server with --kubeconfig"
    )]
    ImportTarget(&'static str),
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Upstream's text up to `formatted`.
    #[error("imported file: {path} is improperly formatted: {cause}")]
    MigrationFile { path: String, cause: FileError },
    #[error("imported file: {0} has more than 512 MiB; it cannot be a file of `migrate export`")]
    MigrationFileSize(String),
    /// `listed` has one line for each of the first reasons, each after a line break.
    #[error(
        "nothing was imported, and the datastore was not locked, for {number} reasons:{listed}"
    )]
    ImportRefused { number: usize, listed: String },
    #[error(
        "the import of {object} failed: {cause}; {done} of {total} writes are done, and the \
         datastore is locked: remove the cause and run the command again, which continues"
    )]
    ImportStopped {
        object: String,
        cause: Box<StoreError>,
        done: usize,
        total: usize,
    },
    /// `listed` has one line for each of the first reasons, each after a line break.
    #[error(
        "the import is incomplete, and the datastore is locked, for {number} \
         reasons:{listed}\nstop the programs that write to the datastore, remove the causes and \
         run the command again, which continues"
    )]
    ImportDisturbed { number: usize, listed: String },
    // Upstream's text.
    #[error("unable to find IP pool with {0}; `calico-ipam get ippools` lists the pools")]
    NoPool(String),
    #[error("cannot split IPPool {pool}: {cause}")]
    Split { pool: String, cause: SplitError },
    /// `state` is the state of the pool and its parts after the failure.
    #[error("splitting IPPool {pool} failed: {cause}; {state}")]
    SplitFailed {
        pool: String,
        cause: Box<StoreError>,
        state: String,
    },
    #[error("configuration of calicoctl {path}: {reason}")]
    CalicoctlConfig { path: String, reason: String },
    #[error(
        "--context is for an API server, but the datastore is {0}; remove --context, or name the \
         API server with --kubeconfig"
    )]
    ContextWithoutApiServer(String),
    #[error(
        "{0} does not exist, so it has no IP pools; name the datastore, or create it with \
         `calico-ipam init`"
    )]
    NoPools(String),
    #[error("cannot use the API server of the pods: {0}")]
    PodServer(String),
    #[error(
        "{0}; adopt lists all pods and nodes, which the plugins' account may not do: name another \
         account with --kubeconfig, or with KUBECONFIG if the datastore is etcd, or apply \
         deploy/adopt"
    )]
    AdoptRights(StoreError),
    /// Encoding the result or writing it failed.
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
    /// `what` is the action.
    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| CliError::File {
            what,
            path: path.display().to_string(),
            cause,
        }
    }

    pub(super) fn encode(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        CliError::Output(io::Error::other(error))
    }

    pub(super) fn invalid(kind: &'static str, name: &str, cause: ValidationError) -> Self {
        CliError::Invalid {
            kind,
            name: name.into(),
            cause: Box::new(cause),
        }
    }

    pub(super) fn is_closed_pipe(&self) -> bool {
        let (CliError::Output(error) | CliError::Transfer(TransferError::Io(error))) = self else {
            return false;
        };
        error.kind() == io::ErrorKind::BrokenPipe
    }
}
