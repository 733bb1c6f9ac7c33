//! Addresses that a KubeVirt VMI keeps in every pod. The test writes KubeVirt's objects.

use std::path::Path;

use integration_tests::cluster::{
    Cluster, ClusterTest, ControlPlane, NAMESPACE, Pod, pod_path, restricted,
};
use integration_tests::command::ip;
use integration_tests::content::{Content, container_id};
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kernel;
use integration_tests::kubernetes::{Client, Role};
use integration_tests::{Place, on};
use serde_json::{Value, json};

const HANDLE: &str = "k8s-pod-network.vmi.suite.vm1";

/// A VM and its VMI, whose finalizers keep them during their deletion.
struct Machine<'a> {
    client: &'a Client,
    instance_uid: String,
}

impl<'a> Machine<'a> {
    fn new(client: &'a Client) -> Machine<'a> {
        let machine = Self::create(client, "VirtualMachine", &json!([]));
        let owner = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm1", "uid": machine,
        });
        Machine {
            client,
            instance_uid: Self::create(client, "VirtualMachineInstance", &json!([owner])),
        }
    }

    fn create(client: &Client, kind: &str, owners: &Value) -> String {
        let object = json!({
            "apiVersion": "kubevirt.io/v1", "kind": kind,
            "metadata": { "name": "vm1", "ownerReferences": owners, "finalizers": ["test/kept"] },
        });
        let path = format!(
            "/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/{}s",
            kind.to_lowercase()
        );
        let made = client.create(&path, &object).unwrap().success();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Starts the deletion of the VM or the VMI, whose finalizer keeps the object.
    fn delete(&self, plural: &str) {
        let path = format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/{plural}/vm1");
        self.client.delete(&path).unwrap().success();
    }

    fn restart(&mut self) {
        let path =
            format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances/vm1");
        let ended = self.client.get(&path).unwrap().success();
        self.delete("virtualmachineinstances");
        self.client
            .patch(&path, &json!({ "metadata": { "finalizers": [] } }))
            .unwrap()
            .success();
        let owners = &ended["metadata"]["ownerReferences"];
        self.instance_uid = Self::create(self.client, "VirtualMachineInstance", owners);
    }

    /// Creates a pod of the VMI and its sandbox. With a migration job, the pod is the target of a
    /// migration, on another node.
    fn pod(&self, cluster: &Cluster<'_>, number: usize, job: Option<&str>) -> Pod {
        let (name, sandbox) = (format!("virt-launcher-vm1-{number}"), format!("vm{number}"));
        let owner = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "name": "vm1",
                            "uid": self.instance_uid, "controller": true });
        let node = if job.is_some() { "node2" } else { "node1" };
        let labels = job.map_or(
            json!({}),
            |job| json!({ "kubevirt.io/migrationJobUID": job }),
        );
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner],
            },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "none" }] },
        });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        self.client.create(&pods, &pod).unwrap().success();
        let netns = cluster.host.add_pod(&sandbox).unwrap();
        Pod {
            name: sandbox,
            netns,
            container_id: container_id(number),
            object: Some(name),
        }
    }
}

/// Runs a test with pools.
fn on<Parameters>(place: Place, test: impl ClusterTest<Parameters>) {
    restricted(
        place,
        |cluster: &mut Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
            cluster.load(&Content::dual_stack());
            test.run(cluster, Some(control_plane));
        },
    );
}

fn conf(cluster: &Cluster<'_>) -> Value {
    conf_of(cluster, "node1")
}

/// Returns the configuration of the node with the targets of migrations.
fn conf_of_target(cluster: &Cluster<'_>) -> Value {
    conf_of(cluster, "node2")
}

fn conf_of(cluster: &Cluster<'_>, node: &str) -> Value {
    let ipam = json!({ "type": "calico-ipam", "assign_ipv6": "true" });
    cluster.conf(node, json!({ "ipam": ipam, "policy": { "type": "k8s" } }))
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| {
        ip["address"]
            .as_str()
            .unwrap()
            .split('/')
            .next()
            .unwrap()
            .to_owned()
    })
    .collect()
}

/// Returns the active and the alternate owner of the VMI's addresses; `None` if the VMI has no
/// addresses.
fn owners(cluster: &Cluster<'_>) -> Option<[String; 2]> {
    let content = cluster.store.dump().unwrap();
    let blocks = content
        .into_iter()
        .filter(|(key, _)| key.starts_with("ipamblocks/") || key.contains("/assignment/"));
    let mut found = Vec::new();
    for (_, block) in blocks {
        let block = block.get("spec").cloned().unwrap_or(block);
        for attribute in block["attributes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|a| a["handle_id"] == HANDLE)
        {
            let pod = |owner: &str| {
                attribute[owner]["pod"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            found.push([pod("secondary"), pod("alternateOwnerAttrs")]);
        }
    }
    found.dedup();
    assert!(found.len() <= 1, "{found:?}");
    found.pop()
}

fn owned_by(active: &str, alternate: &str) -> Option<[String; 2]> {
    let name = |number: &str| {
        if number.is_empty() {
            String::new()
        } else {
            format!("virt-launcher-vm1-{number}")
        }
    };
    Some([name(active), name(alternate)])
}

#[on(kubernetes_v1)]
fn vmi_keeps_its_addresses_from_pod_to_pod(cluster: &Cluster<'_>) {
    let machine = Machine::new(cluster.objects().client());
    let mut conf = conf(cluster);
    let first = machine.pod(cluster, 1, None);
    let held = addresses(&cluster.add(&first, &conf));
    assert_eq!((held.len(), owners(cluster)), (2, owned_by("1", "")));
    for _ in 0..2 {
        cluster.delete(&first, &conf);
        assert_eq!(owners(cluster), owned_by("", ""));
    }
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    cluster.remove_pod(&first);

    let second = machine.pod(cluster, 2, None);
    let result = cluster.add(&second, &conf);
    assert_eq!(
        (addresses(&result), owners(cluster)),
        (held.clone(), owned_by("2", ""))
    );
    let routes = kernel::host().unwrap()["routes"].to_string();
    assert!(
        held.iter().all(|address| routes.contains(address.as_str())),
        "{routes}"
    );
    conf["prevResult"] = result;
    cluster.verb("CHECK", &second, &conf).run().success();

    // The VMI ends and the VM remains, so the addresses are kept.
    machine.delete("virtualmachineinstances");
    cluster.delete(&second, &conf);
    assert_eq!(owners(cluster), owned_by("", ""));
    cluster.add(&second, &conf);
    machine.delete("virtualmachines");
    cluster.delete(&second, &conf);
    assert_eq!(owners(cluster), None);
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn vmi_keeps_its_addresses_in_a_live_migration(cluster: &Cluster<'_>) {
    let machine = Machine::new(cluster.objects().client());
    let (conf, conf_there) = (conf(cluster), conf_of_target(cluster));
    let source = machine.pod(cluster, 1, None);
    let target = machine.pod(cluster, 2, Some("job"));
    let error = cluster.verb("ADD", &target, &conf_there).run().error();
    assert!(
        error
            .msg
            .contains(&format!("no IP allocated to VM handle {HANDLE}")),
        "{error:?}"
    );

    let here = cluster.add(&source, &conf);
    let before = kernel::host().unwrap()["routes"].clone();
    let there = cluster.add(&target, &conf_there);
    assert_eq!(
        (addresses(&there), there.get("routes")),
        (addresses(&here), None)
    );
    assert_eq!(owners(cluster), owned_by("1", "2"));
    // The host's routes lead to the source. Felix moves them later.
    let inside =
        kernel::pod(cluster.host, &target.name).unwrap()["links"]["eth0"]["addrs"].to_string();
    assert!(
        addresses(&there)
            .iter()
            .all(|address| inside.contains(address.as_str())),
        "{inside}"
    );
    let leading = |routes: &Value| -> Vec<Value> {
        let routes = routes.as_array().unwrap().iter();
        routes
            .filter(|route| !route["dst"].to_string().contains("fe80"))
            .cloned()
            .collect()
    };
    assert_eq!(
        leading(&kernel::host().unwrap()["routes"]),
        leading(&before)
    );
    for (pod, conf, result) in [(&source, &conf, &here), (&target, &conf_there, &there)] {
        let mut conf = conf.clone();
        conf["prevResult"] = result.clone();
        cluster.verb("CHECK", pod, &conf).run().success();
    }
    cluster.delete(&source, &conf);
    assert_eq!(owners(cluster), owned_by("", "2"));
    let inside = kernel::pod(cluster.host, &target.name).unwrap();
    assert_eq!(
        inside["links"]["eth0"]["state"].as_array().map(Vec::len),
        Some(3),
        "{inside}"
    );
    machine.delete("virtualmachines");
    cluster.delete(&source, &conf);
    assert_eq!(owners(cluster), owned_by("", "2"));
    cluster.delete(&target, &conf_there);
    assert_eq!(owners(cluster), None);
    cluster.assert_nothing_left();
}

/// The next VMI of the VM starts before the pod of the previous one is deleted.
#[on(kubernetes_v1)]
fn restarted_vmi_keeps_its_addresses_while_the_old_launcher_runs(cluster: &Cluster<'_>) {
    let mut machine = Machine::new(cluster.objects().client());
    let mut conf = conf(cluster);
    let old = machine.pod(cluster, 1, None);
    let first = cluster.add(&old, &conf);
    machine.restart();
    let new = machine.pod(cluster, 2, None);
    // The routes lead to the old virt-launcher pod, which still runs.
    let (held, routes) = (
        cluster.accounts().held,
        kernel::host().unwrap()["routes"].clone(),
    );
    let error = cluster.verb("ADD", &new, &conf).run().error();
    assert!(error.msg.contains("the address is in use"), "{error:?}");
    assert_eq!(
        (cluster.accounts().held, &kernel::host().unwrap()["routes"]),
        (held, &routes)
    );

    cluster.delete(&old, &conf);
    let result = cluster.add(&new, &conf);
    assert_eq!(
        (addresses(&result), owners(cluster)),
        (addresses(&first), owned_by("2", ""))
    );
    // A late DEL of the old pod must not affect the new one.
    machine.delete("virtualmachines");
    cluster.delete(&old, &conf);
    assert_eq!(owners(cluster), owned_by("2", ""));
    conf["prevResult"] = result;
    cluster.verb("CHECK", &new, &conf).run().success();
    cluster.delete(&new, &conf);
    assert_eq!(owners(cluster), None);
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn failed_add_removes_the_pod_as_owner_and_keeps_the_vmi_addresses(cluster: &Cluster<'_>) {
    let machine = Machine::new(cluster.objects().client());
    let conf = conf(cluster);
    let pod = machine.pod(cluster, 1, None);
    ip("link add other0 type veth peer name eth0 netns vm1").unwrap();
    cluster.verb("ADD", &pod, &conf).run().error();
    assert_eq!(owners(cluster), owned_by("", ""));
    ip("link delete other0").unwrap();
    cluster.add(&pod, &conf);
    assert_eq!(owners(cluster), owned_by("1", ""));
}

/// The previous virt-launcher pod still runs, so it must remain the owner.
#[on(kubernetes_v1)]
fn failed_add_of_the_next_launcher_keeps_the_previous_owner(cluster: &Cluster<'_>) {
    let machine = Machine::new(cluster.objects().client());
    let conf = conf(cluster);
    let [before, next] = [1, 2].map(|number| machine.pod(cluster, number, None));
    cluster.add(&before, &conf);
    ip("link add other0 type veth peer name eth0 netns vm2").unwrap();
    cluster.verb("ADD", &next, &conf).run().error();
    assert_eq!(owners(cluster), owned_by("1", ""));
}

#[on(kubernetes_v1)]
fn del_of_an_old_sandbox_keeps_the_vmi_addresses_of_the_new_one(cluster: &Cluster<'_>) {
    let machine = Machine::new(cluster.objects().client());
    let conf = conf(cluster);
    let old = machine.pod(cluster, 1, None);
    cluster.add(&old, &conf);
    let new = cluster.sandbox(&old, 7);
    cluster.add(&new, &conf);
    machine.delete("virtualmachines");
    cluster.delete(&old, &conf);
    assert_eq!(owners(cluster), owned_by("1", ""));
    cluster.delete(&new, &conf);
    assert_eq!(owners(cluster), None);
}

#[on(kubernetes_v1)]
fn deferred_del_of_a_vmi_is_replayed_once_the_api_server_runs(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let machine = Machine::new(cluster.objects().client());
    let conf = conf(cluster);
    let pod = machine.pod(cluster, 1, None);
    cluster.add(&pod, &conf);
    machine.delete("virtualmachines");
    control_plane.proxy.go_away();
    cluster.delete(&pod, &conf);
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    control_plane.proxy.arm(None);
    assert_eq!(owners(cluster), owned_by("1", ""));
    let mut status = conf.clone();
    status["cniVersion"] = json!("1.1.0");
    cluster.await_replayed(&pod, &status);
    assert_eq!(owners(cluster), None);
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn unknown_vmi_fails_the_add_and_disabled_persistence_uses_the_pod_handle(cluster: &Cluster<'_>) {
    let client = cluster.objects().client();
    let mut machine = Machine::new(client);
    let conf = conf(cluster);
    let before = cluster.state();
    machine.instance_uid = "00000000-0000-4000-8000-000000000000".into();
    let stray = machine.pod(cluster, 1, None);
    let error = cluster.verb("ADD", &stray, &conf).run().error();
    assert!(error.msg.starts_with("failed to get VMI info"), "{error:?}");
    cluster.delete(&stray, &conf);
    cluster.remove_pod(&stray);
    assert_eq!(cluster.state()["store"], before["store"]);

    let config = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMConfig",
        "metadata": { "name": "default" },
        "spec": {
            "strictAffinity": false, "autoAllocateBlocks": true,
            "kubeVirtVMAddressPersistence": "Disabled",
        },
    });
    client.apply_object(&config).unwrap();
    let path = format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances/vm1");
    let instance = client.get(&path).unwrap().success();
    machine.instance_uid = instance["metadata"]["uid"].as_str().unwrap().to_owned();
    let target = machine.pod(cluster, 2, Some("job"));
    let error = cluster
        .verb("ADD", &target, &conf_of_target(cluster))
        .run()
        .error();
    assert!(
        error
            .msg
            .contains("KubeVirtVMAddressPersistence is disabled"),
        "{error:?}"
    );
    cluster.remove_pod(&target);
    let source = machine.pod(cluster, 3, None);
    cluster.add(&source, &conf);
    assert_eq!(
        owners(cluster),
        None,
        "the container's own handle holds them"
    );
    cluster.assert_only(&[&source]);
    cluster.delete(&source, &conf);
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn plugin_user_needs_and_uses_the_kubevirt_permissions(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let api = &control_plane.servers.api;
    let user = api.cni_user().unwrap();
    let machine = Machine::new(api.admin());
    let mut conf = conf(cluster);
    conf["kubernetes"]["kubeconfig"] = json!(user.kubeconfig);
    let pod = machine.pod(cluster, 1, None);
    let audit = api.audit().unwrap();
    cluster.add(&pod, &conf);
    cluster.delete(&pod, &conf);
    let ours = Role::ours().unwrap();
    let part = ours.of_groups(&["kubevirt.io"]);
    assert_eq!(
        Role::used_by(&audit.of(&user.user).unwrap()).of_groups(&["kubevirt.io"]),
        part
    );
    assert_eq!(part.0.len(), 2);
    for permission in &part.0 {
        api.grant(&user, &ours.without(permission)).unwrap();
        let error = cluster.verb("ADD", &pod, &conf).run().error();
        assert!(error.msg.starts_with("failed to get VMI info"), "{error:?}");
        assert!(
            error.msg.contains(&permission.resource),
            "{permission}: {error:?}"
        );
    }
    assert_eq!(owners(cluster), owned_by("", ""));
}

#[on(kubernetes_v1)]
fn calico_ipam_alone_moves_vmi_addresses_between_pods(cluster: &Cluster<'_>) {
    let machine = Machine::new(cluster.objects().client());
    let (conf, conf_there) = (conf(cluster), conf_of_target(cluster));
    let verb = |verb: &str, pod: &Pod, conf: &Value| {
        let call = cluster
            .plugins
            .verb("calico-ipam", verb, &pod.container_id, &pod.netns, conf);
        call.env("CNI_ARGS", pod.args()).run().success()
    };
    let (source, target) = (
        machine.pod(cluster, 1, None),
        machine.pod(cluster, 2, Some("job")),
    );
    let here = verb("ADD", &source, &conf);
    let there = verb("ADD", &target, &conf_there);
    assert_eq!(
        (addresses(&there), there.get("routes")),
        (addresses(&here), None)
    );
    assert_eq!(owners(cluster), owned_by("1", "2"));
    let mut checked = conf_there.clone();
    checked["prevResult"] = there;
    verb("CHECK", &target, &checked);
    verb("DEL", &source, &conf);
    assert_eq!(owners(cluster), owned_by("", "2"));
    // A pod that the API server does not have cannot be identified.
    cluster
        .objects()
        .client()
        .delete(&pod_path("virt-launcher-vm1-2"))
        .unwrap()
        .success();
    verb("DEL", &target, &conf_there);
    assert_eq!(owners(cluster), owned_by("", "2"));
    let next = machine.pod(cluster, 3, None);
    verb("ADD", &next, &conf);
    machine.delete("virtualmachines");
    verb("DEL", &next, &conf);
    assert_eq!(
        owners(cluster),
        owned_by("", "2"),
        "the machine is still noted to move"
    );
}

#[test]
fn vmi_addresses_in_etcd_are_kept_and_deferred_dels_completed() {
    restricted(Place::KubernetesV1, vmi_addresses_in_etcd_are_kept);
}

fn vmi_addresses_in_etcd_are_kept(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let (api, proxy) = (&control_plane.servers.api, &control_plane.proxy);
    let cluster = cluster.in_etcd();
    cluster.load(&Content::dual_stack());
    let account = api.service_account(NAMESPACE, "plugin").unwrap();
    api.bind(&account, "cluster-admin").unwrap();
    let kubeconfig = api
        .kubeconfig_to(&proxy.endpoint(), "plugin", &account.identity)
        .unwrap();
    let mut conf = conf(&cluster);
    conf["kubernetes"] = json!({ "kubeconfig": kubeconfig });
    let machine = Machine::new(api.admin());
    let pod = machine.pod(&cluster, 1, None);
    let held = addresses(&cluster.add(&pod, &conf));
    // The account may not read pods.
    let mut forbidden = conf.clone();
    forbidden["kubernetes"] =
        json!({ "kubeconfig": api.service_account(NAMESPACE, "stranger").unwrap().kubeconfig });
    cluster.delete(&pod, &forbidden);
    assert!(Path::new("/var/lib/calico/cni-journal").exists());
    assert_eq!(owners(&cluster), owned_by("1", ""));
    cluster.delete(&pod, &conf);
    assert_eq!(owners(&cluster), owned_by("", ""));
    let again = cluster.add(&pod, &conf);
    assert_eq!(addresses(&again), held);
    // With an unreachable API server, the owner of the addresses is unknown.
    machine.delete("virtualmachines");
    proxy.go_away();
    let mut checked = conf.clone();
    checked["prevResult"] = again;
    let error = cluster.verb("CHECK", &pod, &checked).run().error();
    assert_eq!(error.code, 11, "{error:?}");
    assert!(error.msg.contains("Kubernetes API"), "{error:?}");
    cluster.delete(&pod, &conf);
    assert_eq!(
        (
            kernel::host().unwrap()["links"].clone(),
            cluster.endpoints().len()
        ),
        (json!({}), 0)
    );
    assert_eq!(owners(&cluster), owned_by("1", ""));
    proxy.arm(None);
    // A DEL waits three seconds for the first answer.
    let is_released = || {
        cluster.delete(&pod, &conf);
        Ok(cluster.accounts().is_empty())
    };
    await_that(PATIENCE, is_released).unwrap();
    assert_eq!(owners(&cluster), None);
    cluster.assert_nothing_left();
}
