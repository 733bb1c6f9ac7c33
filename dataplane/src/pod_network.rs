//! [`PodNetwork`]: the host's network, as the calls of the plugin read and change it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::path::Path;

use libcalico::names::InterfaceAlias;

use crate::{
    ConflictingInterface, DataplaneError, DesiredInterface, Difference, EndpointPlan,
    ExistingInterface, InterfacePair, KernelNetwork, NetnsError, NetnsFd, Removed,
    RunningContainer, SuspectContainer, SuspectInterface, Teardown, TeardownTarget,
};

/// The interfaces, routes and settings of a host and of its pods. [`KernelNetwork`] is that of the
/// kernel, and another implementation can be a model of it.
pub trait PodNetwork: Debug + Send + Sync {
    /// An open network namespace of a pod.
    type Netns: Debug + Send + Sync;
    /// A deletion in progress.
    type Removal: Removal;

    /// Opens the namespace at a path; see [`NetnsFd::open`].
    fn open_netns(&self, path: &Path) -> Result<Self::Netns, NetnsError>;

    /// Returns true if the file is a network namespace that this process may enter.
    fn can_enter(&self, netns: &Self::Netns) -> bool;

    /// Creates the network of an endpoint; see [`setup()`](crate::setup()).
    fn set_up(
        &self,
        plan: &EndpointPlan,
        netns: &Self::Netns,
    ) -> Result<InterfacePair, DataplaneError>;

    /// Deletes the pair that [`PodNetwork::set_up`] created; see [`remove`](crate::remove).
    fn undo_set_up(&self, host_index: u32, alias: &InterfaceAlias) -> Result<(), DataplaneError>;

    /// Compares the host's network with a plan; see [`verify()`](crate::verify()).
    fn verify(
        &self,
        plan: &EndpointPlan,
        netns: &Self::Netns,
    ) -> Result<Vec<Difference>, DataplaneError>;

    /// Returns true if neither end of an interface exists; see [`is_absent`](crate::is_absent).
    fn is_absent(
        &self,
        host_ifname: &str,
        container_ifname: &str,
        netns: &Self::Netns,
    ) -> Result<bool, DataplaneError>;

    /// Finds the interface with the name that an ADD is about to use; see
    /// [`existing_interface`](crate::existing_interface).
    fn existing_interface(
        &self,
        desired: DesiredInterface<'_>,
        netns: &Self::Netns,
    ) -> Result<ExistingInterface, DataplaneError>;

    /// Cuts the traffic of an endpoint, and starts the deletion of its interface; see
    /// [`Teardown::start`].
    fn start_removal(&self, target: TeardownTarget) -> Result<Self::Removal, DataplaneError>;

    /// Returns the interfaces of these containers; see
    /// [`suspect_interfaces`](crate::suspect_interfaces).
    fn suspect_interfaces(
        &self,
        suspects: &[SuspectContainer],
    ) -> Result<Vec<SuspectInterface>, DataplaneError>;

    /// Removes an interface if it still belongs to its container; see
    /// [`SuspectInterface::remove`].
    fn remove_suspect(&self, interface: SuspectInterface) -> Result<(), DataplaneError>;

    /// Returns the aliases of all interfaces, by interface name.
    fn interface_aliases(&self) -> Result<BTreeMap<String, InterfaceAlias>, DataplaneError>;

    /// Returns true if the host has an interface of the container; see
    /// [`has_interface`](crate::has_interface).
    fn has_interface<'a>(
        &self,
        container_id: &str,
        addresses: impl Iterator<Item = &'a IpAddr>,
    ) -> Result<bool, DataplaneError>;

    /// Returns the containers that run; see [`running_containers`](crate::running_containers).
    fn running_containers(
        &self,
        interfaces: &[SuspectInterface],
    ) -> Result<Vec<RunningContainer>, DataplaneError>;

    /// Returns true if the host has IPv6.
    fn has_ipv6(&self) -> bool;
}

/// A deletion in progress. The traffic of the interface to be deleted is already cut.
pub trait Removal: Debug + Send {
    /// Returns the host interface that was left unchanged, and that IPAM may prove to be the
    /// endpoint's.
    fn unproven(&self) -> Option<&ConflictingInterface>;

    /// Waits until the interface is deleted.
    fn finish(self) -> Result<Removed, DataplaneError>;
}

impl PodNetwork for KernelNetwork {
    type Netns = NetnsFd;
    type Removal = Teardown;

    fn open_netns(&self, path: &Path) -> Result<NetnsFd, NetnsError> {
        NetnsFd::open(path)
    }

    fn can_enter(&self, netns: &NetnsFd) -> bool {
        netns.run_in(|| Ok::<_, NetnsError>(())).is_ok()
    }

    fn set_up(
        &self,
        plan: &EndpointPlan,
        netns: &NetnsFd,
    ) -> Result<InterfacePair, DataplaneError> {
        crate::setup(plan, netns)
    }

    fn undo_set_up(&self, host_index: u32, alias: &InterfaceAlias) -> Result<(), DataplaneError> {
        crate::remove(host_index, alias)
    }

    fn verify(
        &self,
        plan: &EndpointPlan,
        netns: &NetnsFd,
    ) -> Result<Vec<Difference>, DataplaneError> {
        crate::verify(plan, netns)
    }

    fn is_absent(
        &self,
        host_ifname: &str,
        container_ifname: &str,
        netns: &NetnsFd,
    ) -> Result<bool, DataplaneError> {
        crate::is_absent(host_ifname, container_ifname, netns)
    }

    fn existing_interface(
        &self,
        desired: DesiredInterface<'_>,
        netns: &NetnsFd,
    ) -> Result<ExistingInterface, DataplaneError> {
        crate::existing_interface(desired, netns)
    }

    fn start_removal(&self, target: TeardownTarget) -> Result<Teardown, DataplaneError> {
        Teardown::start(target)
    }

    fn suspect_interfaces(
        &self,
        suspects: &[SuspectContainer],
    ) -> Result<Vec<SuspectInterface>, DataplaneError> {
        crate::suspect_interfaces(suspects)
    }

    fn remove_suspect(&self, interface: SuspectInterface) -> Result<(), DataplaneError> {
        interface.remove()
    }

    fn interface_aliases(&self) -> Result<BTreeMap<String, InterfaceAlias>, DataplaneError> {
        crate::interface_aliases()
    }

    fn has_interface<'a>(
        &self,
        container_id: &str,
        addresses: impl Iterator<Item = &'a IpAddr>,
    ) -> Result<bool, DataplaneError> {
        crate::has_interface(container_id, addresses)
    }

    fn running_containers(
        &self,
        interfaces: &[SuspectInterface],
    ) -> Result<Vec<RunningContainer>, DataplaneError> {
        crate::running_containers(interfaces)
    }

    fn has_ipv6(&self) -> bool {
        crate::has_ipv6()
    }
}

impl Removal for Teardown {
    fn unproven(&self) -> Option<&ConflictingInterface> {
        self.unproven.as_ref()
    }

    fn finish(self) -> Result<Removed, DataplaneError> {
        Teardown::finish(self)
    }
}
