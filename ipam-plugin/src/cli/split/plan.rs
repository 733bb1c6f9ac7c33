//! [`plan`]: reads the pools and checks a split before its first write.

use libcalico::api::{ClusterInformation, IpPool, ObjectKey, ObjectSelect};
use libcalico::ipam::split;
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store};

use crate::cli::error::CliError;

/// The pool to split.
#[derive(Debug, Clone)]
pub(super) enum Selection {
    Name(String),
    Range(Cidr),
}

/// The rule about the lock of the datastore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    Required,
    Optional,
}

/// A split that may be written.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) pool: Entry<IpPool>,
    /// All parts, in ascending order.
    pub(super) parts: Vec<IpPool>,
    /// The parts that an earlier, interrupted split did not create.
    pub(super) missing: Vec<IpPool>,
}

pub(super) async fn plan(
    store: &impl Store,
    selection: &Selection,
    number: u32,
    lock: Lock,
) -> Result<Planned, CliError> {
    let mut batch = ReadBatch::new();
    let information = batch.get::<ClusterInformation>(&ObjectKey::global("default"));
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let answers = store.read(&batch).await?;
    let ready = answers
        .get(&information)?
        .and_then(|entry| entry.value.spec.datastore_ready);
    if lock == Lock::Required && ready != Some(false) {
        return Err(CliError::NotLocked);
    }
    let pools = answers.list(&pools);
    let pool = pools
        .iter()
        .find(|pool| selection.selects(pool))
        .ok_or_else(|| selection.missing())?
        .clone();
    let values: Vec<IpPool> = pools.into_iter().map(|entry| entry.value).collect();
    let refused = |cause| CliError::Split {
        pool: pool.key.name.clone(),
        cause,
    };
    let parts = split(&pool.value, number, &values).map_err(refused)?;
    let exists = |part: &&IpPool| {
        values
            .iter()
            .any(|pool| pool.metadata.name == part.metadata.name)
    };
    let missing = parts.iter().filter(|part| !exists(part)).cloned().collect();
    Ok(Planned {
        pool,
        parts,
        missing,
    })
}

impl Selection {
    /// A range is compared as a range, so that different texts of one range select the same pool.
    fn selects(&self, pool: &Entry<IpPool>) -> bool {
        match self {
            Selection::Name(name) => pool.key.name == *name,
            Selection::Range(cidr) => pool.value.spec.range().as_ref() == Ok(cidr),
        }
    }

    fn missing(&self) -> CliError {
        CliError::NoPool(match self {
            Selection::Name(name) => format!("name {name}"),
            Selection::Range(cidr) => format!("CIDR {cidr}"),
        })
    }
}
