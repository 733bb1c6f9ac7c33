//! Objects that change or disappear while the plugin works.

use std::time::Instant;

use integration_tests::cluster::{Faulty, NAMESPACE, Pod, pod_path};
use integration_tests::command::ip;
use integration_tests::kernel;
use integration_tests::kubernetes::Client;
use integration_tests::plugin::{DEADLINE, Outcome, wait};
use integration_tests::proxy::{Fault, Point};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::on;

const READS_POD: Point = Point::First("GET", "/pods/");
const WRITES_ENDPOINT: Point = Point::First("PATCH", "/pods/");
const WRITES_BLOCK: Point = Point::First("PUT", "/ipamblocks/");

/// Runs a CNI command, and calls `act` while its request at `point` is held.
fn meanwhile(
    faulty: &Faulty<'_>,
    verb: &str,
    pod: &Pod,
    point: Point,
    act: impl FnOnce(),
) -> Outcome {
    faulty.proxy.arm(Some((point, Fault::Hold)));
    let call = faulty.call(verb, pod);
    let started = Instant::now();
    let child = call.spawn().unwrap();
    faulty.proxy.await_held().unwrap();
    act();
    faulty.proxy.resume();
    wait(child, started, DEADLINE).unwrap()
}

fn pod_object(client: &Client, pod: &Pod) -> Option<Value> {
    let answer = client.get(&pod_path(pod.object.as_ref().unwrap())).unwrap();
    (answer.code == 200).then_some(answer.body)
}

fn delete_object(client: &Client, pod: &Pod) {
    client
        .delete(&pod_path(pod.object.as_ref().unwrap()))
        .unwrap()
        .success();
}

#[on(kubernetes_v3)]
fn pod_deleted_before_the_endpoint_write_keeps_no_address(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    for namesake in [false, true] {
        let pod = faulty.pod();
        let outcome = meanwhile(faulty, "ADD", &pod, WRITES_ENDPOINT, || {
            let old = pod_object(admin, &pod).unwrap();
            delete_object(admin, &pod);
            if namesake {
                let metadata = json!({ "name": old["metadata"]["name"], "namespace": NAMESPACE });
                let containers = json!([{ "name": "c", "image": "none" }]);
                let spec = json!({ "nodeName": "node1", "containers": containers });
                let new = json!({
                    "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec,
                });
                admin.apply_object(&new).unwrap();
            }
        });
        outcome.error();
        faulty.cluster.assert_nothing_left();
        if namesake {
            let annotations = &pod_object(admin, &pod).unwrap()["metadata"]["annotations"];
            assert!(annotations.is_null(), "the namesake got {annotations}");
        }
        faulty.run("DEL", &pod);
        faulty.cluster.assert_nothing_left();
        faulty.cluster.remove_pod(&pod);
    }

    // DEL finds no pod whose annotations it could change.
    let pod = faulty.pod();
    faulty.run("ADD", &pod);
    meanwhile(faulty, "DEL", &pod, WRITES_ENDPOINT, || {
        delete_object(admin, &pod)
    })
    .success();
    faulty.cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn del_overtaken_by_the_next_sandbox_leaves_the_new_sandbox_unchanged(faulty: &mut Faulty<'_>) {
    let old = faulty.pod();
    let new = faulty.sandbox(&old);
    faulty.run("ADD", &old);
    let add = faulty.call("ADD", &new);
    let mut result = Value::Null;
    meanwhile(faulty, "DEL", &old, WRITES_ENDPOINT, || {
        result = add.run().success()
    })
    .success();
    faulty.cluster.assert_only(&[&new]);
    faulty.conf["prevResult"] = result;
    faulty.run("CHECK", &new);
    faulty.run("DEL", &new);
    faulty.cluster.assert_nothing_left();
}

/// Shows SEC-41.
#[on(kubernetes_v1)]
fn add_overtaken_by_the_next_sandbox_fails_and_leaves_the_new_sandbox(faulty: &mut Faulty<'_>) {
    let old = faulty.pod();
    let new = faulty.sandbox(&old);
    let add = faulty.call("ADD", &new);
    let mut result = Value::Null;
    let outcome = meanwhile(faulty, "ADD", &old, READS_POD, || {
        result = add.run().success()
    });
    let error = outcome.error();
    assert!(
        error.msg.contains("was created by a later ADD of this pod"),
        "{error:?}"
    );
    faulty.conf["prevResult"] = result;
    faulty.run("CHECK", &new);
    faulty.run("DEL", &old);
    faulty.run("CHECK", &new);
    let annotations =
        &pod_object(faulty.cluster.objects().client(), &new).unwrap()["metadata"]["annotations"];
    assert_eq!(
        annotations["cni.projectcalico.org/containerID"],
        json!(new.container_id)
    );
    faulty.cluster.assert_only(&[&new]);
    faulty.run("DEL", &new);
    faulty.cluster.assert_nothing_left();
}

#[on(kubernetes_v3)]
fn del_without_the_namespace_object_succeeds_and_add_fails(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    let (gone, late) = (faulty.pod(), faulty.pod());
    faulty.run("ADD", &gone);
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    for pod in [&gone, &late] {
        delete_object(admin, pod);
    }
    // No controller removes the namespace's finalizer.
    admin.delete(&path).unwrap().success();
    let mut namespace = admin.get(&path).unwrap().success();
    namespace["spec"]["finalizers"] = json!([]);
    admin
        .replace(&format!("{path}/finalize"), &namespace)
        .unwrap()
        .success();
    assert_eq!(admin.get(&path).unwrap().code, 404);

    faulty.proxy.arm(None);
    let error = faulty.call("ADD", &late).run().error();
    assert!(error.msg.contains("not found"), "{error:?}");
    for pod in [&late, &gone, &gone] {
        faulty.run("DEL", pod);
    }
    faulty.cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn del_without_the_node_object_succeeds_and_add_fails(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    let (gone, late) = (faulty.pod(), faulty.pod());
    faulty.run("ADD", &gone);
    admin.delete("/api/v1/nodes/node1").unwrap().success();
    faulty.proxy.arm(None);
    let outcome = faulty.call("ADD", &late).run();
    // Without the node, the pools that it may use are unknown.
    assert!(outcome.error().msg.contains("node1"), "{outcome:?}");
    faulty.cluster.assert_only(&[&gone]);
    for pod in [&late, &gone] {
        faulty.run("DEL", pod);
    }
    faulty.cluster.assert_nothing_left();
}

#[on(kubernetes_v1, kubernetes_v3)]
fn block_changed_by_another_node_meanwhile_assigns_no_address_twice(faulty: &mut Faulty<'_>) {
    let objects = faulty.cluster.objects();
    let other = OtherNode {
        client: objects.client(),
        group: objects.group(),
    };
    let (first, second) = (faulty.pod(), faulty.pod());
    faulty.run("ADD", &first);
    let mut taken = String::new();
    let result = meanwhile(faulty, "ADD", &second, WRITES_BLOCK, || {
        taken = other.take("tunl-a")
    })
    .success();
    assert!(
        !result.to_string().contains(&taken),
        "{taken} was given twice: {result}"
    );

    meanwhile(faulty, "DEL", &first, WRITES_BLOCK, || {
        drop(other.take("tunl-b"))
    })
    .success();
    faulty.run("DEL", &second);
    let accounts = faulty.cluster.accounts();
    assert_eq!(
        accounts.held.values().collect::<Vec<_>>(),
        [&other.handle("tunl-a"), &other.handle("tunl-b")]
    );
    faulty.cluster.assert_in_order();
}

/// Upstream on another node.
struct OtherNode<'a> {
    client: &'a Client,
    group: ApiGroup,
}

impl OtherNode<'_> {
    fn handle(&self, tunnel: &str) -> String {
        format!("ipip-tunnel-addr-{tunnel}")
    }

    /// Allocates the next free address of the only block.
    fn take(&self, tunnel: &str) -> String {
        let collection = |plural: &str| format!("/apis/{}/{plural}", self.group.api_version());
        let blocks = self
            .client
            .get(&collection("ipamblocks"))
            .unwrap()
            .success();
        let [block] = &blocks["items"].as_array().unwrap()[..] else {
            panic!("{blocks}")
        };
        let (mut block, name) = (block.clone(), block["metadata"]["name"].as_str().unwrap());
        let spec = &mut block["spec"];
        let cidr = spec["cidr"].as_str().unwrap().to_owned();
        let handle = json!({
            "apiVersion": self.group.api_version(), "kind": "IPAMHandle",
            "metadata": { "name": self.handle(tunnel) },
            "spec": {
                "handleID": self.handle(tunnel), "block": { cidr.clone(): 1 }, "deleted": false,
            },
        });
        self.client
            .create(&collection("ipamhandles"), &handle)
            .unwrap()
            .success();

        let ordinal = spec["unallocated"]
            .as_array_mut()
            .unwrap()
            .remove(0)
            .as_u64()
            .unwrap();
        let attributes = spec["attributes"].as_array_mut().unwrap();
        let holder = json!({ "node": "node2", "type": "ipipTunnelAddress" });
        attributes.push(json!({ "handle_id": self.handle(tunnel), "secondary": holder }));
        let index = attributes.len() - 1;
        spec["allocations"][ordinal as usize] = json!(index);
        spec["sequenceNumberForAllocation"][ordinal.to_string()] = spec["sequenceNumber"].clone();
        spec["sequenceNumber"] = json!(spec["sequenceNumber"].as_u64().unwrap() + 1);
        let path = format!("{}/{name}", collection("ipamblocks"));
        self.client.replace(&path, &block).unwrap().success();

        let (base, last) = cidr.split_once('/').unwrap().0.rsplit_once('.').unwrap();
        format!("{base}.{}/32", last.parse::<u64>().unwrap() + ordinal)
    }
}

/// The write of the endpoint takes a round trip.
#[on(kubernetes_v3)]
fn add_creates_the_interface_while_the_endpoint_is_written(faulty: &mut Faulty<'_>) {
    let pod = faulty.pod();
    let outcome = meanwhile(faulty, "ADD", &pod, WRITES_ENDPOINT, || {
        let deadline = Instant::now() + DEADLINE;
        while kernel::host().unwrap()["routes"]
            .as_array()
            .unwrap()
            .is_empty()
        {
            assert!(
                Instant::now() < deadline,
                "no route to the pod while its endpoint is written"
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    outcome.success();
    faulty.cluster.assert_only(&[&pod]);
}

#[on(kubernetes_v1)]
fn add_without_an_interface_reverts_the_endpoint(faulty: &mut Faulty<'_>) {
    let pod = faulty.pod();
    ip(&format!(
        "link add other0 type veth peer name eth0 netns {}",
        pod.name
    ))
    .unwrap();
    faulty.proxy.arm(None);
    let error = faulty.call("ADD", &pod).run().error();
    assert!(error.msg.contains("eth0"), "{error:?}");
    let object = pod_object(faulty.cluster.objects().client(), &pod).unwrap();
    assert_eq!(
        object["metadata"]["annotations"]["cni.projectcalico.org/podIP"], "",
        "{object}"
    );
    assert!(
        faulty.cluster.accounts().held.is_empty() && faulty.cluster.accounts().counted.is_empty()
    );
    ip("link delete other0").unwrap();
    faulty.recover(&pod, 1);
}
