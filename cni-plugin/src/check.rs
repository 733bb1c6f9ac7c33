//! CHECK: compares the container's network with the result of its ADD. Upstream's CHECK compares
//! nothing.
//!
//! `prevResult` is the result of the last plugin of the configuration list. So CHECK compares what
//! the container's connection needs, and accepts what a later plugin may change or add.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use ipam_plugin::cni::{self, IpamRequest};
use libcalico::api::WorkloadEndpoint;
use libcalico::kubernetes::VmiPod;
use libcalico::net::Cidr;
use libcalico::store::{EndpointForm, Store};
use netconf::result::{Interface, IpConfig};
use netconf::{CniError, CniResult, Code};
use node_process::stage;
use tracing::Instrument as _;

use crate::annotations;
use crate::cni_error::{dataplane_error, netns_error, store_error};
use crate::context::Context;
use crate::endpoint::ExistingEndpoint;
use crate::interface::LinkSettings;
use crate::interface_names::attached_ifname;
use crate::ipam;
use crate::reads;
use crate::world::World;
use dataplane::{EndpointPlan, PodNetwork as _, PriorInterface};

/// Compares interface, host routes, settings, endpoint and addresses with prevResult. The error
/// lists the differences.
pub async fn check(cx: &Context<impl World>) -> Result<(), CniError> {
    let previous = cx.call.prev_result.clone().ok_or_else(|| {
        CniError::new(
            Code::INVALID_CONFIG,
            "CHECK needs prevResult, the result of the ADD",
        )
        .with_details("$.prevResult: missing; the runtime adds it to the configuration")
    })?;
    let ifname = attached_ifname(&previous, cx.interface(), &cx.interface().host_ifname());
    let recorded = RecordedAttachment::from_result(&previous, &ifname)?;
    let objects = reads::for_check(cx).await?;
    let is_named = |entry: &&ExistingEndpoint| match cx.store.endpoint_form() {
        // Every endpoint is named after eth0.
        EndpointForm::PodAnnotations => true,
        EndpointForm::Object => entry.value.spec.endpoint == ifname,
    };
    let endpoint = objects.endpoints.iter().find(is_named);
    let (own, further) = recorded.split_addresses(endpoint.map(|entry| &entry.value));

    let mut differences = recorded
        .compare_kernel(cx, &ifname, &own, &previous)
        .instrument(stage!("dataplane"))
        .await?;
    differences.extend(compare_endpoint(cx, endpoint, &recorded));
    // Another IPAM plugin knows no second interface.
    let is_unknown_to_ipam = ifname != cx.call.ifname && !cx.call.conf.ipam.is_calico();
    if !is_unknown_to_ipam
        && !objects
            .pod
            .is_some_and(|pod| annotations::has_fixed_addresses(&pod.pod, &cx.call.conf))
    {
        let compared = compare_allocations(cx, objects.vmi, &own, &further);
        differences.extend(compared.instrument(stage!("ipam")).await?);
    }
    if differences.is_empty() {
        return Ok(());
    }
    let count = match differences.len() {
        1 => "1 difference".to_owned(),
        n => format!("{n} differences"),
    };
    Err(CniError::new(
        Code::CHECK_FAILED,
        format!("{count} from the result of the ADD: {}", differences[0]),
    )
    .with_details(differences.join("; ")))
}

/// The part of prevResult that belongs to this attachment. The runtime passes the result of the
/// whole configuration list, which may contain interfaces and addresses of other plugins.
#[derive(Debug, PartialEq, Eq)]
struct RecordedAttachment {
    container_end: Option<Interface>,
    host_end: Option<Interface>,
    addresses: Vec<IpAddr>,
}

impl RecordedAttachment {
    fn from_result(result: &CniResult, ifname: &str) -> Result<Self, CniError> {
        let interfaces = &result.interfaces;
        let container_end = interfaces
            .iter()
            .position(|i| i.name == ifname && !i.sandbox.is_empty());
        // The result of an ADD has the host's end directly before the container's end (CNI-38).
        let host = container_end
            .and_then(|end| interfaces.get(end.checked_sub(1)?))
            .filter(|i| i.sandbox.is_empty());
        let is_own = |ip: &&IpConfig| ip.interface.is_none() || ip.interface == container_end;
        let addresses: Vec<_> = result
            .ips
            .iter()
            .filter(is_own)
            .map(|ip| ip.address.addr())
            .collect();
        if addresses.is_empty() {
            return Err(CniError::new(
                Code::INVALID_CONFIG,
                format!("prevResult has no addresses of {ifname}"),
            )
            .with_details(
                "$.prevResult.ips: an ADD of this plugin always returns at least one address",
            ));
        }
        let container_end = container_end.map(|index| interfaces[index].clone());
        Ok(RecordedAttachment {
            host_end: host.cloned(),
            container_end,
            addresses,
        })
    }

    /// Returns the addresses that the endpoint lists, and further ones, which a later plugin may
    /// have added. All addresses count as listed if the endpoint lists none of them.
    fn split_addresses(&self, endpoint: Option<&WorkloadEndpoint>) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let listed = endpoint
            .map(|endpoint| endpoint.spec.host_link().1)
            .unwrap_or_default();
        let (own, further): (Vec<_>, Vec<_>) =
            self.addresses.iter().partition(|ip| listed.contains(ip));
        if own.is_empty() {
            (further, own)
        } else {
            (own, further)
        }
    }

    /// Compares the kernel's state with the plan of the ADD. Returns no differences for a gRPC
    /// dataplane. `addresses` are those that the ADD assigned.
    async fn compare_kernel(
        &self,
        cx: &Context<impl World>,
        ifname: &str,
        addresses: &[IpAddr],
        result: &CniResult,
    ) -> Result<Vec<String>, CniError> {
        let config = cx.interface();
        if config.grpc_socket().is_some() {
            return Ok(Vec::new());
        }
        let configured_mtu = config.mtu(&cx.files, &cx.clock).await?;
        let mtu = self
            .container_end
            .as_ref()
            .map(|end| end.mtu)
            .filter(|mtu| *mtu != 0);
        // The result of `calico-ipam` has one route for each address. Any other route is another
        // plugin's.
        let mut of_ipam = result.clone();
        of_ipam
            .routes
            .retain(|route| addresses.contains(&route.dst.addr()));
        let link = LinkSettings {
            mtu: mtu.unwrap_or(configured_mtu),
            mac: None,
        };
        let desired = config.plan(addresses, link, PriorInterface::Unknown);
        let plan = EndpointPlan {
            host_ifname: self
                .host_end
                .as_ref()
                .map_or(desired.host_ifname.clone(), |end| end.name.clone()),
            container_ifname: ifname.to_owned(),
            host_routes: config.has_host_routes(&of_ipam),
            ..desired
        };
        let network = &cx.network;
        let netns = network.open_netns(Path::new(&config.call.netns));
        let differences = network.verify(&plan, &netns.map_err(netns_error)?);
        let differences = differences.map_err(dataplane_error)?;
        Ok(differences.iter().map(ToString::to_string).collect())
    }
}

fn compare_endpoint(
    cx: &Context<impl World>,
    endpoint: Option<&ExistingEndpoint>,
    recorded: &RecordedAttachment,
) -> Vec<String> {
    let Some(entry) = endpoint else {
        let name = cx
            .workload
            .key()
            .map(|key| key.to_string())
            .unwrap_or_default();
        return vec![format!(
            "WorkloadEndpoint {name}: expected to exist, found none"
        )];
    };
    let spec = &entry.value.spec;
    let mut differences = Vec::new();
    let mut compare = |field: &str, expected: &str, found: &str| {
        if expected != found {
            let endpoint = &entry.value.metadata.name;
            differences.push(format!(
                "WorkloadEndpoint {endpoint} {field}: expected {expected:?}, found {found:?}"
            ));
        }
    };
    compare("containerID", &cx.call.container_id, &spec.container_id);
    compare("node", &cx.workload.node, &spec.node);
    let networks: Vec<_> = recorded
        .addresses
        .iter()
        .map(|ip| Cidr::host(*ip).to_string())
        .collect();
    if spec.ip_networks.is_empty()
        || !spec
            .ip_networks
            .iter()
            .all(|network| networks.contains(network))
    {
        compare(
            "ipNetworks",
            &networks.join(", "),
            &spec.ip_networks.join(", "),
        );
    }
    if let Some(host) = &recorded.host_end {
        compare("interfaceName", &host.name, &spec.interface_name);
    }
    differences
}

/// Returns the differences between the addresses in the result of an ADD and the allocations. For
/// another IPAM plugin, returns the error of its CHECK, if there is one. `vmi` is the pod's VMI if
/// the VMI keeps its addresses. `further` are addresses that the endpoint does not list: only those
/// that are allocated to the container are a difference.
async fn compare_allocations(
    cx: &Context<impl World>,
    vmi: Option<VmiPod>,
    own: &[IpAddr],
    further: &[IpAddr],
) -> Result<Vec<String>, CniError> {
    let Some(request) = cx.ipam_request() else {
        let failure = ipam::call_plugin(&cx.call, "CHECK").err();
        let plugin = &cx.call.conf.ipam.ipam_type;
        return Ok(failure
            .into_iter()
            .map(|error| format!("IPAM plugin {plugin}: {error}"))
            .collect());
    };
    let request = IpamRequest { vmi, ..request };
    let unreadable = |error| store_error("read the address blocks", &error);
    let mut found: BTreeSet<_> = cni::differences(&cx.store, &request, own)
        .await
        .map_err(unreadable)?
        .into_iter()
        .collect();
    for ip in further {
        if cni::differences(&cx.store, &request, &[*ip])
            .await
            .map_err(unreadable)?
            .is_empty()
        {
            found.insert(format!(
                "WorkloadEndpoint ipNetworks: expected {ip}, which is allocated, found none"
            ));
        }
    }
    Ok(found.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use netconf::Version;

    use super::*;

    fn recorded(ips: &str) -> Result<RecordedAttachment, CniError> {
        let text = format!(
            r#"{{"cniVersion": "1.0.0", "ips": [{ips}], "interfaces": [
                {{"name": "br0"}}, {{"name": "net1", "sandbox": "/n", "mac": "02:00:00:00:00:01"}},
                {{"name": "calic1"}}, {{"name": "eth0", "sandbox": "/n", "mac": "02:00:00:00:00:02"}},
                {{"name": "bwp0"}}]}}"#
        );
        RecordedAttachment::from_result(
            &CniResult::parse(text.as_bytes(), Version::V1_0_0).unwrap(),
            "eth0",
        )
    }

    #[test]
    fn results_of_other_plugins_are_ignored_by_check() {
        let ips = r#"{"address": "10.1.0.1/24", "interface": 1}, {"address": "10.65.0.1/32", "interface": 3}"#;
        let found = recorded(ips).unwrap();
        assert_eq!(found.host_end.unwrap().name, "calic1");
        assert_eq!(found.container_end.unwrap().mac, "02:00:00:00:00:02");
        assert_eq!(found.addresses, ["10.65.0.1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn address_without_an_interface_is_accepted_and_no_address_is_an_error() {
        assert_eq!(
            recorded(r#"{"address": "10.65.0.1/32"}"#)
                .unwrap()
                .addresses
                .len(),
            1
        );
        let error = recorded(r#"{"address": "10.1.0.1/24", "interface": 1}"#).unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG);
    }

    #[test]
    fn address_that_the_endpoint_does_not_list_counts_as_further() {
        let found =
            recorded(r#"{"address": "10.65.0.1/32"}, {"address": "192.0.2.1/24", "interface": 3}"#)
                .unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut endpoint = WorkloadEndpoint::new("n", Default::default());
        let both = (found.addresses.clone(), vec![]);
        assert_eq!(found.split_addresses(None), both);
        assert_eq!(found.split_addresses(Some(&endpoint)), both);
        endpoint.spec.ip_networks = vec!["10.65.0.1/32".into()];
        assert_eq!(
            found.split_addresses(Some(&endpoint)),
            (vec![ip("10.65.0.1")], vec![ip("192.0.2.1")])
        );
    }
}
