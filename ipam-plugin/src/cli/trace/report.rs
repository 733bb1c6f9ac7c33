//! [`Trace`]: the data found about a pod. [`StoredObjects`]: the datastore's objects for the pod.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use datastore::Datastore;
use libcalico::api::{IpPool, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::{Allocation, Block, HandleId, any_pool_of};
use libcalico::net::Cidr;
use libcalico::store::{ReadBatch, Store};
use libcalico::workload::{Orchestrator, PodIdentity, WorkloadIdentity};
use netconf::printable;
use serde::Serialize;

use crate::cli::error::CliError;
use dataplane::host_link::HostLink;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Trace {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) node: String,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) addresses: Vec<Address>,
    /// Name of the host's end of the pod's interface.
    pub(super) interface_name: String,
    pub(super) interface: Option<HostLink>,
    pub(super) log_file: PathBuf,
    pub(super) log: Vec<String>,
    /// Number of earlier lines that are not shown.
    pub(super) log_left_out: usize,
    pub(super) missing: Vec<UnreadPart>,
}

#[derive(Debug, Serialize)]
pub(super) struct UnreadPart {
    pub(super) part: &'static str,
    pub(super) reason: String,
}

impl Trace {
    pub(super) fn print(&self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut print_line =
            |line: String| writeln!(out, "{}", printable::line(&line)).map_err(CliError::Output);
        print_line(format!(
            "Pod {}/{} on node {}",
            self.namespace, self.pod, self.node
        ))?;
        for missing in &self.missing {
            print_line(format!("Not read: {}: {}", missing.part, missing.reason))?;
        }
        match &self.endpoint {
            None => print_line("Endpoint: none".into())?,
            Some(endpoint) => {
                print_line(format!("Endpoint: {}", endpoint.name))?;
                print_line(format!("  container {}", endpoint.container_id))?;
                print_line(format!("  networks {}", endpoint.networks.join(", ")))?;
                print_line(format!("  interface {}", endpoint.interface))?;
            }
        }
        print_line(
            if self.addresses.is_empty() {
                "Addresses: none"
            } else {
                "Addresses:"
            }
            .into(),
        )?;
        for address in &self.addresses {
            let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "<none>".into());
            let (handle, pool, since) = (
                or_none(&address.handle),
                or_none(&address.pool),
                or_none(&address.since),
            );
            let (ip, block, node) = (address.address, address.block, or_none(&address.node));
            print_line(format!(
                "  {ip} of block {block}, pool {pool}, handle {handle}, node {node}, since {since}"
            ))?;
        }
        match &self.interface {
            None => print_line(format!(
                "Interface: none ({} does not exist)",
                self.interface_name
            ))?,
            Some(link) => print_link(link, &mut print_line)?,
        }
        print_line(format!(
            "Log: {} lines of {}",
            self.log.len(),
            self.log_file.display()
        ))?;
        if self.log_left_out > 0 {
            print_line(format!(
                "  {} earlier lines are not shown, see --lines",
                self.log_left_out
            ))?;
        }
        self.log
            .iter()
            .try_for_each(|line| print_line(format!("  {line}")))
    }
}

fn print_link(
    link: &HostLink,
    print_line: &mut impl FnMut(String) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let state = match (link.up, link.carrier) {
        (true, true) => "up",
        (true, false) => "up without carrier",
        (false, _) => "down",
    };
    let HostLink {
        name,
        index,
        mtu,
        mac,
        ..
    } = link;
    print_line(format!(
        "Interface: {name}, number {index}, {state}, MTU {mtu}, MAC {mac}"
    ))?;
    match &link.container_id {
        Some(id) => print_line(format!("  of container {id}"))?,
        None => print_line("  without a container ID".into())?,
    }
    if link.routes.is_empty() {
        return print_line("Routes: none".into());
    }
    print_line("Routes:".into())?;
    link.routes
        .iter()
        .try_for_each(|route| print_line(format!("  {route}")))
}

#[derive(Debug, Default)]
pub(super) struct StoredObjects {
    pub(super) endpoint: Option<Endpoint>,
    pub(super) addresses: Vec<Address>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Endpoint {
    pub(super) name: String,
    pub(super) container_id: String,
    pub(super) networks: Vec<String>,
    pub(super) interface: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Address {
    pub(super) address: IpAddr,
    pub(super) block: Cidr,
    pub(super) pool: Option<String>,
    pub(super) handle: Option<String>,
    pub(super) node: Option<String>,
    pub(super) since: Option<String>,
}

impl StoredObjects {
    /// Reads the endpoint of a pod on `node`, and the addresses of the pod and of `containers`,
    /// which the log names.
    pub(super) async fn read(
        store: &Datastore,
        node: &str,
        (namespace, pod): (&str, &str),
        mut containers: BTreeSet<String>,
    ) -> Result<StoredObjects, Box<dyn Error>> {
        let names = PodIdentity {
            namespace: namespace.into(),
            name: pod.into(),
            ..PodIdentity::default()
        };
        let (orchestrator, container_id, endpoint) = (
            Orchestrator::Kubernetes(names),
            String::new(),
            String::new(),
        );
        let workload = WorkloadIdentity {
            node: node.into(),
            container_id,
            endpoint,
            orchestrator,
        };
        let select = workload.endpoint_select()?;
        let mut batch = ReadBatch::new();
        let endpoints = batch.list::<WorkloadEndpoint>(&select);
        let pools = batch.list::<IpPool>(&ObjectSelect::default());
        let blocks = batch.list::<Block>(&None);
        let answers = store.read(&batch).await?;

        let mut pod_endpoints = answers.list(&endpoints);
        pod_endpoints.retain(|entry| workload.is_endpoint_name(&entry.key.name));
        let endpoint = pod_endpoints.into_iter().next().map(|entry| Endpoint {
            name: entry.key.name,
            container_id: entry.value.spec.container_id,
            networks: entry.value.spec.ip_networks,
            interface: entry.value.spec.interface_name,
        });
        containers.extend(
            endpoint
                .iter()
                .map(|endpoint| endpoint.container_id.clone()),
        );

        let pools: Vec<IpPool> = answers
            .list(&pools)
            .into_iter()
            .map(|entry| entry.value)
            .collect();
        let mut addresses = Vec::new();
        for block in answers.list(&blocks) {
            let is_of_container =
                |handle: HandleId| containers.iter().any(|id| handle.is_of_container(id));
            let held = block.value.allocated().filter(|held| !held.is_cooling());
            let held = held.filter(|held| {
                is_of(held, namespace, pod) || held.handle().is_some_and(is_of_container)
            });
            addresses.extend(held.map(|held| Address::new(&held, block.key, &pools)));
        }
        addresses.sort_by_key(|address| address.address);
        Ok(StoredObjects {
            endpoint,
            addresses,
        })
    }
}

impl Address {
    fn new(held: &Allocation<'_>, block: Cidr, pools: &[IpPool]) -> Self {
        let attribute = |key: &str| {
            held.attributes()
                .and_then(|attributes| attributes.get(key))
                .cloned()
        };
        Address {
            address: held.ip,
            block,
            pool: any_pool_of(pools, held.ip).map(|pool| pool.name),
            handle: held.handle().map(|handle| handle.to_string()),
            node: attribute("node"),
            since: attribute("timestamp"),
        }
    }
}

/// A VMI's address may have two owners.
fn is_of(held: &Allocation<'_>, namespace: &str, pod: &str) -> bool {
    let Some(attribute) = held.attribute else {
        return false;
    };
    [&attribute.active_owner, &attribute.alternate_owner]
        .into_iter()
        .any(|owner| {
            let has = |key: &str, wanted: &str| owner.get(key).is_some_and(|value| value == wanted);
            has("namespace", namespace) && has("pod", pod)
        })
}
