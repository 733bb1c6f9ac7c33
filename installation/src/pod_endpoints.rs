//! The endpoints of this node's pod interfaces, from the datastore.
//!
//! A store with endpoints as objects has one for each interface. With addresses in the annotations
//! of pods, the plugins' account may not list pods. The blocks of the interface's addresses, and of
//! the handle in its alias, then name the pod to read.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::net::IpAddr;

use allocation::reads::{blocks_of, find};
use datastore::Datastore;
use libcalico::api::{IpPool, ObjectKey, ObjectSelect, WorkloadEndpoint, WorkloadEndpointSpec};
use libcalico::failure::Failure;
use libcalico::ipam::{AllocationOwner, Block, Handle, HandleId};
use libcalico::kubernetes::MIGRATION_LABEL;
use libcalico::names::{EndpointIdentifiers, InterfaceAlias, pod_interface};
use libcalico::net::Cidr;
use libcalico::store::{EndpointForm, Entry, ReadBatch, Store, StoreError};
use netconf::NetConf;

use crate::layout::CALICO_IPAM;
use dataplane::host_network::pod_interface_prefix;

/// The addresses of endpoints by interface name.
pub type Endpoints = BTreeMap<String, Vec<IpAddr>>;

/// The endpoints of this node's interfaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundEndpoints {
    /// The addresses of the endpoints that exist.
    pub by_interface: Endpoints,
    /// The addresses of these endpoints to which the host has to have routes. A finished pod has
    /// none, and neither has the target of a live migration, because until the end of the migration
    /// the address is at its source. Of those in annotations, only addresses that IPAM assigned to
    /// the pod: its annotations may name those of others.
    pub routed: Endpoints,
    /// If the addresses are in annotations, the wanted interfaces whose pod IPAM names, also of a
    /// pod that does not exist any more. Without such a name, a missing endpoint proves nothing about a pod without an
    /// allocation, or about the target of a live migration: the allocation has the handle of the
    /// virtual machine, and no host route leads to the address.
    pub with_named_pod: BTreeSet<String>,
}

/// An interface whose endpoint is wanted.
#[derive(Debug, Clone, Copy)]
pub struct WantedEndpoint<'a> {
    /// The name of the interface.
    pub interface: &'a str,
    /// The destinations of the host routes through the interface.
    pub addresses: &'a [IpAddr],
    /// The alias of the interface.
    pub alias: Option<&'a InterfaceAlias>,
}

/// A reader of the pods of one node whose annotations have the addresses.
struct PodReader<'a> {
    store: &'a Datastore,
    node: &'a str,
    prefix: String,
    /// The endpoints read, by namespace and name of the pod; `None` for a pod that is missing.
    read: BTreeMap<(String, String), Option<EndpointAddresses>>,
    found: FoundEndpoints,
}

/// The addresses of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct EndpointAddresses {
    /// All, with external (NAT) addresses. Felix creates routes to both.
    listed: Vec<IpAddr>,
    /// The addresses of [`FoundEndpoints::routed`].
    routed: Vec<IpAddr>,
}

impl EndpointAddresses {
    fn of(endpoint: &WorkloadEndpoint) -> Self {
        let is_target = endpoint.metadata.labels.contains_key(MIGRATION_LABEL);
        let routed = endpoint
            .spec
            .networks()
            .filter(|network| network.size() == 1 && !is_target);
        EndpointAddresses {
            routed: routed.map(|network| network.network()).collect(),
            listed: addresses_of(&endpoint.spec),
        }
    }
}

/// Returns the endpoints of `node` that are objects, or if the addresses are in annotations those of
/// the interfaces `wanted`.
pub async fn pod_endpoints(
    conf: &NetConf,
    store: &Datastore,
    node: &str,
    wanted: &[WantedEndpoint<'_>],
) -> Result<FoundEndpoints, Failure> {
    match store.endpoint_form() {
        EndpointForm::Object => Ok(stored_endpoints(store, node).await?),
        EndpointForm::PodAnnotations if conf.ipam.ipam_type != CALICO_IPAM => {
            Err(Failure::new(format_args!(
                "addresses are assigned by {}, which does not record their pods",
                conf.ipam.ipam_type
            )))
        }
        EndpointForm::PodAnnotations => {
            let prefix = pod_interface_prefix();
            let reader = PodReader {
                store,
                node,
                prefix,
                read: BTreeMap::new(),
                found: FoundEndpoints::default(),
            };
            Ok(reader.endpoints(&conf.name, wanted).await?)
        }
    }
}

async fn stored_endpoints(store: &Datastore, node: &str) -> Result<FoundEndpoints, StoreError> {
    let mut names = ReadBatch::new();
    let keys = names.list_keys::<WorkloadEndpoint>(&ObjectSelect::default());
    let answers = store.read(&names).await?;
    let of_node =
        |name: &str| EndpointIdentifiers::parse(name).is_ok_and(|found| found.node == node);
    let mut batch = ReadBatch::new();
    let keys = answers.listed_keys(&keys).filter(|key| of_node(&key.name));
    let tickets: Vec<_> = keys
        .map(|key| batch.get::<WorkloadEndpoint>(&key))
        .collect();
    let answers = store.read(&batch).await?;
    let mut found = FoundEndpoints::default();
    for ticket in &tickets {
        let Some(endpoint) = answers.get(ticket)? else {
            continue;
        };
        found.extend(
            &endpoint.value.spec.interface_name,
            EndpointAddresses::of(&endpoint.value),
        );
    }
    Ok(found)
}

impl FoundEndpoints {
    fn extend(&mut self, interface: &str, addresses: EndpointAddresses) {
        self.by_interface
            .entry(interface.to_owned())
            .or_default()
            .extend(addresses.listed);
        self.routed
            .entry(interface.to_owned())
            .or_default()
            .extend(addresses.routed);
    }
}

impl PodReader<'_> {
    /// Looks up the addresses first, and the handles of those interfaces whose addresses lead to no
    /// pod.
    async fn endpoints(
        mut self,
        network: &str,
        wanted: &[WantedEndpoint<'_>],
    ) -> Result<FoundEndpoints, StoreError> {
        let pools = self.store.list::<IpPool>(&ObjectSelect::default()).await?;
        let pools: Vec<IpPool> = pools.into_iter().map(|entry| entry.value).collect();
        let addresses: Vec<IpAddr> = wanted
            .iter()
            .flat_map(|wanted| wanted.addresses)
            .copied()
            .collect();
        let mut blocks = blocks_of(self.store, &pools, &addresses, BTreeSet::new()).await?;
        for wanted in wanted {
            self.add(wanted.interface, &blocks, wanted.addresses)
                .await?;
        }
        let mut handles = Vec::new();
        for wanted in wanted
            .iter()
            .filter(|wanted| !self.found.by_interface.contains_key(wanted.interface))
        {
            let container = wanted.alias.and_then(InterfaceAlias::container_id);
            handles.extend(
                container.map(|id| (wanted.interface, HandleId::for_container(network, id))),
            );
        }
        let counted = self.blocks_of_handles(&handles).await?;
        let of_handles = blocks_of(self.store, &pools, &[], counted).await?;
        for (interface, handle) in &handles {
            let addresses: Vec<IpAddr> = of_handles
                .iter()
                .flat_map(|block| block.value.addresses_of(handle))
                .collect();
            self.add(interface, &of_handles, &addresses).await?;
        }
        blocks.extend(of_handles);
        // Usually none: the blocks of addresses without a host route.
        let is_unread = |ip: &IpAddr| !blocks.iter().any(|block| block.key.contains(*ip));
        let unread: Vec<IpAddr> = self
            .found
            .routed
            .values()
            .flatten()
            .copied()
            .filter(is_unread)
            .collect();
        blocks.extend(blocks_of(self.store, &pools, &unread, BTreeSet::new()).await?);
        retain_assigned(&mut self.found.routed, &self.prefix, &blocks);
        Ok(self.found)
    }

    async fn blocks_of_handles(
        &self,
        handles: &[(&str, HandleId)],
    ) -> Result<BTreeSet<Cidr>, StoreError> {
        if handles.is_empty() {
            return Ok(BTreeSet::new());
        }
        let mut batch = ReadBatch::new();
        let tickets: Vec<_> = handles
            .iter()
            .map(|(_, handle)| batch.get::<Handle>(handle))
            .collect();
        let answers = self.store.read(&batch).await?;
        let mut blocks = BTreeSet::new();
        for ticket in &tickets {
            let Some(handle) = answers.get(ticket)? else {
                continue;
            };
            blocks.extend(handle.value.block.into_keys());
        }
        Ok(blocks)
    }

    /// Adds the endpoints of the pods to which IPAM assigned `addresses`, if their interface has
    /// this name.
    async fn add(
        &mut self,
        interface: &str,
        blocks: &[Entry<Block>],
        addresses: &[IpAddr],
    ) -> Result<(), StoreError> {
        for address in addresses {
            let allocation = blocks
                .iter()
                .find_map(|block| block.value.allocation(*address));
            let attribute = allocation.and_then(|held| held.attribute);
            // The owner of an address of a virtual machine is the pod in which it runs, or two
            // during a migration.
            for (namespace, pod) in attribute.into_iter().flat_map(AllocationOwner::owners) {
                if pod_interface(&self.prefix, namespace, pod) != interface {
                    continue;
                }
                self.found.with_named_pod.insert(interface.to_owned());
                if let Some(mut addresses) = self.addresses_of(namespace, pod).await? {
                    addresses.listed.push(*address);
                    self.found.extend(interface, addresses);
                }
            }
        }
        Ok(())
    }

    /// Returns the addresses of the endpoint of a pod on this node, also of a pod that has ended:
    /// its interface remains until its sandbox is removed.
    async fn addresses_of(
        &mut self,
        namespace: &str,
        pod: &str,
    ) -> Result<Option<EndpointAddresses>, StoreError> {
        let entry = match self.read.entry((namespace.to_owned(), pod.to_owned())) {
            btree_map::Entry::Occupied(entry) => entry.into_mut(),
            btree_map::Entry::Vacant(entry) => {
                let identifiers = EndpointIdentifiers {
                    node: self.node.to_owned(),
                    orchestrator: "k8s".into(),
                    endpoint: "eth0".into(),
                    pod: pod.to_owned(),
                    ..EndpointIdentifiers::default()
                };
                let found = match identifiers.name() {
                    Ok(name) => {
                        find::<WorkloadEndpoint>(
                            self.store,
                            &ObjectKey::namespaced(namespace, name),
                        )
                        .await?
                    }
                    Err(_) => None,
                };
                entry.insert(found.map(|endpoint| EndpointAddresses::of(&endpoint.value)))
            }
        };
        Ok(entry.clone())
    }
}

/// Removes the addresses that IPAM did not assign to the pod of their interface.
fn retain_assigned(routed: &mut Endpoints, prefix: &str, blocks: &[Entry<Block>]) {
    for (interface, addresses) in routed {
        addresses.retain(|address| {
            let held = blocks
                .iter()
                .find_map(|block| block.value.allocation(*address));
            let attribute = held
                .filter(|held| !held.is_cooling())
                .and_then(|held| held.attribute);
            let mut owners = attribute.into_iter().flat_map(AllocationOwner::owners);
            owners.any(|(namespace, pod)| pod_interface(prefix, namespace, pod) == *interface)
        });
    }
}

/// Returns the addresses of an endpoint and its external (NAT) addresses. Felix creates routes to
/// both.
fn addresses_of(spec: &WorkloadEndpointSpec) -> Vec<IpAddr> {
    let own = spec.networks().map(|network| network.network());
    own.chain(
        spec.ip_nats
            .iter()
            .filter_map(|nat| nat.external_ip.parse().ok()),
    )
    .collect()
}

#[cfg(test)]
mod tests {
    use libcalico::api::IpNat;
    use libcalico::ipam::{AffinityOwner, BlockRequest, Reservations};
    use libcalico::store::Revision;
    use time::OffsetDateTime;

    use super::*;

    /// As after `kubectl annotate` of a pod with the address of another one.
    #[test]
    fn address_that_ipam_assigned_to_another_pod_or_to_none_needs_no_host_route() {
        let node = AffinityOwner::Host("n1".into());
        let mut block = Block::new(
            "10.65.0.0/26".parse().unwrap(),
            &node,
            OffsetDateTime::UNIX_EPOCH,
        )
        .unwrap();
        for pod in ["web", "db"] {
            let handle = HandleId::new(format!("net.{pod}"));
            let attributes = [("namespace", "shop"), ("pod", pod)]
                .map(|(key, text)| (key.to_owned(), text.to_owned()));
            let attributes = attributes.into();
            let request = BlockRequest {
                handle: Some(&handle),
                attributes: &attributes,
                requester: &node,
                check_affinity: true,
            };
            block.assign(1, &request, &Reservations::none()).unwrap();
        }
        let addresses: Vec<IpAddr> = block.allocated().map(|held| held.ip).collect();
        let [web, db] = addresses[..] else {
            panic!("{addresses:?}")
        };
        let interface = pod_interface("cali", "shop", "web");
        let free: IpAddr = "10.65.0.63".parse().unwrap();
        let outside: IpAddr = "192.0.2.1".parse().unwrap();
        let mut routed = Endpoints::from([(interface.clone(), vec![db, web, free, outside])]);
        let entry = Entry {
            key: block.cidr,
            value: block,
            revision: Revision("1".into()),
        };
        retain_assigned(&mut routed, "cali", &[entry]);
        assert_eq!(routed[&interface], [web]);
    }

    #[test]
    fn endpoint_of_a_migration_target_needs_no_host_route() {
        let nat = IpNat {
            external_ip: "192.0.2.7".into(),
            ..IpNat::default()
        };
        let ip_networks = vec![
            "10.65.0.1/32".into(),
            "fd65::1".into(),
            "10.66.0.0/24".into(),
        ];
        let spec = WorkloadEndpointSpec {
            ip_networks,
            ip_nats: vec![nat],
            ..WorkloadEndpointSpec::default()
        };
        let mut endpoint = WorkloadEndpoint::new("n", spec);
        let routed = |endpoint: &WorkloadEndpoint| EndpointAddresses::of(endpoint).routed;
        assert_eq!(
            routed(&endpoint),
            ["10.65.0.1", "fd65::1"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        endpoint
            .metadata
            .labels
            .insert(MIGRATION_LABEL.into(), "job".into());
        assert_eq!(routed(&endpoint), Vec::<IpAddr>::new());
        assert_eq!(EndpointAddresses::of(&endpoint).listed.len(), 4);
    }

    #[test]
    fn endpoint_addresses_include_external_nat_addresses() {
        let nat = IpNat {
            internal_ip: "10.65.0.1".into(),
            external_ip: "192.0.2.7".into(),
            ..IpNat::default()
        };
        let ip_networks = vec!["10.65.0.1/32".into(), "fd65::1/128".into()];
        let spec = WorkloadEndpointSpec {
            ip_networks,
            ip_nats: vec![nat],
            ..WorkloadEndpointSpec::default()
        };
        assert_eq!(
            addresses_of(&spec),
            ["10.65.0.1", "fd65::1", "192.0.2.7"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
    }
}
