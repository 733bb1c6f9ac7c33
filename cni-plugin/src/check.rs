//! CHECK: is what ADD left still there (CNI-215)?
//!
//! Everything is looked at before anything is said, so that one CHECK names every difference.

use std::net::IpAddr;
use std::path::Path;

use libcalico::api::WorkloadEndpoint;
use libcalico::net::Cidr;
use netconf::{CniError, CniResult, Code};

use crate::dataplane::{self, EndpointPlan, MacAddr, NetnsFd};
use crate::session::{Known, Question, Session};
use crate::{endpoint_plan, ipam};

/// Compares interface, routes, settings, endpoint and addresses with prevResult; the error lists what differs.
pub async fn check(session: &mut Session) -> Result<(), CniError> {
    let previous = session.call.prev_result.clone().ok_or_else(|| {
        CniError::new(Code::INVALID_CONFIG, "CHECK needs prevResult, the result of the ADD")
            .with_details("$.prevResult: missing; the runtime adds it to the configuration")
    })?;
    let addresses = addresses_of(&previous)?;
    let known = session.read(Question::Endpoint).await?;
    known.ensure_ready()?;

    let mut differences = compare_kernel(session, &previous, &addresses)?;
    session.timings.stage("dataplane");
    differences.extend(compare_endpoint(session, &known, &previous, &addresses));
    differences.extend(ipam::check(session, &previous).await?);
    session.timings.stage("ipam");
    if differences.is_empty() {
        return Ok(());
    }
    let count = match differences.len() {
        1 => "1 difference".to_owned(),
        n => format!("{n} differences"),
    };
    Err(CniError::new(Code::CHECK_FAILED, format!("{count} from what ADD left: {}", differences[0]))
        .with_details(differences.join("\n")))
}

fn addresses_of(previous: &CniResult) -> Result<Vec<IpAddr>, CniError> {
    let addresses: Vec<_> = previous.ips.iter().map(|ip| ip.address.addr()).collect();
    if addresses.is_empty() {
        return Err(CniError::new(Code::INVALID_CONFIG, "prevResult has no addresses")
            .with_details("$.prevResult.ips: an ADD of this plugin always returns at least one"));
    }
    Ok(addresses)
}

/// The plan that ADD must have carried out, from the configuration and what prevResult recorded.
fn compare_kernel(session: &Session, previous: &CniResult, addresses: &[IpAddr]) -> Result<Vec<String>, CniError> {
    let call = &session.call;
    let inside = previous.interfaces.iter().find(|i| i.name == call.ifname && !i.sandbox.is_empty());
    let host = previous.interfaces.iter().find(|i| i.sandbox.is_empty());
    let desired = endpoint_plan::from_conf(session, addresses)?;
    let plan = EndpointPlan {
        host_ifname: host.map_or(desired.host_ifname.clone(), |interface| interface.name.clone()),
        container_mac: inside.and_then(|interface| interface.mac.parse::<MacAddr>().ok()),
        mtu: inside.map(|interface| interface.mtu).filter(|mtu| *mtu != 0).unwrap_or(desired.mtu),
        ..desired
    };
    let netns = NetnsFd::open(Path::new(&call.netns)).map_err(endpoint_plan::netns_error)?;
    if !call.netns_override {
        netns.ensure_foreign().map_err(endpoint_plan::netns_error)?;
    }
    let differences = dataplane::verify(&plan, &netns).map_err(endpoint_plan::dataplane_error)?;
    Ok(differences.iter().map(ToString::to_string).collect())
}

fn compare_endpoint(session: &Session, known: &Known, previous: &CniResult, addresses: &[IpAddr]) -> Vec<String> {
    let Some(entry) = known.endpoints.iter().find(|entry| entry.value.spec.endpoint == session.call.ifname) else {
        let name = session.facts.key().map(|key| key.to_string()).unwrap_or_default();
        return vec![format!("WorkloadEndpoint {name}: expected to exist, found none")];
    };
    let spec = &entry.value.spec;
    let networks: Vec<_> = addresses.iter().map(|ip| Cidr::host(*ip).to_string()).collect();
    let host = previous.interfaces.iter().find(|i| i.sandbox.is_empty()).map(|i| i.name.clone());
    let mac = previous.interfaces.iter().find(|i| !i.sandbox.is_empty()).map(|i| i.mac.to_lowercase());
    let mut compare = Comparison { endpoint: &entry.value, differences: Vec::new() };
    compare.field("containerID", &session.call.container_id, &spec.container_id);
    compare.field("node", &session.facts.node, &spec.node);
    compare.field("ipNetworks", &networks.join(", "), &spec.ip_networks.join(", "));
    if let Some(host) = host {
        compare.field("interfaceName", &host, &spec.interface_name);
    }
    if let Some(mac) = mac.filter(|mac| !mac.is_empty()) {
        compare.field("mac", &mac, &spec.mac);
    }
    compare.differences
}

struct Comparison<'a> {
    endpoint: &'a WorkloadEndpoint,
    differences: Vec<String>,
}

impl Comparison<'_> {
    fn field(&mut self, name: &str, expected: &str, found: &str) {
        if expected != found {
            let endpoint = &self.endpoint.metadata.name;
            self.differences
                .push(format!("WorkloadEndpoint {endpoint} {name}: expected {expected:?}, found {found:?}"));
        }
    }
}
