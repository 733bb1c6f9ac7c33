//! The plugin removes no interface that another sandbox uses, whatever the interface's name.

mod alias;
mod gc;
mod overtaken;
mod taken;

use std::path::Path;

use integration_tests::cluster::{Cluster, Pod};
use integration_tests::command::ip_json;
use integration_tests::content::{NETWORK, container_id};
use integration_tests::plugin::Call;
use libcalico::names::{InterfaceAlias, pod_interface};
use serde_json::Value;

/// A sandbox of a pod that exists on no API server.
struct Sandbox {
    namespace: &'static str,
    name: &'static str,
    pod: Pod,
}

impl Sandbox {
    /// Creates a sandbox with its own network namespace. `number` determines its names.
    fn new(
        cluster: &Cluster<'_>,
        number: usize,
        namespace: &'static str,
        name: &'static str,
    ) -> Sandbox {
        let netns = cluster.host.add_pod(&format!("sandbox{number}")).unwrap();
        let pod = Pod {
            name: format!("sandbox{number}"),
            netns,
            container_id: container_id(number),
            object: None,
        };
        Sandbox {
            namespace,
            name,
            pod,
        }
    }

    fn call(&self, cluster: &Cluster<'_>, verb: &str, conf: &Value) -> Call {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={}",
            self.namespace, self.name
        );
        cluster.verb(verb, &self.pod, conf).env("CNI_ARGS", args)
    }

    fn host_ifname(&self) -> String {
        pod_interface("cali", self.namespace, self.name)
    }

    fn alias(&self) -> String {
        InterfaceAlias::for_pod(NETWORK, self.namespace, self.name, &self.pod.container_id)
            .to_string()
    }
}

fn alias_of(ifname: &str) -> Option<String> {
    let links = ip_json("-details link show").unwrap();
    let link = links
        .as_array()
        .unwrap()
        .iter()
        .find(|link| link["ifname"] == ifname);
    Some(
        link.unwrap_or_else(|| panic!("no interface {ifname}: {links}"))["ifalias"]
            .as_str()?
            .to_owned(),
    )
}

/// Returns the number of lines that contain all of `words`.
fn lines_with(file: &Path, words: &[&str]) -> usize {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines()
        .filter(|line| words.iter().all(|word| line.contains(word)))
        .count()
}
