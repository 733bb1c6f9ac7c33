//! Upgrades of a release.

use integration_tests::manifests::{Objects, containers, template};
use serde_json::json;

use super::options::set;
use super::{DAEMON_SET, DEPLOYMENT, can_render};

fn checksums(objects: &Objects) -> [String; 2] {
    [DAEMON_SET, DEPLOYMENT].map(|workload| {
        let annotations = &objects[workload]["spec"]["template"]["metadata"]["annotations"];
        annotations["checksum/configuration"]
            .as_str()
            .unwrap()
            .to_owned()
    })
}

/// Covers values that the workloads read from a ConfigMap, and others.
#[test]
fn changed_configuration_changes_the_checksum_of_both_workloads() {
    if !can_render() {
        return;
    }
    let before = checksums(&template(&[]).unwrap());
    for value in [
        "cni.mtu=1440",
        "cni.logLevel=debug",
        r"cni.networkConfig=\{}",
        "apiGroup=projectcalico.org/v3",
        "datastore=etcd",
        "kubernetesServiceEndpoint.host=api.example.com",
    ] {
        let after = checksums(&set(&[value]));
        assert!(
            before
                .iter()
                .zip(&after)
                .all(|(before, after)| before != after),
            "{value}"
        );
    }
    let others = [
        "kubeControllers.replicas=3",
        "podAnnotations.note=x",
        "metrics.service=false",
        "commonLabels.team=net",
    ];
    for value in others {
        assert_eq!(checksums(&set(&[value])), before, "{value}");
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
        assert!(
            error.contains("maxSurge is not possible") && error.contains("maxUnavailable"),
            "{value}: {error}"
        );
    }
    for value in [
        "cni.updateStrategy.rollingUpdate.maxSurge=0",
        "cni.updateStrategy.type=OnDelete",
    ] {
        assert!(template(&["--set", value]).is_ok(), "{value}");
    }
}

#[test]
fn former_directories_are_mounted_into_install_cni() {
    if !can_render() {
        return;
    }
    let objects = set(&[
        "cni.binDir=/var/lib/cni/bin",
        "cni.confDir=/var/run/multus/cni/net.d",
        "cni.formerBinDir=/home/kubernetes/bin",
        "cni.formerConfDir=/etc/other",
    ]);
    let volumes = objects[DAEMON_SET]["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .unwrap();
    let [install, agent] = containers(&objects[DAEMON_SET]).try_into().unwrap();
    for (volume, variable, path) in [
        (
            "former-bin-dir",
            "CNI_FORMER_BIN_DIR",
            "/home/kubernetes/bin",
        ),
        ("former-net-dir", "CNI_FORMER_NET_DIR", "/etc/other"),
    ] {
        let mounted = volumes
            .iter()
            .find(|found| found["name"] == volume)
            .unwrap();
        assert_eq!(
            mounted["hostPath"],
            json!({ "path": path, "type": "DirectoryOrCreate" })
        );
        assert!(
            install["env"]
                .as_array()
                .unwrap()
                .contains(&json!({ "name": variable, "value": path })),
            "{install}"
        );
        let mount = json!({ "name": volume, "mountPath": format!("/host/{volume}") });
        assert!(
            install["volumeMounts"].as_array().unwrap().contains(&mount),
            "{install}"
        );
        assert!(!agent.to_string().contains(volume), "{agent}");
    }
    // The installer records its files with the directory of the node.
    for container in [install, agent] {
        let recorded = json!({ "name": "CNI_BIN_DIR", "value": "/var/lib/cni/bin" });
        assert!(
            container["env"].as_array().unwrap().contains(&recorded),
            "{container}"
        );
    }
}
