//! Repairs inconsistent blocks.

use std::net::IpAddr;

use datastore::Datastore;
use libcalico::ipam::{Block, HandleId, Repaired};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError};
use time::OffsetDateTime;

use super::plan::{Mend, Step, Verdict};
use crate::cli::error::CliError;
use crate::cli::reading::Reading;

/// The planned repair of a block.
#[derive(Debug, PartialEq)]
pub(super) struct Repair {
    read: Entry<Block>,
    repaired: Repaired,
}

impl Repair {
    /// Returns the addresses that the repair frees or keeps.
    pub(super) fn settles(&self) -> impl Iterator<Item = IpAddr> {
        let Repaired { freed, kept, .. } = &self.repaired;
        freed.iter().chain(kept).copied()
    }

    /// Returns the repaired block.
    pub(super) fn repaired(&self) -> &Block {
        &self.repaired.block
    }

    /// Returns the handles of the addresses that the repair keeps.
    pub(super) fn handles(&self) -> impl Iterator<Item = HandleId> {
        let Repaired { block, kept, .. } = &self.repaired;
        kept.iter().filter_map(|ip| block.allocation(*ip)?.handle())
    }

    pub(super) fn reason(&self) -> String {
        let Repaired { freed, kept, .. } = &self.repaired;
        let of = |addresses: &[IpAddr]| match addresses {
            [] => "no address".to_owned(),
            some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        format!("free again: {}; kept for pods that report them: {}", of(freed), of(kept))
    }
}

/// Decides on the repair of an inconsistent block.
pub(super) fn step(block: Cidr, reading: &Reading, force: bool) -> Step {
    Step { target: format!("block {block}"), verdict: verdict(block, reading, force) }
}

fn verdict(block: Cidr, reading: &Reading, force: bool) -> Verdict {
    if let Some(pod) = reading.unreadable_pod() {
        return Verdict::Refuse(format!("pod {pod} cannot be read, and may have an address of it"));
    }
    if let Some(error) = reading.nodes.iter().find_map(|node| node.as_ref().err()) {
        return Verdict::Refuse(format!("nodes cannot be read ({error}), and a tunnel may have an address of it"));
    }
    let entry = reading.blocks.iter().find(|entry| entry.key == block);
    let repair = entry.and_then(|read| {
        let repaired = read.value.repaired(OffsetDateTime::now_utc(), |ip| reading.holder_of(&read.value, ip))?;
        Some(Repair { read: read.clone(), repaired })
    });
    let machine = repair.as_ref().filter(|_| !force).and_then(|repair| reading.uncounted_vmi(repair.repaired()));
    if let Some(handle) = machine {
        return Verdict::Refuse(format!(
            "handle {handle} of a virtual machine counts an address that the block does not name; --force if the machine is gone"
        ));
    }
    match repair {
        Some(Repair { read, repaired: Repaired { freed, .. } })
            if !force && !freed.is_empty() && reading.serves_services(&read.value) =>
        {
            Verdict::Refuse(
                "a Service may have an address of this block, which the datastore does not tell; --force if no Service has one"
                    .into(),
            )
        }
        Some(repair) => Verdict::Do(Mend::Block(Box::new(repair))),
        None => Verdict::Leave("this takes a person's decision".into()),
    }
}

/// Stores a repaired block. The inner error says that the block has changed.
pub(super) async fn store(store: &Datastore, repair: Repair) -> Result<Result<(), String>, CliError> {
    let Repair { read, repaired: Repaired { mut block, .. } } = repair;
    block.count_write();
    match store.update::<Block>(&read.key, &block, &read.revision).await {
        Ok(_) => Ok(Ok(())),
        Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {
            Ok(Err("it was changed by another just now".into()))
        }
        Err(error) => Err(error.into()),
    }
}
