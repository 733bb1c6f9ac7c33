//! [`plan`]: reads the pools and checks a split before its first write.

use libcalico::api::{ClusterInformation, IpPool, ObjectKey, ObjectSelect};
use libcalico::failure::{Failure, OrFail};
use libcalico::ipam::split;
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store};

use crate::cli::error::{CliError, not_locked};

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
        return Err(not_locked().into());
    }
    let pools = answers.list(&pools);
    let pool = pools
        .iter()
        .find(|pool| selection.selects(pool))
        .ok_or_else(|| selection.missing())?
        .clone();
    let values: Vec<IpPool> = pools.into_iter().map(|entry| entry.value).collect();
    let operation = format!("cannot split IPPool {}", pool.key.name);
    let parts = split(&pool.value, number, &values).or_fail(operation)?;
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

    fn missing(&self) -> Failure {
        let pool = match self {
            Selection::Name(name) => format!("name {name}"),
            Selection::Range(cidr) => format!("CIDR {cidr}"),
        };
        // Upstream's text.
        Failure::new(format_args!("unable to find IP pool with {pool}"))
            .way_out("`calico-ipam get ippools` lists the pools")
    }
}
