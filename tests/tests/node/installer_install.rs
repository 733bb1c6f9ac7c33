//! `calico install` as a process, with real files, mounts, inotify and a real API server.

mod chained;
mod conflist;
mod directories;
mod environment;
mod golden;
mod killed;
mod moved;
mod mtu;
mod neighbours;
mod owners;
mod plugins;
mod pod;
mod readers;
mod versions;

use integration_tests::plugin::Outcome;

/// The rendering of the built-in template for `my-node`.
const DEFAULT: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "1.0.0",
  "plugins": [
    {
      "type": "calico",
      "log_level": "info",
      "log_file_path": "/var/log/calico/cni/cni.log",
      "datastore_type": "kubernetes",
      "nodename": "my-node",
      "mtu": 1500,
      "ipam": {"type": "calico-ipam"},
      "policy": {"type": "k8s"},
      "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"},
      "require_mtu_file": false,
      "calico_api_group": "crd.projectcalico.org/v1"
    },
    {
      "type": "portmap",
      "snat": true,
      "capabilities": {"portMappings": true}
    }
  ]
}"#;

#[track_caller]
fn succeeded(outcome: &Outcome) {
    assert_eq!(
        (outcome.exit, outcome.stdout.as_str()),
        (Some(0), ""),
        "{}",
        outcome.stderr
    );
}

#[track_caller]
fn failed(outcome: &Outcome, words: &str) {
    assert_eq!(outcome.exit, Some(1), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains(words),
        "{words:?} is not in {}",
        outcome.stderr
    );
}

#[track_caller]
fn logged(outcome: &Outcome, words: &str) {
    assert!(
        outcome.stderr.contains(words),
        "{words:?} is not in {}",
        outcome.stderr
    );
}
