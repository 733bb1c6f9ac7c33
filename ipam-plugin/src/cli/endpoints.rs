//! `endpoints`: lists the WorkloadEndpoints of the cluster, a node or a pod.

use clap::Args;
use libcalico::api::{API_VERSION, ObjectSelect, WorkloadEndpoint};
use libcalico::store::{Entry, RawEntry, decode_entry};
use netconf::printable;
use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::app::{App, CommandOutcome};
use super::documents::{self, Format};
use super::error::CliError;

/// List workload endpoints
#[derive(Debug, Args)]
#[command(
    visible_alias = "wep",
    after_help = "\
Examples:
  calico-ipam endpoints
  calico-ipam endpoints -n kube-system
  calico-ipam endpoints --node node1 -o json
  calico-ipam endpoints --pod default/web-0

All namespaces are listed by default. `calicoctl get workloadendpoints` lists the namespace default.

Exit status: 0; 1 after an error; 2 if the arguments are invalid."
)]
pub(super) struct EndpointsArgs {
    /// Show only the endpoints in this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Show the endpoints in all namespaces, as without this option
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Show only the endpoints on this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Show only the endpoints of this pod, or of the container with this ID
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pod: Option<String>,
}

pub(super) async fn run(
    args: &EndpointsArgs,
    app: &mut App<'_>,
) -> Result<CommandOutcome, CliError> {
    let progress = app.progress("reading endpoints");
    let (mut items, mut rows) = (Vec::new(), Vec::new());
    let is_table = app.format == Format::Table;
    let mut keep = |pair: &RawEntry| {
        // As upstream, a listing leaves out objects that cannot be read (DS-42).
        let Ok(Entry {
            value: endpoint, ..
        }) = decode_entry::<WorkloadEndpoint>(pair)
        else {
            return;
        };
        if !args.select(&endpoint) {
            return;
        }
        if is_table {
            rows.push(row(&endpoint))
        } else {
            items.push(ListedItem::of(&endpoint))
        }
    };
    app.store
        .for_each_object::<WorkloadEndpoint>(&args.namespaces(), &mut keep)
        .await?;
    drop(progress);
    if !documents::print_document(app.format, app.out, &EndpointList::of(items))? {
        documents::print_rows(app.out, &HEADER, &rows)?;
    }
    Ok(CommandOutcome::Success)
}

const HEADER: [&str; 6] = [
    "NAMESPACE",
    "WORKLOAD",
    "NODE",
    "NETWORKS",
    "INTERFACE",
    "PROFILES",
];

fn row(endpoint: &WorkloadEndpoint) -> [Box<str>; 6] {
    let spec = &endpoint.spec;
    let (networks, profiles) = (spec.ip_networks.join("\n"), spec.profiles.join("\n"));
    [
        &endpoint.metadata.namespace,
        workload(endpoint),
        &spec.node,
        &networks,
        &spec.interface_name,
        &profiles,
    ]
    .map(|text| printable::lines(text).into())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointList {
    api_version: &'static str,
    items: Vec<ListedItem>,
    kind: &'static str,
}

impl EndpointList {
    fn of(items: Vec<ListedItem>) -> Self {
        EndpointList {
            api_version: API_VERSION,
            items,
            kind: "WorkloadEndpointList",
        }
    }
}

/// An endpoint as JSON text, which takes a fraction of the memory of the object.
struct ListedItem(Box<[u8]>);

impl ListedItem {
    fn of(endpoint: &WorkloadEndpoint) -> Self {
        // An object that was decoded from JSON can be encoded.
        ListedItem(serde_json::to_vec(endpoint).unwrap_or_default().into())
    }
}

impl Serialize for ListedItem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value: Value = serde_json::from_slice(&self.0).map_err(S::Error::custom)?;
        value.serialize(serializer)
    }
}

impl EndpointsArgs {
    /// The datastore selects the namespace, so that the others are not transferred.
    fn namespaces(&self) -> ObjectSelect {
        let namespace = if self.all_namespaces {
            None
        } else {
            self.namespace.clone()
        };
        ObjectSelect {
            namespace,
            ..ObjectSelect::default()
        }
    }

    fn select(&self, endpoint: &WorkloadEndpoint) -> bool {
        let of_node = self
            .node
            .as_ref()
            .is_none_or(|node| *node == endpoint.spec.node);
        of_node && self.pod.as_ref().is_none_or(|pod| is_of(endpoint, pod))
    }
}

fn is_of(endpoint: &WorkloadEndpoint, pod: &str) -> bool {
    let (namespace, name) = pod
        .split_once('/')
        .map_or((None, pod), |(namespace, name)| (Some(namespace), name));
    let spec = &endpoint.spec;
    namespace.is_none_or(|namespace| namespace == endpoint.metadata.namespace)
        && [&spec.pod, &spec.workload, &spec.container_id]
            .into_iter()
            .any(|part| part == name)
}

/// Returns the endpoint's pod, or the workload or container of another orchestrator, or else the
/// name of the endpoint.
pub(super) fn workload(endpoint: &WorkloadEndpoint) -> &str {
    let spec = &endpoint.spec;
    let named = [&spec.pod, &spec.workload, &spec.container_id]
        .into_iter()
        .find(|name| !name.is_empty());
    named.map_or(&endpoint.metadata.name, |name| name)
}

#[cfg(test)]
mod tests {
    use crate::cli::testing::Shell;

    #[test]
    fn endpoints_are_listed_by_node_and_pod() {
        let shell = Shell::new();
        shell.endpoint("web", "10.0.0.1");
        shell.endpoint("db", "10.0.0.2");
        let names = |line: &[&str]| -> Vec<String> {
            let selected = shell.json(line)["items"].clone();
            selected
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["spec"]["pod"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(names(&["endpoints"]), ["db", "web"]);
        assert_eq!(names(&["endpoints", "--node", "node1"]), ["db", "web"]);
        assert!(names(&["endpoints", "--node", "node2"]).is_empty());
        assert_eq!(names(&["endpoints", "--pod", "default/web"]), ["web"]);
        assert_eq!(names(&["wep", "--pod", "web", "--node", "node1"]), ["web"]);
        assert!(names(&["endpoints", "--pod", "other/web"]).is_empty());
        let table = shell.ok(&["endpoints", "-A"]);
        assert!(
            table.contains("| default   | web      | node1 | 10.0.0.1/32 |"),
            "{table}"
        );
    }

    #[test]
    fn endpoints_of_one_namespace_are_listed() {
        let shell = Shell::new();
        shell.endpoint("web", "10.0.0.1");
        shell.put(
            "/calico/resources/v3/projectcalico.org/workloadendpoints/default-2/node1-k8s-db-eth0",
            r#"{"metadata":{"name":"node1-k8s-db-eth0","namespace":"default-2"},"spec":{"node":"node1","pod":"db"}}"#,
        );
        let pods = |line: &[&str]| -> Vec<String> {
            let listed = shell.json(line)["items"].clone();
            listed
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["spec"]["pod"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(pods(&["endpoints", "-n", "default"]), ["web"]);
        assert_eq!(pods(&["endpoints", "--namespace", "default-2"]), ["db"]);
        assert_eq!(pods(&["endpoints", "-n", "other"]), Vec::<String>::new());
        assert_eq!(pods(&["endpoints", "-A"]).len(), 2);
        assert_eq!(pods(&["endpoints"]).len(), 2);
    }
}
