//! Plans the repairs of inconsistent blocks.

use libcalico::ipam::Repaired;
use libcalico::net::Cidr;
use time::OffsetDateTime;

use super::step::{BlockRepair, ReleaseChange, ReleaseStep, StepVerdict};
use crate::cli::cluster_read::ClusterRead;

/// Decides on the repair of an inconsistent block.
pub(super) fn repair_step(block: Cidr, cluster: &ClusterRead, force: bool) -> ReleaseStep {
    ReleaseStep { target: format!("block {block}"), verdict: verdict(block, cluster, force) }
}

fn verdict(block: Cidr, cluster: &ClusterRead, force: bool) -> StepVerdict {
    if let Some(pod) = cluster.unreadable_pod() {
        return StepVerdict::Refuse(format!("pod {pod} cannot be read, and may have an address of it"));
    }
    if let Some(error) = cluster.nodes.iter().find_map(|node| node.as_ref().err()) {
        return StepVerdict::Refuse(format!("nodes cannot be read ({error}), and a tunnel may have an address of it"));
    }
    let entry = cluster.blocks.iter().find(|entry| entry.key == block);
    let repair = entry.and_then(|read| {
        let repaired = read.value.repaired(OffsetDateTime::now_utc(), |ip| cluster.holder_of(&read.value, ip))?;
        Some(BlockRepair { read: read.clone(), repaired })
    });
    let vmi_handle = repair.as_ref().filter(|_| !force).and_then(|repair| cluster.uncounted_vmi(repair.repaired()));
    if let Some(handle) = vmi_handle {
        return StepVerdict::Refuse(format!(
            "handle {handle} of a virtual machine counts an address that the block does not name; --force if the \
            machine is gone"
        ));
    }
    match repair {
        Some(BlockRepair { read, repaired: Repaired { freed, .. } })
            if !force && !freed.is_empty() && cluster.serves_services(&read.value) =>
        {
            StepVerdict::Refuse(
                "a Service may have an address of this block, which the datastore does not tell; --force if no \
                Service has one"
                    .into(),
            )
        }
        Some(repair) => StepVerdict::Do(ReleaseChange::Block(Box::new(repair))),
        None => StepVerdict::Leave("this takes a person's decision".into()),
    }
}
