use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::api::WorkloadEndpoint;
use libcalico::names::InterfaceAlias;
use libcalico::net::Cidr;
use libcalico::workload::{Orchestrator, WorkloadIdentity};
use netconf::{Call, CniError, CniResult, Code};
use node_process::process;
use os::clock::Clock;
use os::node_files::NodeFiles;

use crate::cni_error::dataplane_error;
use crate::ipam::AssignedAddresses;
use crate::mtu;
use dataplane::plan::{DEFAULT_IPV4_GATEWAY, default_routes};
use dataplane::{BusyRoute, EndpointPlan, MacAddr, PriorInterface};

/// The settings of an interface that depend on more than the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkSettings {
    /// MTU of both ends in bytes; 0 is the kernel's default.
    pub mtu: u32,
    /// MAC address of the container's end; `None` lets the kernel choose. For the kernel's dataplane
    /// only.
    pub mac: Option<MacAddr>,
}

/// The interface of one call: derives the properties of both ends from the call and its workload.
#[derive(Debug, Clone, Copy)]
pub struct InterfaceConfig<'c> {
    /// The call.
    pub call: &'c Call,
    /// The pod or container.
    pub workload: &'c WorkloadIdentity,
}

impl<'c> InterfaceConfig<'c> {
    /// Returns the name of the host's end (CNI-88, CNI-89).
    pub fn host_ifname(&self) -> String {
        let prefix = process::felix_interface_prefix();
        self.workload.host_interface(prefix.as_deref())
    }

    /// Returns the alias of the host's end, which names the pod or container.
    pub fn alias(&self) -> InterfaceAlias {
        let (network, id) = (&self.call.conf.name, &self.call.container_id);
        match &self.workload.orchestrator {
            Orchestrator::Cni(_) => InterfaceAlias::for_container(id),
            Orchestrator::Kubernetes(pod) => {
                InterfaceAlias::for_pod(network, &pod.namespace, &pod.name, id)
            }
        }
    }

    /// Returns the socket of the gRPC dataplane; `None` if the kernel's dataplane creates the
    /// interface.
    pub fn grpc_socket(&self) -> Option<&'c str> {
        self.call.conf.dataplane_options.grpc_socket()
    }

    /// Returns the plan of the interface with these addresses. `prior` is the existing interface
    /// that has the name of the host's end.
    pub fn plan(
        &self,
        addresses: &[IpAddr],
        link: LinkSettings,
        prior: PriorInterface,
    ) -> EndpointPlan {
        let conf = &self.call.conf;
        EndpointPlan {
            host_ifname: self.host_ifname(),
            container_ifname: self.call.ifname.clone(),
            alias: self.alias(),
            prior,
            addresses: addresses.to_vec(),
            mtu: link.mtu,
            num_queues: conf.interface.num_queues.max(1),
            device: conf.interface.device_type,
            container_mac: link.mac,
            routes: self.routes(),
            ipv4_gateway: DEFAULT_IPV4_GATEWAY,
            allow_ip_forwarding: conf.container_settings.allow_ip_forwarding,
            host_routes: true,
            replaces_idle_routes: false,
            refuses_addresses_of_pods: false,
            withholds_other_pods: self.is_of_pod(),
        }
    }

    /// Returns true if the plugin creates host routes to the addresses of `result`. The result of
    /// `calico-ipam` has no routes if Felix creates them: for a pod that chooses its addresses, or
    /// to which a VMI migrates (CNI-127).
    pub fn has_host_routes(&self, result: &CniResult) -> bool {
        !(self.is_of_pod() && self.call.conf.ipam.is_calico() && result.routes.is_empty())
    }

    /// Returns the configured MTU of both ends, for [`LinkSettings`].
    pub async fn mtu(&self, files: &NodeFiles, clock: &impl Clock) -> Result<u32, CniError> {
        mtu::of_interface(&self.call.conf.interface, files, clock)
            .await
            .map_err(|error| CniError::new(Code::IO, error.to_string()))
    }

    /// Returns true if the interface is a pod's.
    pub fn is_of_pod(&self) -> bool {
        matches!(self.workload.orchestrator, Orchestrator::Kubernetes(_))
    }

    /// Returns the container's routes. The routes in the result of IPAM are not used (CNI-112).
    fn routes(&self) -> Vec<Cidr> {
        let conf = &self.call.conf;
        let are_used = self.is_of_pod() && conf.ipam.is_host_local();
        let configured = conf
            .ipam
            .routes
            .iter()
            .filter(|_| are_used)
            .filter_map(|route| route.dst);
        let mut routes: Vec<_> = configured
            .filter_map(|dst| Cidr::new(dst.addr(), dst.prefix_len()))
            .collect();
        if routes.is_empty() {
            return default_routes();
        }
        if conf.interface.include_default_routes {
            routes.splice(0..0, default_routes());
        }
        routes
    }
}

/// The interface to create for one ADD.
#[derive(Debug, Clone, Copy)]
pub struct NewInterface<'a> {
    /// The addresses of the interface.
    pub assigned: &'a AssignedAddresses,
    /// The endpoint that will be written, for a gRPC dataplane.
    pub endpoint: &'a WorkloadEndpoint,
    /// The pod's annotations, for a gRPC dataplane.
    pub pod_annotations: &'a BTreeMap<String, String>,
    /// The MTU, and the MAC address if the pod requests one.
    pub link: LinkSettings,
    /// The interface that had the name of the host's end before this ADD.
    pub prior: PriorInterface,
    /// Whether to accept addresses that are routed to another pod: the addresses of a VMI may still
    /// be routed to the pod from which the VMI migrates.
    pub has_vmi: bool,
}

/// An interface that this ADD created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedInterface {
    /// Name of the host's end.
    pub host_ifname: String,
    /// Index of the host's end; `None` if a gRPC dataplane created it.
    pub(super) host_index: Option<u32>,
    /// MAC address of the container's end, lower case with colons.
    pub mac: String,
    /// MTU in the result; with 0 the result has no MTU.
    pub mtu: u32,
    /// Whether to report addresses as /32 and /128. With a gRPC dataplane, upstream reports the
    /// prefixes of IPAM (CNI-43).
    pub has_host_prefixes: bool,
}

/// The result of the creation of an interface.
pub type CreateResult = Result<CreatedInterface, CreateError>;

/// A failure to create the interface.
#[derive(Debug)]
pub enum CreateError {
    /// The host has a route to an address, and the route must not be replaced. No part of the
    /// interface remains.
    BusyRoute(BusyRoute),
    /// The interface may exist: a gRPC dataplane may have created it or may still create it, or the
    /// kernel did not delete it.
    Unknown(CniError),
    /// Any other failure. No part of the interface remains, except a pair that the kernel created
    /// and did not return.
    Other(CniError),
}

impl From<CniError> for CreateError {
    fn from(error: CniError) -> Self {
        CreateError::Other(error)
    }
}

impl From<CreateError> for CniError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::BusyRoute(busy) => dataplane_error(busy.into()),
            CreateError::Unknown(error) | CreateError::Other(error) => error,
        }
    }
}
