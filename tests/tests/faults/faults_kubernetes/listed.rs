//! No address is released while the annotations of a pod that has not ended list it.

use std::path::PathBuf;

use integration_tests::cluster::{Faults, Faulty, NAMESPACE, Pod, handle, pod_path, sweep};
use integration_tests::command::ip;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::journal::journal_entries;
use integration_tests::kernel;
use integration_tests::kubernetes::Client;
use integration_tests::proxy::{Fault, Point, Refusal};
use serde_json::{Value, json};

use super::on;

const WRITES_ENDPOINT: Point = Point::First("PATCH", "/pods/");

/// More attempts than a plugin makes.
const OFTEN: usize = 12;

/// Faults with which no PATCH succeeds.
const REFUSALS: [Fault; 5] = [
    refused(401),
    refused(403),
    refused(409),
    refused(500),
    Fault::Cut,
];

const AT_READ: Faults<'static> = Faults {
    before: &[refused(403), Fault::Kill],
    after: &[Fault::Cut],
};

const fn refused(code: u16) -> Fault {
    Fault::Refuse(Refusal {
        code,
        retry_after: None,
    })
}

fn object(client: &Client, pod: &Pod) -> Value {
    client
        .get(&pod_path(pod.object.as_ref().unwrap()))
        .unwrap()
        .success()
}

fn annotations(client: &Client, pod: &Pod) -> [Value; 3] {
    let object = object(client, pod);
    ["containerID", "podIP", "podIPs"].map(|key| {
        object["metadata"]["annotations"][format!("cni.projectcalico.org/{key}")].clone()
    })
}

/// Changes annotations, as a tenant may at any time.
fn annotate(client: &Client, pod: &Pod, annotations: &[(&str, &str)]) {
    let annotations: Value = annotations
        .iter()
        .map(|(key, text)| (format!("cni.projectcalico.org/{key}"), json!(text)))
        .collect();
    let patch = json!({ "metadata": { "annotations": annotations } });
    client
        .patch(&pod_path(pod.object.as_ref().unwrap()), &patch)
        .unwrap()
        .success();
}

/// Sets the phase that the kubelet reports when all containers have ended.
fn finish(client: &Client, pod: &Pod) {
    let status = json!({ "status": { "phase": "Succeeded" } });
    client
        .patch(
            &format!("{}/status", pod_path(pod.object.as_ref().unwrap())),
            &status,
        )
        .unwrap()
        .success();
}

/// Replaces the pod by another one of the same name with these annotations.
fn replace(client: &Client, pod: &Pod, annotations: &[(&str, &str)]) {
    let name = pod.object.as_ref().unwrap();
    client.delete(&pod_path(name)).unwrap().success();
    let spec = json!({ "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] });
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    let new = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    client
        .create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &new)
        .unwrap()
        .success();
    annotate(client, pod, annotations);
}

fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().to_owned()
}

fn is_held(faulty: &Faulty<'_>, pod: &Pod) -> bool {
    faulty
        .cluster
        .accounts()
        .held
        .values()
        .any(|holder| *holder == handle(pod))
}

fn patches(faulty: &Faulty<'_>) -> usize {
    faulty
        .proxy
        .requests()
        .iter()
        .filter(|request| request.starts_with("PATCH"))
        .count()
}

/// Shows SEC-60.
#[on(kubernetes_v3)]
fn del_with_a_refused_patch_keeps_the_address_for_a_later_replay(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    for fault in REFUSALS {
        let (pod, next) = (faulty.pod(), faulty.pod());
        let address = address(&faulty.run("ADD", &pod));
        faulty.proxy.arm_all(&[(WRITES_ENDPOINT, fault); OFTEN]);
        faulty.call("DEL", &pod).run().success();
        assert!(faulty.proxy.fired(), "{fault:?}");
        assert_eq!(kernel::host().unwrap()["links"], json!({}), "{fault:?}");
        assert_eq!(
            annotations(admin, &pod),
            [json!(pod.container_id), json!(address), json!(address)]
        );
        assert!(
            is_held(faulty, &pod),
            "{fault:?}: {address} is free, and the pod's annotations list it"
        );
        assert_eq!(journal_entries().len(), 1, "{fault:?}");
        faulty.proxy.arm_all(&[(WRITES_ENDPOINT, fault); OFTEN]);
        // A STATUS may end before its replay comes to the PATCH.
        await_that(PATIENCE, || {
            faulty.call("STATUS", &next).try_run()?;
            Ok(faulty.proxy.fired())
        })
        .unwrap();
        assert!(
            is_held(faulty, &pod) && journal_entries().len() == 1,
            "{fault:?}"
        );

        faulty.await_replayed(&next);
        assert_eq!(
            annotations(admin, &pod),
            [json!(pod.container_id), json!(""), json!("")]
        );
        faulty.cluster.assert_nothing_left();
    }
}

#[on(kubernetes_v1)]
fn del_of_an_ended_pod_with_a_refused_patch_releases_the_address(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    for fault in REFUSALS {
        let pod = faulty.pod();
        faulty.run("ADD", &pod);
        finish(admin, &pod);
        faulty.proxy.arm_all(&[(WRITES_ENDPOINT, fault); OFTEN]);
        faulty.call("DEL", &pod).run().success();
        assert!(faulty.proxy.fired() && !is_held(faulty, &pod), "{fault:?}");
        assert_eq!(journal_entries(), Vec::<PathBuf>::new(), "{fault:?}");
        faulty.cluster.remove_pod(&pod);
    }
    let pod = faulty.pod();
    faulty.run("ADD", &pod);
    finish(admin, &pod);
    faulty.run("DEL", &pod);
    assert_eq!(
        annotations(admin, &pod),
        [json!(pod.container_id), json!(""), json!("")]
    );
}

#[on(kubernetes_v3)]
fn del_of_a_deleted_or_replaced_pod_sends_no_patch(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    for is_replaced in [false, true] {
        let pod = faulty.pod();
        faulty.run("ADD", &pod);
        let uid = object(admin, &pod)["metadata"]["uid"]
            .as_str()
            .unwrap()
            .to_owned();
        match is_replaced {
            true => replace(admin, &pod, &[("podIPs", "192.0.2.9/32")]),
            false => admin
                .delete(&pod_path(pod.object.as_ref().unwrap()))
                .unwrap()
                .checked()
                .map(drop)
                .unwrap(),
        }
        faulty.proxy.arm(None);
        let args = format!("{};K8S_POD_UID={uid}", pod.args());
        faulty
            .call("DEL", &pod)
            .env("CNI_ARGS", args)
            .run()
            .success();
        assert_eq!(patches(faulty), 0, "{:?}", faulty.proxy.requests());
        assert!(!is_held(faulty, &pod));
        faulty.cluster.remove_pod(&pod);
    }
}

/// The other sandbox and the additional address stand for values that a tenant may write.
/// Shows SEC-61.
#[on(kubernetes_v1)]
fn del_removes_only_its_address_from_annotations_of_another_sandbox(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    for is_replaced in [false, true] {
        let pod = faulty.pod();
        let address = address(&faulty.run("ADD", &pod));
        let uid = object(admin, &pod)["metadata"]["uid"]
            .as_str()
            .unwrap()
            .to_owned();
        let both = format!("{address},192.0.2.9/32");
        let edits = [
            ("containerID", "f00d"),
            ("podIP", &*address),
            ("podIPs", &*both),
        ];
        match is_replaced {
            true => replace(admin, &pod, &edits),
            false => annotate(admin, &pod, &edits),
        }
        let args = format!("{};K8S_POD_UID={uid}", pod.args());
        let call = faulty.call("DEL", &pod).env("CNI_ARGS", args);
        faulty
            .proxy
            .arm_all(&[(WRITES_ENDPOINT, refused(403)); OFTEN]);
        call.run().success();
        assert!(
            is_held(faulty, &pod) && journal_entries().len() == 1,
            "{address} is free and listed"
        );
        assert_eq!(
            annotations(admin, &pod),
            [json!("f00d"), json!(address), json!(both)]
        );

        faulty.proxy.arm(None);
        call.run().success();
        assert_eq!(
            annotations(admin, &pod),
            [json!("f00d"), json!("192.0.2.9/32"), json!("192.0.2.9/32")]
        );
        assert!(!is_held(faulty, &pod) && journal_entries().is_empty());
        faulty.cluster.remove_pod(&pod);
    }
}

/// The allocation names the pod whose annotations list the address, whatever pod CNI_ARGS names.
#[on(kubernetes_v3)]
fn del_removes_the_address_from_the_pod_that_the_allocation_names(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    let bystander = faulty.pod();
    for args in [bystander.args(), String::new()] {
        let pod = faulty.pod();
        let address = address(&faulty.run("ADD", &pod));
        let call = faulty.call("DEL", &pod).env("CNI_ARGS", args);
        faulty
            .proxy
            .arm_all(&[(WRITES_ENDPOINT, refused(403)); OFTEN]);
        _ = call.run();
        assert!(faulty.proxy.fired(), "{:?}", faulty.proxy.requests());
        assert!(is_held(faulty, &pod), "{address} is free and listed");
        faulty.proxy.arm(None);
        call.run().success();
        assert_eq!(
            annotations(admin, &pod),
            [json!(pod.container_id), json!(""), json!("")]
        );
        assert!(!is_held(faulty, &pod));
        faulty.cluster.remove_pod(&pod);
    }
}

#[on(kubernetes_v1)]
fn gc_with_a_refused_patch_keeps_the_address(faulty: &mut Faulty<'_>) {
    let pod = faulty.pod();
    faulty.run("ADD", &pod);
    faulty.conf["cni.dev/valid-attachments"] = json!([]);
    faulty
        .proxy
        .arm_all(&[(WRITES_ENDPOINT, refused(403)); OFTEN]);
    let error = faulty.call("GC", &pod).run().error();
    assert!(error.details.contains("pod1"), "{error:?}");
    assert!(
        is_held(faulty, &pod),
        "the address is free, and the pod's annotations list it"
    );
    faulty.run("GC", &pod);
    faulty.cluster.assert_nothing_left();
}

#[on(kubernetes_v3)]
fn failed_add_leaves_no_free_address_in_the_annotations(faulty: &mut Faulty<'_>) {
    let failing = |faulty: &mut Faulty<'_>| {
        let pod = faulty.pod();
        ip(&format!(
            "link add other0 type veth peer name eth0 netns {}",
            pod.name
        ))
        .unwrap();
        pod
    };
    let pod = failing(faulty);
    faulty.proxy.arm(None);
    faulty.call("ADD", &pod).run().error();
    let requests = faulty.proxy.requests();
    assert!(!is_held(faulty, &pod));
    ip("link delete other0").unwrap();
    let at_write = Faults {
        before: &[refused(403), Fault::Cut, Fault::Kill],
        after: &[Fault::Cut, Fault::Kill],
    };
    for (point, fault) in sweep(&requests, at_write, AT_READ) {
        let pod = failing(faulty);
        faulty.faulted("ADD", &pod, point, fault);
        ip("link delete other0").unwrap();
        faulty.run("DEL", &pod);
        faulty.cluster.assert_nothing_left();
        faulty.cluster.remove_pod(&pod);
    }
}

/// Creates a pod that requests an address, and adds its first sandbox.
fn requesting(faulty: &mut Faulty<'_>, client: &Client, address: &str) -> Pod {
    let pod = faulty.pod();
    annotate(client, &pod, &[("ipAddrs", &json!([address]).to_string())]);
    assert_eq!(
        self::address(&faulty.run("ADD", &pod)),
        format!("{address}/32")
    );
    pod
}

/// Runs the ADD of a pod's second sandbox with each fault at each request. `prepare` returns the
/// address that the second sandbox must get.
fn fault_at_each_request_of_a_second_sandbox(
    faulty: &mut Faulty<'_>,
    admin: &Client,
    prepare: impl Fn(&Client, &Pod) -> &'static str,
) {
    let second = |faulty: &mut Faulty<'_>| {
        let first = requesting(faulty, admin, "10.65.3.3");
        let wanted = prepare(admin, &first);
        let second = faulty.sandbox(&first);
        (first, second, wanted)
    };
    let end = |faulty: &mut Faulty<'_>, sandboxes: &[&Pod]| {
        sandboxes
            .iter()
            .for_each(|sandbox| drop(faulty.run("DEL", sandbox)));
        faulty.cluster.assert_nothing_left();
        sandboxes
            .iter()
            .for_each(|sandbox| faulty.cluster.remove_pod(sandbox));
    };
    let (first, new, wanted) = second(faulty);
    assert_eq!(address(&faulty.run("ADD", &new)), format!("{wanted}/32"));
    let requests = faulty.proxy.requests();
    faulty.cluster.assert_only(&[&new]);
    end(faulty, &[&first, &new]);
    let at_write = Faults {
        before: &[refused(403), refused(409), Fault::Cut, Fault::Kill],
        after: &[Fault::Cut, Fault::Kill],
    };
    for (point, fault) in sweep(&requests, at_write, AT_READ) {
        let (first, new, wanted) = second(faulty);
        let outcome = faulty.faulted("ADD", &new, point, fault);
        if outcome.exit != Some(0) {
            faulty.run("DEL", &new);
        }
        faulty.cluster.assert_listed_is_held();
        let third = faulty.sandbox(&first);
        assert_eq!(
            address(&faulty.run("ADD", &third)),
            format!("{wanted}/32"),
            "{point:?} {fault:?}"
        );
        end(faulty, &[&first, &new, &third]);
    }
}

/// Shows SEC-5.
#[on(kubernetes_v1)]
fn second_sandbox_with_the_same_address_leaves_no_free_address_annotated(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    fault_at_each_request_of_a_second_sandbox(faulty, admin, |_, _| "10.65.3.3");
}

#[on(kubernetes_v1)]
fn second_sandbox_with_a_new_address_leaves_no_free_address_annotated(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    fault_at_each_request_of_a_second_sandbox(faulty, admin, |client, pod| {
        annotate(client, pod, &[("ipAddrs", "[\"10.65.3.4\"]")]);
        "10.65.3.4"
    });
}

/// The address passes from the first sandbox to the second, although the list has a free one.
#[on(kubernetes_v1)]
fn second_sandbox_with_a_list_leaves_no_free_address_annotated(faulty: &mut Faulty<'_>) {
    let admin = faulty.cluster.objects().client();
    fault_at_each_request_of_a_second_sandbox(faulty, admin, |client, pod| {
        annotate(
            client,
            pod,
            &[
                ("ipAddrs", ""),
                ("ipAddrsAnyOf", "[\"10.65.3.3\", \"10.65.3.4\"]"),
            ],
        );
        "10.65.3.3"
    });
}
