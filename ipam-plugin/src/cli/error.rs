//! [`CliError`]: the error of a command, with advice.

use std::io;
use std::path::Path;

use datastore::ConfigError;
use datastore::export::TransferError;
use libcalico::failure::Failure;
use libcalico::net::Cidr;
use libcalico::store::StoreError;
use libcalico::validation_error::ValidationError;

use allocation::error::IpamError;
use allocation::journal::JournalError;

#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// Only printed, as most errors of commands.
    #[error("{0}")]
    Failure(Failure),
    /// A lost race is repeated.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Encoding the result or writing it failed. A closed pipe is no error.
    #[error("cannot print the result: {0}")]
    Output(io::Error),
    /// As `Output` if the output is stdout.
    #[error("{}", advice(.0))]
    Transfer(#[from] TransferError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}", .0.to_string().trim_end())]
    Ipam(#[from] IpamError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        CliError::Failure(failure)
    }
}

fn advice(error: &TransferError) -> String {
    match error {
        TransferError::ConflictingPairs { .. } => format!("{error} (--overwrite)"),
        _ => error.to_string(),
    }
}

impl CliError {
    pub(super) fn encode(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        CliError::Output(io::Error::other(error))
    }

    pub(super) fn is_closed_pipe(&self) -> bool {
        let (CliError::Output(error) | CliError::Transfer(TransferError::Io(error))) = self else {
            return false;
        };
        error.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Returns the failure to read or to write a file. `action` is the verb.
pub(super) fn file_failure(action: &str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    move |cause| Failure::new(format_args!("cannot {action} {}", path.display())).because(cause)
}

pub(super) fn invalid(kind: &str, name: &str, cause: ValidationError) -> Failure {
    Failure::new(format_args!("{kind} {name}")).because(cause)
}

pub(super) fn no_identity(datastore: &str) -> Failure {
    Failure::new(format_args!(
        "datastore {datastore} has no identity: its ClusterInformation has no clusterGUID"
    ))
    .way_out("start calico-node or run `calico-ipam init`")
}

pub(super) fn no_node_name(cause: impl std::fmt::Display) -> Failure {
    Failure::new(cause).way_out("name the node with --node")
}

pub(super) fn contended(object: &str) -> Failure {
    Failure::new(format_args!(
        "cannot write {object}: other processes changed it before each attempt"
    ))
    .way_out("try again")
}

/// Returns the failure to release a block before `object`, its node or pool, is deleted.
pub(super) fn block_kept(object: &str, block: &Cidr, cause: IpamError) -> Failure {
    Failure::new(format_args!("cannot release block {block} of {object}"))
        .because(cause)
        .way_out(format!("{object} was not deleted, try again"))
}

pub(super) fn not_locked() -> Failure {
    // Upstream's text up to `Run`.
    Failure::new(
        "datastore is not locked. Run `calico-ipam migrate lock`, so that no node assigns \
         addresses meanwhile",
    )
}
