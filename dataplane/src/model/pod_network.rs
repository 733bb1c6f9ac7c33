//! The operations of the plugin on the modeled kernel.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::thread;

use libcalico::names::InterfaceAlias;

use super::access::reported_route;
use super::tables::{HOST, NetnsId, NewEnd, Tables};
use super::{Errno, KernelModel, ModelLock, ModelNetns, steps};
use crate::compare::{self, KernelState};
use crate::host_access::HostAccess;
use crate::netlink::{KernelAddress, KernelRoute, link};
use crate::plan::{InterfaceEnd, KERNEL_DEFAULT_MTU};
use crate::setup::create::{self, NewPair};
use crate::setup::{self, host_routes};
use crate::teardown::SearchResult;
use crate::{
    ConflictingInterface, DataplaneError, DesiredInterface, Difference, EndpointPlan,
    ExistingInterface, InterfacePair, MacAddr, NetlinkError, NetnsError, PodNetwork, Removal,
    Removed, RunningContainer, SuspectContainer, SuspectInterface, TeardownTarget, existing,
    suspects,
};

/// A deletion in progress. The interface is deleted by [`Removal::finish`], or when this value is
/// dropped other than by a panic.
#[derive(Debug)]
pub struct ModelRemoval {
    model: KernelModel,
    unproven: Option<ConflictingInterface>,
    own: Option<OwnInterface>,
}

/// The end of a pair on which the deletion is requested.
#[derive(Debug)]
struct OwnInterface {
    /// The pod's namespace; `None` for the host end.
    netns: Option<ModelNetns>,
    index: u32,
    name: String,
    _lock: Option<ModelLock>,
}

impl OwnInterface {
    fn netns_id(&self) -> NetnsId {
        self.netns.as_ref().map_or(HOST, |netns| netns.id)
    }
}

impl ModelRemoval {
    fn delete(&mut self) -> Result<Removed, DataplaneError> {
        let Some(own) = self.own.take() else {
            return Ok(Removed::default());
        };
        let deleted = self.model.step(steps::DELETE_PAIR, |tables| {
            tables.delete(own.netns_id(), own.index)
        });
        link::ignore_missing(deleted)?;
        Ok(Removed {
            interface: Some(own.name.clone()),
        })
    }
}

impl Removal for ModelRemoval {
    fn unproven(&self) -> Option<&ConflictingInterface> {
        self.unproven.as_ref()
    }

    fn finish(mut self) -> Result<Removed, DataplaneError> {
        self.delete()
    }
}

/// The thread of a deletion continues without the call that started it.
impl Drop for ModelRemoval {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = self.delete();
        }
    }
}

impl PodNetwork for KernelModel {
    type Netns = ModelNetns;
    type Removal = ModelRemoval;

    fn open_netns(&self, path: &Path) -> Result<ModelNetns, NetnsError> {
        self.open(path).ok_or_else(|| NetnsError::NotFound {
            path: path.to_owned(),
        })
    }

    fn can_enter(&self, _: &ModelNetns) -> bool {
        true
    }

    fn set_up(
        &self,
        plan: &EndpointPlan,
        netns: &ModelNetns,
    ) -> Result<InterfacePair, DataplaneError> {
        plan.validate().map_err(DataplaneError::Plan)?;
        let mut lock = self.try_lock(false);
        let pair = self.create(plan, netns, &mut lock)?;
        self.configure(plan, netns, &pair, lock).map_err(|error| {
            let deleted = self.clone().delete_link(&pair.host);
            setup::after_rollback(&pair.host.name, error, deleted)
        })
    }

    fn undo_set_up(&self, host_index: u32, alias: &InterfaceAlias) -> Result<(), DataplaneError> {
        setup::remove_from(&mut self.clone(), host_index, alias)
    }

    fn verify(
        &self,
        plan: &EndpointPlan,
        netns: &ModelNetns,
    ) -> Result<Vec<Difference>, DataplaneError> {
        plan.validate().map_err(DataplaneError::Plan)?;
        let tables = self.tables();
        let (host_end, container_end) = (plan.host_end(), plan.container_end());
        let host = state_of(&tables, HOST, &host_end);
        let container = state_of(&tables, netns.id, &container_end);
        Ok(compare::compare(
            (host_end, host),
            (container_end, container),
            Some(netns.id as i32),
        ))
    }

    fn is_absent(
        &self,
        host_ifname: &str,
        container_ifname: &str,
        netns: &ModelNetns,
    ) -> Result<bool, DataplaneError> {
        let is_on_host = self.tables().index_of(HOST, host_ifname).is_some();
        Ok(!is_on_host && self.find_in(netns, container_ifname).is_none())
    }

    fn existing_interface(
        &self,
        desired: DesiredInterface<'_>,
        netns: &ModelNetns,
    ) -> Result<ExistingInterface, DataplaneError> {
        existing::examine(&mut self.clone(), desired, netns)
    }

    fn start_removal(&self, target: TeardownTarget) -> Result<ModelRemoval, DataplaneError> {
        let (own, unproven) = match self.find(&target)? {
            SearchResult::Own(own) => (Some(own), None),
            SearchResult::Unproven(conflicting) => (None, Some(conflicting)),
            SearchResult::Missing => (None, None),
        };
        if let Some(own) = &own {
            link::ignore_missing(self.step(steps::SET_DOWN, |tables| {
                tables.set_down(own.netns_id(), own.index)
            }))?;
        }
        Ok(ModelRemoval {
            model: self.clone(),
            unproven,
            own,
        })
    }

    fn suspect_interfaces(
        &self,
        suspects: &[SuspectContainer],
    ) -> Result<Vec<SuspectInterface>, DataplaneError> {
        let routes = self.all_routes()?;
        let links = self.host_interfaces();
        Ok(suspects::interfaces_of(suspects, &links, &routes))
    }

    fn remove_suspect(&self, interface: SuspectInterface) -> Result<(), DataplaneError> {
        let mut removal = self.start_removal(interface.into_target())?;
        match removal.unproven.take() {
            Some(conflicting) => Err(DataplaneError::HostInterfaceConflict(Box::new(conflicting))),
            None => removal.finish().map(drop),
        }
    }

    fn interface_aliases(&self) -> Result<BTreeMap<String, InterfaceAlias>, DataplaneError> {
        Ok(suspects::aliases_of(self.host_interfaces()))
    }

    fn has_interface<'a>(
        &self,
        container_id: &str,
        addresses: impl Iterator<Item = &'a IpAddr>,
    ) -> Result<bool, DataplaneError> {
        let links = self.host_interfaces();
        let mut links = links.iter();
        Ok(
            links.any(|link| suspects::is_of_container(link, container_id))
                || suspects::leads_to_any(&self.all_routes()?, addresses),
        )
    }

    fn running_containers(
        &self,
        interfaces: &[SuspectInterface],
    ) -> Result<Vec<RunningContainer>, DataplaneError> {
        let mut by_id = BTreeMap::new();
        for (process, netns) in self.tables().processes() {
            by_id.entry(netns as i32).or_insert(process);
        }
        Ok(suspects::running_in(interfaces, &by_id))
    }

    fn has_ipv6(&self) -> bool {
        true
    }
}

impl KernelModel {
    fn all_routes(&self) -> Result<Vec<KernelRoute>, NetlinkError> {
        self.clone().routes_of_both(None)
    }

    /// Creates the pair, and deletes an interface of the same name that the ADD may replace.
    fn create(
        &self,
        plan: &EndpointPlan,
        netns: &ModelNetns,
        lock: &mut Option<ModelLock>,
    ) -> Result<NewPair, DataplaneError> {
        let created = match self.create_once(plan, netns) {
            Err(error) if error.errno() == Some(Errno::EEXIST) => {
                let mut host = self.clone();
                *lock = None;
                *lock = host.lock(&plan.host_ifname)?;
                create::remove_stale(&mut host, plan, netns)?;
                self.create_once(plan, netns)
            }
            outcome => outcome,
        };
        created.map_err(DataplaneError::from)
    }

    fn create_once(
        &self,
        plan: &EndpointPlan,
        netns: &ModelNetns,
    ) -> Result<NewPair, NetlinkError> {
        let host_end = NewEnd {
            netns: HOST,
            name: &plan.host_ifname,
            mac: Some(MacAddr::HOST_SIDE),
        };
        let container_end = NewEnd {
            netns: netns.id,
            name: &plan.container_ifname,
            mac: plan.container_mac,
        };
        let mtu = match plan.mtu {
            0 => KERNEL_DEFAULT_MTU,
            mtu => mtu,
        };
        self.step(steps::CREATE_PAIR, |tables| {
            let index = tables.create_pair(&[host_end, container_end], mtu)?;
            let host = tables.reported(HOST, index).ok_or(Errno::ENODEV)?;
            let existing = |to| Some(reported_route(to, tables.route_to(to)?));
            Ok(NewPair {
                host,
                device: plan.device,
                routes_before: plan.host_destinations().filter_map(existing).collect(),
            })
        })
    }

    fn configure(
        &self,
        plan: &EndpointPlan,
        netns: &ModelNetns,
        pair: &NewPair,
        lock: Option<ModelLock>,
    ) -> Result<InterfacePair, DataplaneError> {
        host_routes::bring_up_with_routes(&mut self.clone(), pair, &plan.host_end(), plan)
            .inspect_err(host_routes::log_withheld)?;
        drop(lock);
        let end = plan.container_end();
        let (container_mac, mtu) = self.step(steps::CONFIGURE_POD_END, |tables| {
            let index = pair.host.peer_index.ok_or(Errno::ENODEV)?;
            let link = tables.link_mut(netns.id, index)?;
            link.is_up = true;
            let addresses = end.addresses.iter().map(|address| address.network());
            link.addresses.extend(addresses);
            let created = (link.mac, link.mtu);
            // The kernel continues after a route that it refuses.
            let destinations = end.routes.iter().map(|route| route.destination);
            let added = destinations.map(|to| tables.add_route(netns.id, to, index));
            added
                .collect::<Vec<_>>()
                .into_iter()
                .collect::<Result<(), _>>()?;
            Ok(created)
        })?;
        Ok(InterfacePair {
            host_ifname: plan.host_ifname.clone(),
            host_index: pair.host.index,
            host_mac: MacAddr::HOST_SIDE,
            container_mac,
            mtu,
            device: pair.device,
            stages: Vec::new(),
        })
    }

    /// Returns the pod's end, or else the host end, if the pair belongs to this endpoint.
    fn find(&self, target: &TeardownTarget) -> Result<SearchResult<OwnInterface>, DataplaneError> {
        if target.proof == crate::HostLinkProof::OtherInterface {
            return Ok(SearchResult::Missing);
        }
        let mut host = self.clone();
        let pod = target.netns.as_deref().and_then(|path| self.open(path));
        let Some(pod) = pod else {
            return self.find_host_end(target, None);
        };
        match self.find_in(&pod, &target.container_ifname) {
            Some(inside) if target.is_own_in_pod(&mut host, &inside, &pod)? => {
                Ok(SearchResult::Own(OwnInterface {
                    netns: Some(pod),
                    index: inside.index,
                    name: inside.name,
                    _lock: None,
                }))
            }
            _ => self.find_host_end(target, Some(&pod)),
        }
    }

    fn find_host_end(
        &self,
        target: &TeardownTarget,
        pod: Option<&ModelNetns>,
    ) -> Result<SearchResult<OwnInterface>, DataplaneError> {
        let found = target.own_host_end(&mut self.clone(), pod)?;
        Ok(found.map(|(link, lock)| OwnInterface {
            netns: None,
            index: link.index,
            name: link.name,
            _lock: lock,
        }))
    }
}

/// Returns the state of an end, with the settings that the end is to have.
fn state_of(tables: &Tables, netns: NetnsId, end: &InterfaceEnd) -> Option<KernelState> {
    let index = tables.index_of(netns, &end.ifname)?;
    let address = |ip: &IpAddr| KernelAddress {
        interface: index,
        ip: *ip,
        prefix: if ip.is_ipv4() { 32 } else { 128 },
    };
    let routes = tables
        .routes()
        .filter(|(_, through)| netns == HOST && *through == index);
    let settings = end.sysctls.iter();
    Some(KernelState {
        link: tables.reported(netns, index)?,
        addresses: tables
            .link(netns, index)?
            .addresses
            .iter()
            .map(address)
            .collect(),
        routes: routes
            .map(|(to, index)| reported_route(to, index))
            .collect(),
        sysctls: settings
            .map(|setting| Ok(setting.value.to_string()))
            .collect(),
        neighbours: Vec::new(),
    })
}
