//! [`World`]: the kinds of store, clock and network on which a call acts. Together with the
//! [`NodeFiles`](os::node_files::NodeFiles) these are all that a call changes or waits for.

use std::fmt::Debug;

use dataplane::{KernelNetwork, PodNetwork};
use datastore::{ClusterStore, Datastore, DatastoreConfig};
use ipam_plugin::kubernetes_api::KubernetesApi;
use libcalico::variables::Variables;
use netconf::{CniError, NetConf};
use os::clock::{Clock, SystemClock};

/// The kinds of store, clock and network on which a call acts.
pub trait World: Debug + Sized {
    /// The datastore of the cluster.
    type Store: ClusterStore;
    /// The clock of the node.
    type Clock: Clock;
    /// The network of the node and its pods.
    type Network: PodNetwork;

    /// Returns the access to the API server that the configuration describes, for a replay whose
    /// call needs none. Sends no request.
    ///
    /// # Errors
    /// Returns code 7 if a setting is invalid.
    fn open_api(
        conf: &NetConf,
        datastore: &DatastoreConfig,
        variables: Variables<'_>,
    ) -> Result<KubernetesApi<Self::Store>, CniError>;
}

/// An open network namespace of a pod.
pub type Netns<W> = <<W as World>::Network as PodNetwork>::Netns;

/// The node on which this process runs.
#[derive(Debug)]
pub struct ThisNode;

impl World for ThisNode {
    type Store = Datastore;
    type Clock = SystemClock;
    type Network = KernelNetwork;

    fn open_api(
        conf: &NetConf,
        datastore: &DatastoreConfig,
        variables: Variables<'_>,
    ) -> Result<KubernetesApi, CniError> {
        KubernetesApi::with_environment(conf, datastore, variables)
    }
}

#[cfg(test)]
mod tests;
