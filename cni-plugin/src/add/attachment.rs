//! [`Attachment`]: the attachment of a container to the network.

use std::net::IpAddr;

use libcalico::api::WorkloadEndpoint;
use libcalico::workload::Orchestrator;
use netconf::CniError;

use crate::cni_error::naming_error;
use crate::context::Context;
use crate::endpoint::{self, ExistingEndpoint};
use crate::interface::InterfaceConfig;
use crate::reads::WorkloadRequest;
use crate::world::{Netns, World};
use dataplane::PriorInterface;

pub(super) struct Attachment<'c, W: World> {
    pub(super) cx: &'c Context<W>,
    pub(super) request: &'c WorkloadRequest,
    /// The MTU of both ends in bytes; 0 is the kernel's default.
    pub(super) mtu: u32,
    /// The result of `interface::open_netns`.
    pub(super) netns: Option<Netns<W>>,
    /// The interface that had the name of the host interface before this ADD.
    pub(super) prior: PriorInterface,
}

impl<'c, W: World> Attachment<'c, W> {
    pub(super) fn interface(&self) -> InterfaceConfig<'c> {
        InterfaceConfig {
            call: &self.cx.call,
            workload: &self.request.workload,
        }
    }

    /// Fails if the ADD may no longer replace the interface that has the name of the host's end.
    pub(super) fn ensure_not_overtaken(&self) -> Result<(), CniError> {
        let (network, netns) = (&self.cx.network, self.netns.as_ref());
        self.interface()
            .ensure_not_overtaken(network, self.prior, netns)
    }

    /// Returns the endpoint as it is before the interface exists. Rejects an endpoint that cannot
    /// be written.
    pub(super) fn desired_endpoint(
        &self,
        existing: Option<&ExistingEndpoint>,
        addresses: &[IpAddr],
    ) -> Result<WorkloadEndpoint, CniError> {
        let WorkloadRequest {
            workload,
            annotations,
            ..
        } = self.request;
        let mut endpoint = match existing {
            Some(existing) => workload.update(existing.value.clone(), addresses),
            None => workload
                .create(addresses)
                .map_err(|error| naming_error(&error))?,
        };
        if matches!(workload.orchestrator, Orchestrator::Kubernetes(_)) {
            let conf = &self.cx.call.conf;
            // The pod gets the profile of the network, like a plain container, if its policy does
            // not come from Kubernetes (CNI-115).
            if conf.policy.policy_type != "k8s" {
                endpoint.spec.profiles = vec![conf.name.clone()];
            }
            // An existing endpoint may contain the floating IPs of an earlier sandbox's addresses
            // (CNI-240).
            endpoint.spec.ip_nats = annotations.nats(addresses)?;
            endpoint
                .spec
                .allow_spoofed_source_prefixes
                .clone_from(&annotations.source_prefixes);
        }
        endpoint.spec.interface_name = self.interface().host_ifname();
        endpoint::validate(&endpoint)?;
        Ok(endpoint)
    }
}
