//! [`repair_once`]: removes the interfaces that are dead in two looks, and [`Repair`]: what
//! happened to an interface.

use std::net::IpAddr;
use std::time::Duration;

use libcalico::dead_interface::{DeadLink, LOOK_INTERVAL, LinkVerdict, Suspects, UseEvidence};
use tokio::time::{Instant, sleep};

use super::look::{AssessedLink, Sources};
use dataplane::host_network::{HostNetwork, NetworkError};

/// The result of a repair for one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The name of the interface.
    pub interface: String,
    /// The container, or a digest of its ID.
    pub container: String,
    /// The destinations of the host routes through the interface.
    pub addresses: Vec<IpAddr>,
    /// The outcome.
    pub outcome: RepairOutcome,
}

/// The outcome of a repair for one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairOutcome {
    /// The interface was removed.
    Removed,
    /// The interface stays, for this reason.
    Kept(String),
    /// The removal failed, for this reason.
    Failed(String),
}

impl Repair {
    fn of(assessed: &AssessedLink, outcome: RepairOutcome) -> Self {
        Repair {
            interface: assessed.link.name.clone(),
            container: assessed.link.alias.container().to_owned(),
            addresses: assessed.addresses.clone(),
            outcome,
        }
    }
}

/// Returns the interfaces that no source knows as used, each with the time for which it has to be
/// dead.
pub fn dead_links(assessed: &[AssessedLink]) -> Vec<(DeadLink, Duration)> {
    let dead = assessed
        .iter()
        .filter(|found| found.verdict == LinkVerdict::Dead);
    dead.map(|found| (found.link.clone(), found.confirmation))
        .collect()
}

/// Removes an interface if it is still the same one.
pub fn remove(network: &dyn HostNetwork, dead: &AssessedLink) -> Repair {
    let outcome = match network.remove_dead_link(&dead.link) {
        Ok(true) => RepairOutcome::Removed,
        Ok(false) => RepairOutcome::Kept("it was removed or replaced in the meantime".into()),
        Err(error) => RepairOutcome::Failed(error.to_string()),
    };
    Repair::of(dead, outcome)
}

/// Looks at the interfaces, and if some are dead, looks again after [`LOOK_INTERVAL`] and removes
/// those that still are, except those that have to be dead for longer. `announce` gets the number
/// of dead interfaces before the wait. Returns the interfaces whose other end is in a namespace
/// that is not known to contain a process.
pub async fn repair_once(
    sources: Sources<'_>,
    announce: impl FnOnce(usize),
) -> Result<Vec<Repair>, NetworkError> {
    let (begun, mut suspects) = (Instant::now(), Suspects::default());
    let mut assessed = sources.look().await?;
    let mut dead = dead_links(&assessed);
    dead.retain(|(_, confirmation)| *confirmation <= LOOK_INTERVAL);
    let mut due = Vec::new();
    if !dead.is_empty() {
        announce(dead.len());
        suspects.look(begun.elapsed(), dead);
        sleep(LOOK_INTERVAL).await;
        assessed = sources.look().await?;
        due = suspects.look(begun.elapsed(), dead_links(&assessed));
    }
    let repair = |found: &AssessedLink| match &found.verdict {
        LinkVerdict::InUse(UseEvidence::Process) => None,
        LinkVerdict::InUse(used) => Some(Repair::of(found, RepairOutcome::Kept(used.to_string()))),
        LinkVerdict::Unknown(reason) => {
            Some(Repair::of(found, RepairOutcome::Kept(reason.clone())))
        }
        LinkVerdict::Dead if due.contains(&found.link) => Some(remove(sources.network, found)),
        LinkVerdict::Dead => Some(Repair::of(
            found,
            RepairOutcome::Kept(reason_to_wait(found)),
        )),
    };
    Ok(assessed.iter().filter_map(repair).collect())
}

/// Returns the reason why a dead interface is not due yet.
fn reason_to_wait(dead: &AssessedLink) -> String {
    if dead.confirmation <= LOOK_INTERVAL {
        return "no container uses it since the second look; run the command again".into();
    }
    let (name, minutes) = (&dead.link.name, dead.confirmation.as_secs() / 60);
    format!(
        "no container uses it, but IPAM names no pod for it, as for the target of a live \
         migration; let the agent (CNI_AGENT_REPAIR=true) remove it, or wait {minutes} minutes, \
         and if `crictl pods` does not list its container then: ip link delete {name}"
    )
}

#[cfg(test)]
mod tests {
    use libcalico::dead_interface::UNNAMED_POD_CONFIRMATION;
    use libcalico::names::InterfaceAlias;

    use super::*;

    #[test]
    fn dead_interface_of_an_unnamed_pod_is_left_to_the_agent() {
        let reason = |confirmation| {
            let alias = InterfaceAlias::for_container("c1");
            let link = DeadLink {
                name: "cali1".into(),
                index: 7,
                alias,
            };
            reason_to_wait(&AssessedLink {
                link,
                addresses: Vec::new(),
                verdict: LinkVerdict::Dead,
                confirmation,
            })
        };
        let unnamed = reason(UNNAMED_POD_CONFIRMATION);
        assert!(
            unnamed.contains("wait 10 minutes, and if `crictl pods`")
                && unnamed.ends_with("ip link delete cali1"),
            "{unnamed}"
        );
        assert!(reason(LOOK_INTERVAL).ends_with("run the command again"));
    }
}
