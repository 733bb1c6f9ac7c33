//! [`InterfaceRepair`]: removes the interfaces of ended containers, if `CNI_AGENT_REPAIR` is true.

use std::collections::BTreeSet;

use libcalico::dead_interface::{LOOK_INTERVAL, LinkVerdict, Suspects};
use libcalico::ipam::Statement;
use netconf::NetConf;
use os::atomic_file::regular_file;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::deferred_dels::installed_conf_path;
use super::refresh_schedule::Moment;
use super::status::{RepairStatus, SharedStatus};
use dataplane::host_network::HostNetwork;
use installation::dead_interfaces::{
    AssessedLink, Repair, RepairOutcome, Sources, dead_links, remove,
};
use installation::layout::Layout;
use installation::node_conf;
use installation::settings::Settings;

/// The node on which the agent removes dead interfaces.
#[derive(Debug)]
pub struct InterfaceRepair<'a> {
    /// The settings of the installation.
    pub settings: &'a Settings,
    /// The paths of the installation.
    pub layout: &'a Layout,
    /// The network of the node.
    pub network: &'a dyn HostNetwork,
}

/// The looks so far.
#[derive(Debug, Default)]
struct Looks {
    suspects: Suspects,
    /// The reasons for missing evidence in the last look.
    reported: BTreeSet<String>,
    /// The interfaces that could not be removed in the last look, each with the reason.
    stuck: BTreeSet<(String, String)>,
    removed: u64,
}

impl InterfaceRepair<'_> {
    /// Looks at the interfaces each minute, and removes those that are due. Never returns.
    pub(super) async fn watch(self, status: SharedStatus) {
        let mut looks = Looks::default();
        loop {
            let conf = self.conf();
            let look = Sources {
                network: self.network,
                conf: &conf,
                runtime_socket: None,
            }
            .look()
            .await;
            let now = Moment::now();
            let found = match look {
                Ok(assessed) => looks.repair(self.network, now, &assessed).await,
                Err(error) => looks.miss(now, format!("cannot look at the interfaces: {error}")),
            };
            status.get().repair = Some(found);
            sleep(LOOK_INTERVAL).await;
        }
    }

    fn conf(&self) -> Statement<NetConf> {
        let file = installed_conf_path(self.settings, self.layout);
        let text = regular_file::text(&file).map_err(|error| error.to_string());
        let parsed = text.and_then(|text| {
            node_conf::parse(&text, self.layout, &self.settings.net_dir)
                .map_err(|error| error.to_string())
        });
        parsed.map_or_else(
            |reason| Statement::Unknown(format!("{}: {reason}", file.display())),
            Statement::Known,
        )
    }
}

impl Looks {
    /// Removes the interfaces that are due.
    async fn repair(
        &mut self,
        network: &dyn HostNetwork,
        now: Moment,
        assessed: &[AssessedLink],
    ) -> RepairStatus {
        let due = self.suspects.look(now.boot, dead_links(assessed));
        self.stuck
            .retain(|(interface, _)| due.iter().any(|link| link.name == *interface));
        let mut dead = 0;
        for found in assessed
            .iter()
            .filter(|found| found.verdict == LinkVerdict::Dead)
        {
            if !due.contains(&found.link) {
                dead += 1;
                continue;
            }
            dead += u64::from(!self.remove(network, found));
            // The kernel takes tens of milliseconds for each interface. Probes and the token need
            // their turn.
            yield_now().await;
        }
        let unknown = assessed.iter().filter_map(|found| match &found.verdict {
            LinkVerdict::Unknown(reason) => Some(reason.clone()),
            LinkVerdict::InUse(_) | LinkVerdict::Dead => None,
        });
        self.report(unknown.collect());
        RepairStatus {
            dead,
            is_unknown: !self.reported.is_empty(),
            removed: self.removed,
        }
    }

    /// Records a look that failed.
    fn miss(&mut self, now: Moment, reason: String) -> RepairStatus {
        self.suspects.look(now.boot, Vec::new());
        self.report(BTreeSet::from([reason]));
        RepairStatus {
            dead: 0,
            is_unknown: true,
            removed: self.removed,
        }
    }

    fn remove(&mut self, network: &dyn HostNetwork, dead: &AssessedLink) -> bool {
        let Repair {
            interface,
            container,
            addresses,
            outcome,
        } = remove(network, dead);
        let addresses = addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        match outcome {
            RepairOutcome::Removed => {
                let index = dead.link.index;
                tracing::info!(
                    interface,
                    index,
                    container,
                    addresses,
                    "removed an interface that no container uses"
                );
                self.removed += 1;
                return true;
            }
            RepairOutcome::Kept(reason) => {
                tracing::info!(
                    interface,
                    container,
                    reason,
                    "keeping an interface that no container uses"
                );
            }
            RepairOutcome::Failed(reason)
                if self.stuck.insert((interface.clone(), reason.clone())) =>
            {
                tracing::warn!(
                    interface,
                    container,
                    reason,
                    "cannot remove an interface that no container uses"
                );
            }
            RepairOutcome::Failed(_) => {}
        }
        false
    }

    /// Logs the reasons that the last look did not have.
    fn report(&mut self, reasons: BTreeSet<String>) {
        for reason in reasons.difference(&self.reported) {
            tracing::warn!(
                reason,
                "keeping interfaces of which it is unknown whether a container uses them"
            );
        }
        self.reported = reasons;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use libcalico::dead_interface::{DeadLink, UNNAMED_POD_CONFIRMATION, UseEvidence};
    use libcalico::names::InterfaceAlias;

    use super::*;
    use dataplane::host_network::testing::FixedNetwork;

    fn found(name: &str, verdict: LinkVerdict) -> AssessedLink {
        let alias = InterfaceAlias::for_container("c1");
        let link = DeadLink {
            name: name.to_owned(),
            index: 7,
            alias,
        };
        AssessedLink {
            link,
            addresses: Vec::new(),
            verdict,
            confirmation: LOOK_INTERVAL,
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment {
            boot: Duration::from_secs(seconds),
            calendar: Duration::from_secs(seconds),
        }
    }

    /// The network of [`FixedNetwork`] refuses each removal.
    #[tokio::test]
    async fn interface_that_cannot_be_removed_stays_counted_as_dead() {
        let (network, mut looks) = (FixedNetwork::default(), Looks::default());
        let assessed = [
            found("cali1", LinkVerdict::Dead),
            found("cali2", LinkVerdict::InUse(UseEvidence::Sandbox)),
        ];
        let expected = RepairStatus {
            dead: 1,
            is_unknown: false,
            removed: 0,
        };
        for seconds in [0, 60, 120] {
            assert_eq!(
                looks.repair(&network, at(seconds), &assessed).await,
                expected,
                "{seconds}"
            );
        }
        assert_eq!(looks.stuck.len(), 1);
        looks.repair(&network, at(180), &[]).await;
        assert!(looks.stuck.is_empty(), "{:?}", looks.stuck);
    }

    /// The network of [`FixedNetwork`] refuses each removal.
    #[tokio::test]
    async fn interface_of_an_unnamed_pod_is_removed_after_ten_minutes() {
        let (network, mut looks) = (FixedNetwork::default(), Looks::default());
        let dead = found("cali1", LinkVerdict::Dead);
        let unnamed = [AssessedLink {
            confirmation: UNNAMED_POD_CONFIRMATION,
            ..dead
        }];
        for (seconds, attempts) in [(0, 0), (60, 0), (540, 0), (600, 1)] {
            assert_eq!(
                looks.repair(&network, at(seconds), &unnamed).await.dead,
                1,
                "{seconds}"
            );
            assert_eq!(looks.stuck.len(), attempts, "{seconds}");
        }
    }

    /// The agent is one task.
    #[tokio::test]
    async fn agent_does_other_work_between_two_removals() {
        let (network, mut looks) = (FixedNetwork::default(), Looks::default());
        let assessed = ["cali1", "cali2", "cali3"].map(|name| found(name, LinkVerdict::Dead));
        looks.repair(&network, at(0), &assessed).await;
        let turns = Cell::new(0);
        let other_work = async {
            for turn in 1..100 {
                turns.set(turn);
                yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = other_work => panic!("the repair did not end"),
            status = looks.repair(&network, at(60), &assessed) => assert_eq!(status.dead, 3),
        }
        assert!(turns.get() > assessed.len(), "{turns:?}");
    }

    #[tokio::test]
    async fn missing_evidence_is_reported_until_it_is_there() {
        let (network, mut looks) = (FixedNetwork::default(), Looks::default());
        let unknown = [found("cali1", LinkVerdict::Unknown("no right".into()))];
        let expected = RepairStatus {
            dead: 0,
            is_unknown: true,
            removed: 0,
        };
        assert_eq!(looks.repair(&network, at(0), &unknown).await, expected);
        assert_eq!(looks.reported, BTreeSet::from(["no right".to_owned()]));
        assert!(looks.miss(at(60), "no netlink".into()).is_unknown);
        assert_eq!(
            looks.repair(&network, at(120), &[]).await,
            RepairStatus::default()
        );
    }

    #[test]
    fn failed_look_begins_a_new_series() {
        let mut looks = Looks::default();
        let dead = found("cali1", LinkVerdict::Dead);
        looks
            .suspects
            .look(at(0).boot, dead_links(std::slice::from_ref(&dead)));
        looks.miss(at(60), "no netlink".into());
        assert_eq!(
            looks
                .suspects
                .look(at(120).boot, dead_links(std::slice::from_ref(&dead))),
            []
        );
    }
}
