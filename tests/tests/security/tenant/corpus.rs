//! The texts that a tenant chooses: other owners' names and addresses, and texts that break
//! programs.

use serde_json::{Map, Value, json};

use super::others::{VICTIM_FILES, Victim};
use super::shared_nodes::SharedNodes;
use super::texts::FORGED;

/// Annotations, most of which plugins or the kubelet read or write.
const ANNOTATIONS: [&str; 22] = [
    "cni.projectcalico.org/containerID",
    "cni.projectcalico.org/podIP",
    "cni.projectcalico.org/podIPs",
    "cni.projectcalico.org/ipAddrs",
    "cni.projectcalico.org/ipAddrsNoIpam",
    "cni.projectcalico.org/ipAddrsAnyOf",
    "cni.projectcalico.org/ipv4pools",
    "cni.projectcalico.org/ipv6pools",
    "cni.projectcalico.org/floatingIPs",
    "cni.projectcalico.org/hwAddr",
    "cni.projectcalico.org/allowedSourcePrefixes",
    "cni.projectcalico.org/podPortMappings",
    "k8s.v1.cni.cncf.io/networks",
    "k8s.v1.cni.cncf.io/network-status",
    "k8s.v1.cni.cncf.io/networks-status",
    "vpc.amazonaws.com/pod-ips",
    "vpc.amazonaws.com/pod-eni",
    "qos.projectcalico.org/ingressBandwidth",
    "kubernetes.io/ingress-bandwidth",
    "kubernetes.io/egress-bandwidth",
    "kubevirt.io/migrationJobName",
    "tenant.example/text",
];

const LABELS: [&str; 5] = [
    "projectcalico.org/namespace",
    "projectcalico.org/orchestrator",
    "kubevirt.io/migrationJobUID",
    "kubevirt.io/vm",
    "app",
];

impl SharedNodes<'_> {
    /// Chooses another owner.
    pub(crate) fn victim(&mut self) -> Victim {
        self.rng.choice(self.victims.clone()).expect("others")
    }

    pub(crate) fn text(&mut self) -> String {
        let victim = self.victim();
        let address = victim
            .addresses
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
        let pod = format!("{}/{}", victim.namespace, victim.name);
        let file = VICTIM_FILES[self.rng.usize(..VICTIM_FILES.len())];
        let texts = [
            victim.container_id,
            victim.handle,
            victim.uid,
            victim.namespace,
            victim.name,
            pod,
            format!("/var/run/netns/{}", victim.netns),
            format!("{address}/32"),
            format!("[\"{address}\"]"),
            format!("[\"{address}/32\"]"),
            format!("[\"{address}\", \"::ffff:{address}\"]"),
            address,
            "10.65.0.0/24".into(),
            "[\"10.65.0.0/24\"]".into(),
            "[\"0.0.0.0/0\", \"::/0\"]".into(),
            json!(
                (0..64)
                    .map(|block| format!("10.65.{block}.0"))
                    .collect::<Vec<_>>()
            )
            .to_string(),
            "[\"pool4\"]".into(),
            "0.0.0.0/0,::/0".into(),
            "calib3d7af96bd3".into(),
            file.into(),
            format!("../../../../../..{file}"),
            format!("..%2f..%2f{file}"),
            format!("$(rm -f {file})`rm {file}`; rm {file} #"),
            String::new(),
            ".".into(),
            "..".into(),
            "\"}],\"spec\":{\"nodeName\":\"node2.lab\"},\"x\":[{\"".into(),
            format!("x\n{FORGED} [INFO] all is well"),
            format!("x\r\n{FORGED} [INFO] all is well"),
            "\u{1b}]0;title\u{7}\u{1b}[2J\u{1b}[31mred".into(),
            "\u{9b}2J\u{85}x\u{7f}\u{8}\u{8}".into(),
            "\u{202e}gnp.exe\u{2066}\u{2028}x".into(),
            "%s%n{}{0}\\n\\u001b".into(),
            "-1".into(),
            "true".into(),
            "null".into(),
            "[".repeat(5000),
            "x".repeat(100_000),
            "K8S_POD_NAME=db-1;K8S_POD_NAMESPACE=prod".into(),
            "é\u{0}z".replace('\u{0}', "\u{1}"),
        ];
        // A third of the choices are among the texts with control characters for terminals.
        let commands = texts
            .iter()
            .filter(|text| text.contains(char::is_control) || text.contains('\u{202e}'));
        let commands: Vec<String> = commands.cloned().collect();
        let chosen = if self.rng.u32(..3) == 0 {
            self.rng.choice(commands)
        } else {
            self.rng.choice(texts)
        };
        chosen.unwrap_or_default()
    }

    /// Chooses annotations with random texts. Half of the results also claim the identity of
    /// another owner.
    pub(crate) fn annotations(&mut self) -> Value {
        let mut annotations = Map::new();
        if self.rng.bool() {
            let victim = self.victim();
            let id = match self.rng.u32(..4) {
                // The VMI's handle consists of the network's name and this ID.
                0 => victim
                    .handle
                    .trim_start_matches("k8s-pod-network.")
                    .to_owned(),
                _ => victim.container_id,
            };
            let of_both = |prefix: bool| {
                let text = |ip: &std::net::IpAddr| match ip {
                    _ if !prefix => ip.to_string(),
                    std::net::IpAddr::V4(ip) => format!("{ip}/32"),
                    std::net::IpAddr::V6(ip) => format!("{ip}/128"),
                };
                victim.addresses.iter().map(text).collect::<Vec<String>>()
            };
            let calico = |name: &str| format!("cni.projectcalico.org/{name}");
            annotations.insert(calico("containerID"), json!(id));
            annotations.insert(calico("podIP"), json!(of_both(true).first()));
            annotations.insert(calico("podIPs"), json!(of_both(true).join(",")));
            let wish = match self.rng.u32(..5) {
                0 => None,
                1..=3 => Some("ipAddrs"),
                _ => Some("ipAddrsAnyOf"),
            };
            if let Some(name) = wish {
                annotations.insert(calico(name), json!(json!(of_both(false)).to_string()));
            }
        }
        for _ in 0..self.rng.usize(..4) {
            let name = ANNOTATIONS[self.rng.usize(..ANNOTATIONS.len())];
            annotations.insert(name.into(), json!(self.text()));
        }
        annotations.into()
    }

    /// Chooses labels. Most of the texts are invalid as the value of a label.
    pub(crate) fn labels(&mut self) -> Value {
        let label = LABELS[self.rng.usize(..LABELS.len())];
        if self.rng.bool() {
            json!({})
        } else {
            json!({ label: self.text() })
        }
    }

    /// Chooses the owners of a pod: none, or a VMI with the UID of another owner.
    pub(crate) fn owners(&mut self) -> Value {
        if self.rng.u32(..3) > 0 {
            return json!([]);
        }
        let uids: Vec<String> = self
            .victims
            .iter()
            .map(|victim| victim.uid.clone())
            .filter(|uid| !uid.is_empty())
            .collect();
        json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "db",
            "uid": self.rng.choice(uids), "controller": true }])
    }

    /// Chooses namespace and name of a pod of the tenant.
    pub(crate) fn names(&mut self) -> (String, String) {
        let victim = self.victim();
        match self.rng.u32(..8) {
            // Namespace and name together are another owner's handle.
            0..=2 => {
                let (namespace, name) = victim
                    .handle
                    .split_once('.')
                    .unwrap_or(("tenant", &victim.handle));
                (namespace.to_owned(), name.to_owned())
            }
            // The pod's host interface has the same name as that of team-a/p723961.
            3 => ("team-a".into(), "p6680456".into()),
            4 if !victim.name.is_empty() => ("tenant".into(), victim.name),
            5..=6 => ("tenant".into(), self.text()),
            _ => ("tenant".into(), format!("web-{}", self.rng.u32(..4))),
        }
    }
}
