//! Upgrades of a release: a changed configuration rolls the workloads, and a strategy that cannot work is refused.

use integration_tests::manifests::{Objects, template};

use super::options::with;
use super::{DAEMON_SET, DEPLOYMENT, can_render};

/// Returns the checksum of the configuration in the pods of each workload.
fn checksums(objects: &Objects) -> [String; 2] {
    [DAEMON_SET, DEPLOYMENT].map(|workload| {
        let annotations = &objects[workload]["spec"]["template"]["metadata"]["annotations"];
        annotations["checksum/configuration"].as_str().unwrap().to_owned()
    })
}

/// Covers every value that the workloads read from a ConfigMap at their start. Other values change the pods themselves.
#[test]
fn changed_configuration_changes_the_checksum_of_both_workloads() {
    if !can_render() {
        return;
    }
    let before = checksums(&template(&[]).unwrap());
    for value in [
        "cni.mtu=1440",
        "cni.logLevel=debug",
        "cni.networkConfig=mine",
        "apiGroup=projectcalico.org/v3",
        "datastore=etcd",
        "kubernetesServiceEndpoint.host=api.example.com",
    ] {
        let after = checksums(&with(&[value]).0);
        assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{value}");
    }
    for value in ["kubeControllers.replicas=3", "podAnnotations.note=x", "metrics.service=false"] {
        assert_eq!(checksums(&with(&[value]).0), before, "{value}");
    }
}

/// With a surge, two agents of one node would listen at the same port.
#[test]
fn surge_of_the_daemon_set_is_refused() {
    if !can_render() {
        return;
    }
    for value in [
        "cni.updateStrategy.rollingUpdate.maxSurge=1",
        "cni.updateStrategy.rollingUpdate.maxSurge=10%",
        "cni.patch.spec.updateStrategy.rollingUpdate.maxSurge=1",
    ] {
        let error = template(&["--set", value]).unwrap_err().to_string();
        assert!(error.contains("maxSurge is not possible") && error.contains("maxUnavailable"), "{value}: {error}");
    }
    for value in ["cni.updateStrategy.rollingUpdate.maxSurge=0", "cni.updateStrategy.type=OnDelete"] {
        assert!(template(&["--set", value]).is_ok(), "{value}");
    }
}
