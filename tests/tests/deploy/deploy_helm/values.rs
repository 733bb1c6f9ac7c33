//! The chart's schema rejects wrong values and covers all of values.yaml.

use std::fs;

use integration_tests::kubernetes::{Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{deploy, template, write_list};
use serde_json::Value;

use super::can_render;

#[test]
fn invalid_values_are_refused_by_the_schema() {
    if !can_render() {
        return;
    }
    for (value, named) in [
        ("cni.mtuu=1", "mtuu"),
        ("datastore=sqlite", "datastore"),
        ("platform=vax", "platform"),
        ("apiGroup=crd.projectcalico.org/v3", "apiGroup"),
        ("image.tag=latest", "tag"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("cni.mtu=67", "mtu"),
        ("cni.mtu=big", "mtu"),
        ("cni.specVersion=2.0.0", "specVersion"),
        ("cni.binDir=opt/cni/bin", "binDir"),
        ("cni.binDir=/", "binDir"),
        ("cni.confDir=/etc/../root", "confDir"),
        ("cni.formerBinDir=/opt//bin", "formerBinDir"),
        ("cni.formerConfDir=/etc/cni/.", "formerConfDir"),
        (
            "kubeControllers.enabledControllers=nodes",
            "enabledControllers",
        ),
        (
            "kubeControllers.enabledControllers=flannelmigration",
            "enabledControllers",
        ),
        ("image.digest.cni=sha256:12", "digest"),
        ("kubeControllers.replicas=-1", "replicas"),
        ("kubernetesServiceEndpoint.ofPlatform=always", "ofPlatform"),
        ("ipam.pools[0].cidr=everything", "cidr"),
        ("ipam.pools[0].blockSize=26", "cidr"),
        ("cni.confName=a/b.conf", "confName"),
        ("agent.tokenRefreshInterval=often", "tokenRefreshInterval"),
        ("agent.listen=9097", "listen"),
        ("agent.listen=node1:9097", "listen"),
        ("agent.listen=127.0.0.1:0", "listen"),
        ("etcd.endpoints=10.0.0.1", "endpoints"),
        ("etcd.certificates.ca=/etc/ca.pem", "ca"),
        ("cni.logFile.path=cni.log", "path"),
        ("cni.logFile.maxSize=-1", "maxSize"),
        ("cni.updateStrategy.type=Recreate", "type"),
        ("kubeControllers.logLevel=loud", "logLevel"),
        ("metrics.interval=often", "interval"),
        ("kubeControllers.leakGracePeriod=often", "leakGracePeriod"),
        ("kubeControllers.healthPort=0", "healthPort"),
        ("kubeControllers.migrateToV3=perhaps", "migrateToV3"),
        ("kubeControllers.metricsPort=65536", "metricsPort"),
        ("ipam.strictAffinity=perhaps", "strictAffinity"),
        ("commonLabels.team=1", "team"),
        (
            "serviceAccountAnnotations.default.a=b",
            "serviceAccountAnnotations",
        ),
        ("extraObjects[0]=7", "extraObjects"),
    ] {
        let error = template(&["--set", value]).unwrap_err().to_string();
        assert!(
            error.contains("schema") && error.contains(named),
            "{value}: {error}"
        );
    }
}

/// A release with these values would be installed, and its pods would fail.
#[test]
fn values_with_which_the_programs_would_fail_are_refused_when_rendered() {
    if !can_render() {
        return;
    }
    for (values, named) in [
        (
            "kubeControllers.enabledControllers=node\\,policy",
            "policy needs datastore=etcd",
        ),
        ("kubeControllers.metricsPort=9440", "healthPort"),
        ("kubeControllers.healthPort=9094", "metricsPort"),
        ("podLabels.k8s-app=mine", "podLabels.k8s-app"),
        ("ipam.assignIPv4=false", "ipam.assignIPv6=true"),
        ("cni.networkConfig=mine", "cni.networkConfig"),
        ("cni.networkConfig=[]", "cni.networkConfig"),
        (
            "ipam.pools[0].cidr=10.0.0.0/24,ipam.pools[0].blockSize=22",
            "a block of /22 is larger",
        ),
        ("ipam.pools[0].cidr=10.0.0.0/27", "a block of /26 is larger"),
        ("ipam.pools[0].cidr=fd00::/124", "a block of /122 is larger"),
        (
            "ipam.pools[0].cidr=fd00::/16,ipam.pools[0].blockSize=24",
            "blockSize=24",
        ),
        (
            "ipam.pools[0].cidr=10.0.0.0/16,ipam.pools[0].blockSize=120",
            "blockSize=120",
        ),
        (
            "ipam.pools[0].cidr=10.0.0.0/16,ipam.pools[0].ipip=Always,ipam.pools[0].vxlan=CrossSubnet",
            "encapsulation",
        ),
    ] {
        let error = template(&["--set", values]).unwrap_err().to_string();
        assert!(error.contains(named), "{values}: {error}");
    }
    for values in [
        "datastore=etcd,kubeControllers.enabledControllers=node\\,policy",
        "kubeControllers.enabledControllers=node\\,loadbalancer",
        "ipam.assignIPv4=false,ipam.assignIPv6=true",
        "ipam.pools[0].cidr=10.0.0.0/26",
        r#"cni.networkConfig=\{"mtu": __CNI_MTU__}"#,
    ] {
        template(&["--set", values]).unwrap();
    }
}

#[test]
fn values_and_schema_have_the_same_keys() {
    let values: Value =
        serde_norway::from_str(&fs::read_to_string(deploy("helm/calico-cni/values.yaml")).unwrap())
            .unwrap();
    let schema: Value = serde_json::from_str(
        &fs::read_to_string(deploy("helm/calico-cni/values.schema.json")).unwrap(),
    )
    .unwrap();
    compare(&values, &schema, "");
}

fn compare(values: &Value, schema: &Value, path: &str) {
    let (Some(values), Some(properties)) = (values.as_object(), schema["properties"].as_object())
    else {
        return;
    };
    // `{}` has no default content to compare.
    if values.is_empty() {
        return;
    }
    for (name, value) in values {
        let property = properties
            .get(name)
            .unwrap_or_else(|| panic!("the schema has no {path}.{name}"));
        compare(value, property, &format!("{path}.{name}"));
    }
    for name in properties.keys() {
        // helm passes `global` to every chart.
        assert!(
            values.contains_key(name) || name == "global",
            "values.yaml has no {path}.{name}"
        );
    }
    assert_eq!(schema["additionalProperties"], false, "{path}");
}

#[test]
fn server_dry_run_accepts_a_chart_with_many_values() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        for values in [
            "cni.bandwidth=true,cni.privileged=true,cni.upgradeIpam=true,cni.flowControl=true,ipam.pools[0].cidr=10.0.0.0/16,metrics.dashboard=true,\
             ipam.pools[1].cidr=fd00::/48,kubernetesServiceEndpoint.host=api.example.com,kubeControllers.hostNetwork=true,image.pullSecrets={a},cni.confDir=/etc/other",
            "platform=talos,kubernetesServiceEndpoint.ofPlatform=true,kubeControllers.hostNetwork=true",
            "datastore=etcd,cni.privileged=true,etcd.tls=false,ipam.pools[0].cidr=10.0.0.0/16,agent.listen=[::1]:9197",
            "datastore=etcd,etcd.secretName=mine,cni.updateStrategy.type=OnDelete,cni.tolerations[0].operator=Exists,\
             kubeControllers.nodeSelector.role=infra,kubeControllers.securityContext.runAsUser=1000,\
             etcd.certificates.ca=-----BEGIN C-----,etcd.certificates.cert=-----BEGIN \
             C-----,etcd.certificates.key=-----BEGIN K-----",
            "kubeControllers.migrateToV3=true,rbac.nodeRestriction=true",
            "apiGroup=projectcalico.org/v3,crds.keep=false,commonLabels.team=net,commonAnnotations.owner=me,\
             ipam.strictAffinity=true,kubeControllers.metricsPort=9095,serviceAccountAnnotations.calico-cni.a=b",
        ] {
            let objects = template(&["--set", values]).unwrap();
            let file = write_list(&host.dir("chart"), objects.values()).unwrap();
            let said = api
                .kubectl(&[
                    "apply",
                    "--server-side",
                    "--dry-run=server",
                    "--validate=strict",
                    "-f",
                    &file,
                ])
                .unwrap();
            assert_eq!(said.lines().count(), objects.len(), "{said}");
        }
    });
}
