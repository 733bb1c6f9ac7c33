//! All feeds of the process.

use libcalico::api::Node as CalicoNode;
use libcalico::api::{ClusterInformation, HostEndpoint, IpPool, IpReservation};
use libcalico::ipam::Block;
use libcalico::store::Entry;

use super::{Event, Listener};
use crate::watched::{Namespace, NetworkPolicy, Node, Pod, Service, ServiceAccount, Watched};

/// One kind, and who listens. A feed that nobody listens to is not started.
pub struct Feed<T: Watched> {
    listeners: Vec<Box<dyn Listener<T>>>,
}

/// The feeds that controllers may subscribe to.
#[derive(Default)]
pub struct Feeds {
    /// Pods, from Kubernetes.
    pub pods: Feed<Pod>,
    /// Nodes, from Kubernetes.
    pub nodes: Feed<Node>,
    /// Namespaces, from Kubernetes.
    pub namespaces: Feed<Namespace>,
    /// Service accounts, from Kubernetes.
    pub service_accounts: Feed<ServiceAccount>,
    /// Network policies, from Kubernetes.
    pub network_policies: Feed<NetworkPolicy>,
    /// Services, from Kubernetes.
    pub services: Feed<Service>,
    /// Blocks, from Calico's datastore.
    pub blocks: Feed<Entry<Block>>,
    /// Pools, from Calico's datastore.
    pub ip_pools: Feed<Entry<IpPool>>,
    /// Reservations, from Calico's datastore.
    pub ip_reservations: Feed<Entry<IpReservation>>,
    /// Calico's nodes.
    pub calico_nodes: Feed<Entry<CalicoNode>>,
    /// Host endpoints, from Calico's datastore.
    pub host_endpoints: Feed<Entry<HostEndpoint>>,
    /// Whether the datastore is ready.
    pub cluster_information: Feed<Entry<ClusterInformation>>,
}

impl<T: Watched> Default for Feed<T> {
    fn default() -> Self {
        Feed { listeners: Vec::new() }
    }
}

impl<T: Watched> Feed<T> {
    /// Adds a listener, before the feed starts.
    pub fn subscribe(&mut self, listener: impl Listener<T>) {
        self.listeners.push(Box::new(listener));
    }

    /// Whether anybody listens.
    pub fn is_wanted(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Tells all listeners.
    pub fn tell(&mut self, event: &Event<'_, T>) {
        for listener in &mut self.listeners {
            listener.hear(event);
        }
    }
}
