//! [`NodeNetwork`]: the network of a node, into which a fault can be planted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use dataplane::model::KernelModel;
use dataplane::{
    DataplaneError, DesiredInterface, Difference, EndpointPlan, ExistingInterface, InterfacePair,
    NetnsError, PodNetwork, PriorInterface, RunningContainer, SuspectContainer, SuspectInterface,
    TeardownTarget,
};
use libcalico::names::InterfaceAlias;

use crate::plants::Plant;

/// The network of a node, as its calls see it.
#[derive(Debug, Clone)]
pub struct NodeNetwork {
    /// The network as it is.
    pub kernel: KernelModel,
    /// A planted fault.
    pub plant: Plant,
}

type Netns = <KernelModel as PodNetwork>::Netns;

impl PodNetwork for NodeNetwork {
    type Netns = Netns;
    type Removal = <KernelModel as PodNetwork>::Removal;

    fn open_netns(&self, path: &Path) -> Result<Netns, NetnsError> {
        self.kernel.open_netns(path)
    }

    fn can_enter(&self, netns: &Netns) -> bool {
        self.kernel.can_enter(netns)
    }

    fn set_up(&self, plan: &EndpointPlan, netns: &Netns) -> Result<InterfacePair, DataplaneError> {
        self.kernel.set_up(plan, netns)
    }

    fn undo_set_up(&self, host_index: u32, alias: &InterfaceAlias) -> Result<(), DataplaneError> {
        let links = match self.plant {
            Plant::UndoByName => self.kernel.host_links(),
            _ => Vec::new(),
        };
        let of_pod = links.into_iter().find_map(|state| {
            let found = state
                .link
                .alias
                .filter(|found| found.is_of_same_pod(alias))?;
            Some((state.link.index, found))
        });
        match of_pod {
            Some((index, found)) => self.kernel.undo_set_up(index, &found),
            None => self.kernel.undo_set_up(host_index, alias),
        }
    }

    fn verify(
        &self,
        plan: &EndpointPlan,
        netns: &Netns,
    ) -> Result<Vec<Difference>, DataplaneError> {
        self.kernel.verify(plan, netns)
    }

    fn is_absent(
        &self,
        host_ifname: &str,
        container_ifname: &str,
        netns: &Netns,
    ) -> Result<bool, DataplaneError> {
        self.kernel.is_absent(host_ifname, container_ifname, netns)
    }

    fn existing_interface(
        &self,
        desired: DesiredInterface<'_>,
        netns: &Netns,
    ) -> Result<ExistingInterface, DataplaneError> {
        match self.plant {
            Plant::UnseenInterfaces => Ok(ExistingInterface::Replaceable(PriorInterface::Unknown)),
            _ => self.kernel.existing_interface(desired, netns),
        }
    }

    fn start_removal(&self, target: TeardownTarget) -> Result<Self::Removal, DataplaneError> {
        let target = match self.plant {
            Plant::RemovalByName => TeardownTarget {
                container_id: None,
                ..target
            },
            Plant::OmittedRemovals => TeardownTarget {
                netns: None,
                host_ifname: "omitted".into(),
                ..target
            },
            _ => target,
        };
        self.kernel.start_removal(target)
    }

    fn suspect_interfaces(
        &self,
        suspects: &[SuspectContainer],
    ) -> Result<Vec<SuspectInterface>, DataplaneError> {
        self.kernel.suspect_interfaces(suspects)
    }

    fn remove_suspect(&self, interface: SuspectInterface) -> Result<(), DataplaneError> {
        self.kernel.remove_suspect(interface)
    }

    fn interface_aliases(&self) -> Result<BTreeMap<String, InterfaceAlias>, DataplaneError> {
        self.kernel.interface_aliases()
    }

    fn has_interface<'a>(
        &self,
        container_id: &str,
        addresses: impl Iterator<Item = &'a IpAddr>,
    ) -> Result<bool, DataplaneError> {
        match self.plant {
            Plant::UnseenContainers => Ok(false),
            _ => self.kernel.has_interface(container_id, addresses),
        }
    }

    fn running_containers(
        &self,
        interfaces: &[SuspectInterface],
    ) -> Result<Vec<RunningContainer>, DataplaneError> {
        match self.plant {
            Plant::UnseenProcesses => Ok(Vec::new()),
            _ => self.kernel.running_containers(interfaces),
        }
    }

    fn has_ipv6(&self) -> bool {
        self.kernel.has_ipv6()
    }
}
