//! `endpoints`: lists the WorkloadEndpoints of the cluster, a node or a pod.

use clap::Args;
use libcalico::api::{API_VERSION, ObjectSelect, WorkloadEndpoint};
use libcalico::store::Store;
use serde_json::json;

use super::app::{App, CommandOutcome};
use super::documents;
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

pub(super) async fn run(args: &EndpointsArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let progress = app.progress("reading endpoints");
    let all = app.store.list::<WorkloadEndpoint>(&args.namespaces()).await?;
    drop(progress);
    let selected: Vec<WorkloadEndpoint> =
        all.into_iter().map(|entry| entry.value).filter(|endpoint| args.select(endpoint)).collect();
    let document = json!({"apiVersion": API_VERSION, "kind": "WorkloadEndpointList", "items": selected});
    if documents::print_document(app.format, app.out, &document)? {
        return Ok(CommandOutcome::Success);
    }
    let mut table = documents::new_table(["NAMESPACE", "WORKLOAD", "NODE", "NETWORKS", "INTERFACE", "PROFILES"]);
    for endpoint in &selected {
        let spec = &endpoint.spec;
        let cells = [
            &endpoint.metadata.namespace,
            workload(endpoint),
            &spec.node,
            &spec.ip_networks.join("\n"),
            &spec.interface_name,
            &spec.profiles.join("\n"),
        ];
        table.add_row(cells.map(documents::table_cell));
    }
    documents::print_table(app.out, &table)?;
    Ok(CommandOutcome::Success)
}

impl EndpointsArgs {
    /// The datastore selects the namespace, so that the others are not transferred.
    fn namespaces(&self) -> ObjectSelect {
        let namespace = if self.all_namespaces { None } else { self.namespace.clone() };
        ObjectSelect { namespace, ..ObjectSelect::default() }
    }

    fn select(&self, endpoint: &WorkloadEndpoint) -> bool {
        let of_node = self.node.as_ref().is_none_or(|node| *node == endpoint.spec.node);
        of_node && self.pod.as_ref().is_none_or(|pod| is_of(endpoint, pod))
    }
}

fn is_of(endpoint: &WorkloadEndpoint, pod: &str) -> bool {
    let (namespace, name) = pod.split_once('/').map_or((None, pod), |(namespace, name)| (Some(namespace), name));
    let spec = &endpoint.spec;
    namespace.is_none_or(|namespace| namespace == endpoint.metadata.namespace)
        && [&spec.pod, &spec.workload, &spec.container_id].into_iter().any(|part| part == name)
}

/// Returns the endpoint's pod, or the workload or container of another orchestrator, or else the name of the endpoint.
pub(super) fn workload(endpoint: &WorkloadEndpoint) -> &str {
    let spec = &endpoint.spec;
    let named = [&spec.pod, &spec.workload, &spec.container_id].into_iter().find(|name| !name.is_empty());
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
            selected.as_array().unwrap().iter().map(|item| item["spec"]["pod"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&["endpoints"]), ["db", "web"]);
        assert_eq!(names(&["endpoints", "--node", "node1"]), ["db", "web"]);
        assert!(names(&["endpoints", "--node", "node2"]).is_empty());
        assert_eq!(names(&["endpoints", "--pod", "default/web"]), ["web"]);
        assert_eq!(names(&["wep", "--pod", "web", "--node", "node1"]), ["web"]);
        assert!(names(&["endpoints", "--pod", "other/web"]).is_empty());
        let table = shell.ok(&["endpoints", "-A"]);
        assert!(table.contains("| default   | web      | node1 | 10.0.0.1/32 |"), "{table}");
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
            listed.as_array().unwrap().iter().map(|item| item["spec"]["pod"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(pods(&["endpoints", "-n", "default"]), ["web"]);
        assert_eq!(pods(&["endpoints", "--namespace", "default-2"]), ["db"]);
        assert_eq!(pods(&["endpoints", "-n", "other"]), Vec::<String>::new());
        assert_eq!(pods(&["endpoints", "-A"]).len(), 2);
        assert_eq!(pods(&["endpoints"]).len(), 2);
    }
}
