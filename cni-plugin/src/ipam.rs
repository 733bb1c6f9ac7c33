//! Assigns and releases addresses: with `calico-ipam` in this process, or with another IPAM plugin
//! as a child process.

mod exec;
pub mod pod_cidr;
pub mod release;
mod requested;

use std::collections::BTreeMap;
use std::net::IpAddr;

use allocation::alloc::inputs::AllocationInputs;
use allocation::error::cni_error;
use allocation::release::{AddressToRelease, release_addresses};
use allocation::vmi;
use ipam_plugin::cni::{self, IpamRequest};
use libcalico::api::WorkloadEndpoint;
use libcalico::workload::WorkloadIdentity;
use netconf::{Call, CniError, CniResult};
use os::clock::Clock as _;
use os::lock::HostLock;
use os::node_files::NodeFiles;

use self::pod_cidr::PodCidrSubnets;
use self::requested::EarlierAddresses;
use crate::endpoint::ContainerEndpoints;
use crate::world::World;
use dataplane::BusyRoute;

pub use exec::{call_plugin, release_by_plugin, status_of_plugin};

/// The addresses that an ADD requests, and the program that assigns them.
#[derive(Debug)]
pub enum AddressRequest {
    /// Addresses in the pod's annotation `ipAddrsNoIpam`, which IPAM does not record.
    Fixed(Vec<IpAddr>),
    /// Addresses of `calico-ipam`.
    Calico(Box<CalicoRequest>),
    /// Addresses of another IPAM plugin, with the node's subnets if the configuration contains
    /// `usePodCidr`.
    Exec(Option<PodCidrSubnets>),
}

/// A request to `calico-ipam` in process.
#[derive(Debug)]
pub struct CalicoRequest {
    /// The request.
    pub request: IpamRequest,
    /// The objects that the allocation reads first.
    pub inputs: AllocationInputs,
    /// The node's lock, if this process has acquired it already.
    pub lock: Option<HostLock>,
    /// The addresses that the pod requests; empty if `calico-ipam` chooses.
    pub requested: Vec<IpAddr>,
}

/// The addresses that this ADD assigned to its container.
#[derive(Debug, Default)]
pub struct AssignedAddresses {
    /// The result of IPAM.
    pub result: CniResult,
    /// The addresses, in the order of the result.
    pub addresses: Vec<IpAddr>,
    /// True if IPAM records the addresses, so that they have to be released later. False for
    /// [`AddressRequest::Fixed`].
    pub is_recorded: bool,
    /// The request to `calico-ipam`; `None` if `calico-ipam` did not assign the addresses.
    pub request: Option<Box<IpamRequest>>,
    /// Whether to replace a busy address: `calico-ipam` chose the addresses, and they do not belong
    /// to a VMI.
    pub is_replaceable: bool,
    /// Routes to assigned addresses that this ADD cannot use. The addresses stay allocated while
    /// the ADD tries others.
    pub busy: Vec<BusyRoute>,
    /// Addresses of the pod's earlier sandbox that the pod no longer requests.
    pub earlier: Option<EarlierAddresses>,
    /// The attributes of the owner that the pod replaced at the addresses of its VMI; empty if
    /// there was none.
    replaced_owner: BTreeMap<String, String>,
}

/// A call as far as it assigns or releases addresses.
#[derive(Debug)]
pub struct IpamCall<'c, W: World> {
    /// The decoded call.
    pub call: &'c Call,
    /// The name of the node.
    pub node: &'c str,
    /// The datastore.
    pub store: &'c W::Store,
    /// The clock of the call.
    pub clock: &'c W::Clock,
    /// The files and locks of the node.
    pub files: &'c NodeFiles,
}

impl<W: World> Clone for IpamCall<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: World> Copy for IpamCall<'_, W> {}

/// Returns the request to `calico-ipam` for this call on `node`; `None` for another IPAM plugin.
pub fn request(call: &Call, node: &str, files: &NodeFiles) -> Option<IpamRequest> {
    let is_calico = call.conf.ipam.is_calico();
    is_calico.then(|| IpamRequest::from_call(call, node, files))
}

/// Assigns addresses. `existing` is the endpoint of the container or pod, if one was found. After a
/// failure, the addresses assigned so far are released, or stay allocated until the DEL.
pub async fn assign(
    ipam: IpamCall<'_, impl World>,
    workload: &WorkloadIdentity,
    addresses: AddressRequest,
    existing: Option<&WorkloadEndpoint>,
) -> Result<AssignedAddresses, CniError> {
    let call = ipam.call;
    match addresses {
        AddressRequest::Fixed(addresses) => {
            let assigned = AssignedAddresses::new(requested::result(&addresses), None);
            Ok(AssignedAddresses {
                is_recorded: false,
                ..assigned
            })
        }
        AddressRequest::Calico(calico) if !calico.requested.is_empty() => {
            Box::pin(requested::assign(ipam, workload, *calico, existing)).await
        }
        AddressRequest::Calico(calico) => {
            let CalicoRequest {
                mut request,
                inputs,
                lock,
                ..
            } = *calico;
            if request.any_of.is_some() {
                request.predecessor =
                    existing.and_then(|existing| requested::earlier_sandbox(&request, existing));
            }
            let clock = ipam.clock.restarted();
            let assignment = cni::add(ipam.store, &clock, &request, inputs, lock).await?;
            let result =
                ensure_has_addresses(assignment.result).map_err(
                    |error| match families_not_asked(call, &request) {
                        Some(details) => error.with_details(details),
                        None => error,
                    },
                )?;
            let is_replaceable = request.vmi.is_none() && request.ip.is_none();
            let assigned = AssignedAddresses::new(result, Some(Box::new(request)));
            Ok(AssignedAddresses {
                is_replaceable,
                replaced_owner: assignment.replaced,
                ..assigned
            })
        }
        AddressRequest::Exec(subnets) => {
            let assigned = AssignedAddresses::new(
                exec::add(call, subnets.as_ref(), existing.is_none())?,
                None,
            );
            let plugin = &call.conf.ipam.ipam_type;
            tracing::info!(
                addresses = ?assigned.addresses, plugin, "the IPAM plugin assigned addresses",
            );
            Ok(assigned)
        }
    }
}

/// Fails if the result of an IPAM plugin contains no address.
pub fn ensure_has_addresses(result: CniResult) -> Result<CniResult, CniError> {
    if result.ips.is_empty() {
        return Err(CniError::internal("IPAM plugin returned missing IP config"));
    }
    Ok(result)
}

/// Returns the setting that requests no family at all; `None` if a family is requested.
fn families_not_asked(call: &Call, request: &IpamRequest) -> Option<&'static str> {
    if request.assign_ipv4 || request.assign_ipv6 {
        return None;
    }
    let ipam = &call.conf.ipam;
    Some(if ipam.assign_ipv4 || ipam.assign_ipv6 {
        "the annotation cni.projectcalico.org/ipFamilies of the pod or its namespace is an empty \
         list; name \"IPv4\", \"IPv6\" or both there, or remove it"
    } else {
        "$.ipam.assign_ipv4 and $.ipam.assign_ipv6 are both \"false\"; set one of them to \"true\""
    })
}

impl AssignedAddresses {
    fn new(result: CniResult, request: Option<Box<IpamRequest>>) -> Self {
        let addresses = result.ips.iter().map(|ip| ip.address.addr()).collect();
        AssignedAddresses {
            result,
            addresses,
            is_recorded: true,
            request,
            ..AssignedAddresses::default()
        }
    }

    /// Removes the addresses of a failed ADD from the endpoint, and then releases those that IPAM
    /// records. With `calico-ipam` the container keeps the addresses that it had before, and a VMI
    /// keeps its addresses.
    pub async fn unassign(
        &self,
        ipam: IpamCall<'_, impl World>,
        workload: &WorkloadIdentity,
    ) -> Result<(), CniError> {
        let store = ipam.store;
        let endpoints = ContainerEndpoints::new(store, workload.clone());
        let request = self.request.as_deref();
        // Other endpoints keep the addresses of a VMI, which another pod may use. They also keep
        // addresses of another plugin, which may have assigned the same address to a later sandbox
        // of the pod.
        let may_be_listed_elsewhere =
            |request: &&IpamRequest| self.is_recorded && request.vmi.is_none();
        let leaving: Vec<_> = match request
            .filter(may_be_listed_elsewhere)
            .map(IpamRequest::handle)
        {
            Some(handle) => {
                let leaving = |ip| AddressToRelease {
                    ip,
                    pod: None,
                    handle: Some(handle.clone()),
                    block: None,
                };
                self.allocated().map(leaving).collect()
            }
            None => Vec::new(),
        };
        let unlisted = async { endpoints.delete_own().await?.unlist(&leaving).await };
        let unlisted = unlisted.await.map_err(|error| cni_error(&error))?;
        if !self.is_recorded {
            return Ok(());
        }
        let Some(request) = request else {
            return release_by_plugin(ipam.call);
        };
        let (handle, clock) = (request.handle(), ipam.clock.restarted());
        if let Some(vmi) = &request.vmi {
            // The addresses stay allocated to the VMI; only this pod is removed from their owners.
            let restored = Box::pin(vmi::restore_owner(
                store,
                &clock,
                &handle,
                vmi,
                &self.replaced_owner,
            ))
            .await;
            return restored.map_err(|error| cni_error(&error));
        }
        let _releasing = request.begin_release();
        let released = release_addresses(store, &clock, &unlisted.requests()).await;
        let released = released.map_err(|error| cni_error(&error))?.released;
        tracing::info!(addresses = ?released, %handle, "released addresses of the failed ADD");
        Ok(())
    }

    /// Describes the failure of the ADD in `step`, and its addresses after
    /// [`AssignedAddresses::unassign`] with this outcome.
    pub fn describe_failure(&self, step: &str, unassigned: &Result<(), CniError>) -> String {
        let has_vmi = self.has_vmi();
        match unassigned {
            Ok(()) if !self.is_recorded => {
                format!("failed while {step}; IPAM does not record the addresses")
            }
            Ok(()) if has_vmi => format!("failed while {step}; the VMI keeps its addresses"),
            Ok(()) => format!("failed while {step}; the addresses were released"),
            Err(e) if !self.is_recorded => {
                format!(
                    "failed while {step}; the endpoint may list the addresses ({e}); DEL will \
                     remove the endpoint"
                )
            }
            Err(e) if has_vmi => format!(
                "failed while {step}; the VMI keeps its addresses, and this pod may still be their \
                 owner ({e}); DEL will remove this owner"
            ),
            Err(e) => {
                format!(
                    "failed while {step}; the addresses could not be released ({e}); DEL will \
                     release them"
                )
            }
        }
    }

    /// Describes the failure of the ADD in `step`, after which `object` may exist and the addresses
    /// stay as they are.
    pub fn describe_possible_rest(&self, step: &str, object: &str) -> String {
        let addresses = if !self.is_recorded {
            "DEL will remove it; IPAM does not record the addresses"
        } else if self.has_vmi() {
            "DEL will remove it; the VMI keeps its addresses"
        } else {
            "DEL will release its addresses"
        };
        format!("failed while {step}; the {object} may exist; {addresses}")
    }

    /// Returns true if the addresses belong to a VMI, which keeps them.
    fn has_vmi(&self) -> bool {
        self.request
            .as_ref()
            .is_some_and(|request| request.vmi.is_some())
    }

    /// Returns the addresses that this ADD allocated, including busy ones.
    fn allocated(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let is_replaced = |busy: &&BusyRoute| !self.addresses.contains(&busy.address);
        self.addresses.iter().copied().chain(
            self.busy
                .iter()
                .filter(is_replaced)
                .map(|busy| busy.address),
        )
    }
}

#[cfg(test)]
mod tests {
    use libcalico::kubernetes::VmiPod;
    use netconf::Code;
    use serde_json::json;

    use super::*;
    use crate::testing::open;

    #[tokio::test]
    async fn request_without_a_family_names_the_annotation_or_the_keys() {
        let files = tempfile::tempdir().unwrap();
        let conf = json!({ "datastore_type": "local", "datastore_path": files.path().join("db") });
        let mut call = open("ADD", "", conf, files.path()).call;
        let mut asked = request(&call, "node1", &NodeFiles::of_this_node()).unwrap();
        assert_eq!(families_not_asked(&call, &asked), None);
        asked.assign_ipv4 = false;
        assert!(
            families_not_asked(&call, &asked)
                .unwrap()
                .contains("cni.projectcalico.org/ipFamilies")
        );
        call.conf.ipam.assign_ipv4 = false;
        assert!(
            families_not_asked(&call, &asked)
                .unwrap()
                .contains("$.ipam.assign_ipv4")
        );
    }

    #[tokio::test]
    async fn error_of_a_failed_add_reports_only_released_addresses_as_released() {
        let files = tempfile::tempdir().unwrap();
        let conf = json!({ "datastore_type": "local", "datastore_path": files.path().join("db") });
        let call = open("ADD", "", conf, files.path()).call;
        let assigned = |vmi| {
            let request = request(&call, "node1", &NodeFiles::of_this_node()).unwrap();
            let request = IpamRequest { vmi, ..request };
            AssignedAddresses::new(CniResult::default(), Some(Box::new(request)))
        };
        let fixed = AssignedAddresses {
            is_recorded: false,
            ..AssignedAddresses::default()
        };
        for (assigned, are_released) in [
            (fixed, false),
            (assigned(Some(VmiPod::default())), false),
            (assigned(None), true),
        ] {
            for outcome in [Ok(()), Err(CniError::new(Code::TRY_AGAIN, "unreachable"))] {
                let text = assigned.describe_failure("writing", &outcome);
                assert_eq!(text.contains("released"), are_released, "{text}");
                assert_eq!(text.contains("unreachable"), outcome.is_err(), "{text}");
            }
            let text = assigned.describe_possible_rest("writing", "interface");
            assert_eq!(
                text.contains("release its addresses"),
                are_released,
                "{text}"
            );
            assert!(
                text.starts_with("failed while writing; the interface may exist; DEL will "),
                "{text}"
            );
        }
    }
}
