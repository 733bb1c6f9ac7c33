//! Temporary.
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use dataplane::{
    ConflictingInterface, DataplaneError, DesiredInterface, DeviceType, Difference, EndpointPlan,
    ExistingInterface, InterfacePair, MacAddr, NetnsError, PodNetwork, PriorInterface, Removal,
    Removed, RunningContainer, SuspectContainer, SuspectInterface, TeardownTarget,
};
use libcalico::names::InterfaceAlias;

#[derive(Debug, Clone, Default)]
pub struct KernelModel(Arc<Mutex<State>>);
#[derive(Debug, Default)]
struct State {
    next: u32,
    links: BTreeMap<String, Link>,
    netns: BTreeSet<String>,
}
#[derive(Debug)]
struct Link {
    index: u32,
    alias: InterfaceAlias,
    addresses: Vec<IpAddr>,
    netns: String,
}
#[derive(Debug)]
pub struct Route {
    pub address: IpAddr,
    pub container: Option<String>,
}

impl KernelModel {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
    pub fn create_netns(&self, path: &str) {
        self.state().netns.insert(path.into());
    }
    pub fn remove_netns(&self, path: &str) {
        let mut s = self.state();
        s.netns.remove(path);
        s.links.retain(|_, l| l.netns != path);
    }
    pub fn start_process(&self, _: &str) {}
    pub fn reboot(&self) {
        let mut s = self.state();
        s.links.clear();
        s.netns.clear();
    }
    pub fn host_routes(&self) -> Vec<Route> {
        self.state()
            .links
            .values()
            .flat_map(|l| {
                l.addresses.iter().map(|a| Route {
                    address: *a,
                    container: Some(l.alias.container().to_owned()),
                })
            })
            .collect()
    }
}
#[derive(Debug)]
pub struct EndedRemoval(Option<String>);
impl Removal for EndedRemoval {
    fn unproven(&self) -> Option<&ConflictingInterface> {
        None
    }
    fn finish(self) -> Result<Removed, DataplaneError> {
        Ok(Removed { interface: self.0 })
    }
}
impl PodNetwork for KernelModel {
    type Netns = String;
    type Removal = EndedRemoval;
    fn open_netns(&self, path: &Path) -> Result<String, NetnsError> {
        let p = path.display().to_string();
        if self.state().netns.contains(&p) {
            Ok(p)
        } else {
            dataplane::NetnsFd::open(Path::new("/no/such")).map(|_| p)
        }
    }
    fn can_enter(&self, n: &String) -> bool {
        self.state().netns.contains(n)
    }
    fn set_up(&self, plan: &EndpointPlan, netns: &String) -> Result<InterfacePair, DataplaneError> {
        let mut s = self.state();
        s.next += 1;
        let index = s.next;
        s.links.insert(
            plan.host_ifname.clone(),
            Link {
                index,
                alias: plan.alias.clone(),
                addresses: plan.addresses.clone(),
                netns: netns.clone(),
            },
        );
        Ok(InterfacePair {
            host_ifname: plan.host_ifname.clone(),
            host_index: index,
            host_mac: MacAddr::HOST_SIDE,
            container_mac: MacAddr::HOST_SIDE,
            mtu: plan.mtu,
            device: DeviceType::Veth,
            stages: Vec::new(),
        })
    }
    fn undo_set_up(&self, index: u32, alias: &InterfaceAlias) -> Result<(), DataplaneError> {
        self.state()
            .links
            .retain(|_, l| l.index != index || l.alias != *alias);
        Ok(())
    }
    fn verify(&self, _: &EndpointPlan, _: &String) -> Result<Vec<Difference>, DataplaneError> {
        Ok(Vec::new())
    }
    fn is_absent(&self, host: &str, _: &str, _: &String) -> Result<bool, DataplaneError> {
        Ok(!self.state().links.contains_key(host))
    }
    fn existing_interface(
        &self,
        d: DesiredInterface<'_>,
        _: &String,
    ) -> Result<ExistingInterface, DataplaneError> {
        Ok(ExistingInterface::Replaceable(
            match self.state().links.get(d.host_ifname) {
                None => PriorInterface::Missing,
                Some(l) => PriorInterface::Present {
                    index: l.index,
                    is_proven: false,
                },
            },
        ))
    }
    fn start_removal(&self, t: TeardownTarget) -> Result<EndedRemoval, DataplaneError> {
        let mut s = self.state();
        let own = s.links.get(&t.host_ifname).is_some_and(|l| {
            t.container_id
                .as_deref()
                .is_none_or(|id| l.alias.is_of_container(id))
        });
        let removed = if own {
            s.links.remove(&t.host_ifname);
            Some(t.host_ifname)
        } else {
            None
        };
        Ok(EndedRemoval(removed))
    }
    fn suspect_interfaces(
        &self,
        _: &[SuspectContainer],
    ) -> Result<Vec<SuspectInterface>, DataplaneError> {
        Ok(Vec::new())
    }
    fn remove_suspect(&self, _: SuspectInterface) -> Result<(), DataplaneError> {
        Ok(())
    }
    fn interface_aliases(&self) -> Result<BTreeMap<String, InterfaceAlias>, DataplaneError> {
        Ok(self
            .state()
            .links
            .iter()
            .map(|(n, l)| (n.clone(), l.alias.clone()))
            .collect())
    }
    fn has_interface<'a>(
        &self,
        c: &str,
        mut ips: impl Iterator<Item = &'a IpAddr>,
    ) -> Result<bool, DataplaneError> {
        let s = self.state();
        Ok(s.links.values().any(|l| l.alias.is_of_container(c))
            || ips.any(|ip| s.links.values().any(|l| l.addresses.contains(ip))))
    }
    fn running_containers(
        &self,
        _: &[SuspectInterface],
    ) -> Result<Vec<RunningContainer>, DataplaneError> {
        Ok(Vec::new())
    }
    fn has_ipv6(&self) -> bool {
        true
    }
}
