use kube::client::Body;
use libcalico::api::{ObjectSelect, WorkloadEndpoint, WorkloadEndpointSpec};
use libcalico::ipam::LeakReason;
use libcalico::ipam::gc::{Suspect, VmiAvailability};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::{Kind, Store, Write, WriteOp};
use serde_json::{Value, json};

use super::*;
use crate::logging::captured::Captured;
use crate::settings::LogSeverity;

const ADDRESS: &str = "10.0.0.1";

fn endpoint(node: &str, pod: &str, container: &str) -> WorkloadEndpoint {
    let spec = WorkloadEndpointSpec {
        orchestrator: "k8s".into(),
        node: node.into(),
        pod: pod.into(),
        container_id: container.into(),
        endpoint: "eth0".into(),
        ip_networks: vec![format!("{ADDRESS}/32")],
        ..WorkloadEndpointSpec::default()
    };
    let mut endpoint = WorkloadEndpoint::new(EndpointIdentifiers::of(&spec).name().unwrap(), spec);
    endpoint.metadata.namespace = "ns".into();
    endpoint
}

fn answering(pods: &[Value]) -> kube::Client {
    let pods = pods.to_vec();
    let service = tower::service_fn(move |request: hyper::Request<Body>| {
        let uri = request.uri();
        let is_asked = |pod: &&Value| {
            let asked = format!(
                "metadata.name%3D{}&",
                pod["metadata"]["name"].as_str().unwrap()
            );
            uri.path().ends_with("/pods") && uri.query().is_some_and(|query| query.contains(&asked))
        };
        let items: Vec<&Value> = pods.iter().filter(is_asked).collect();
        let list = json!({"kind": "PartialObjectMetadataList", "metadata": {}, "items": items});
        let answer = hyper::Response::new(Body::from(list.to_string().into_bytes()));
        async move { Ok::<_, std::convert::Infallible>(answer) }
    });
    kube::Client::new(service, "default")
}

async fn store_unreadable(calico: &Datastore, endpoint: &WorkloadEndpoint) {
    let key = endpoint.key();
    let (kind, path) = (WorkloadEndpoint::KIND, WorkloadEndpoint::path(&key));
    let op = WriteOp::Create(b"\"no endpoint\"".to_vec());
    calico
        .write_one(Write {
            kind,
            path,
            key: key.to_string(),
            op,
        })
        .await
        .unwrap();
}

/// Runs the release phase of a pass with one leak. Returns true if the address is still allocated.
async fn collect(
    kubernetes: kube::Client,
    calico: &Arc<Datastore>,
    (index, block): (Index, Block),
) -> bool {
    calico.create(&block.cidr, &block).await.unwrap();
    let mut gc_pass = new_pass(kubernetes, calico.clone(), index, Leadership::always());
    gc_pass.release_leaks(GcMode::Reclaim).await;
    let block = calico.get::<Block>(&block.cidr).await.unwrap().value;
    block.allocated().any(|held| held.ip.to_string() == ADDRESS)
}

#[tokio::test]
async fn release_is_logged_before_each_write_with_address_handle_node_pod_and_reason() {
    let (log, _logging) = Captured::on_this_thread(LogSeverity::Info);
    let (_dir, calico) = embedded();
    let of_pod = endpoint("node-a", "gone", "gone");
    calico.create(&of_pod.key(), &of_pod).await.unwrap();
    assert!(!collect(answering(&[]), &calico, leaky()).await);
    let lines = log.from("releas");
    let [endpoint, address, done] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert!(
        endpoint.starts_with("releasing a leaked address: deleting the endpoint"),
        "{endpoint}"
    );
    assert!(
        address.starts_with("releasing a leaked address ")
            && done.starts_with("released a leaked address "),
        "{lines:?}"
    );
    for line in &lines {
        for field in [
            "address=10.0.0.1",
            "handle=net.gone",
            "node=node-a",
            "pod=ns/gone",
            "reason=its pod is gone",
        ] {
            assert!(line.contains(field), "{field}: {line}");
        }
    }
}

#[tokio::test]
async fn leak_candidate_is_logged_at_info_with_its_pod() {
    let (log, _logging) = Captured::on_this_thread(LogSeverity::Info);
    let (_dir, calico) = embedded();
    let gc_pass = new_pass(answering(&[]), calico, leaky().0, Leadership::always());
    let suspect = gc_pass
        .inputs
        .cache
        .index()
        .suspects(Duration::MAX, 1)
        .remove(0);
    let Suspect {
        block,
        address,
        handle,
        owner,
        node,
        ..
    } = suspect;
    let kind = ChangeKind::Candidate(LeakReason::PodGone);
    gc_pass.log_changes(&[Change {
        kind,
        block,
        address,
        handle,
        owner,
        node,
    }]);
    let [line] = &log.from("an address looks leaked")[..] else {
        panic!("{:?}", log.text())
    };
    for field in [
        "address=10.0.0.1",
        "handle=net.gone",
        "node=node-a",
        "pod=ns/gone",
        "reason=its pod is gone",
    ] {
        assert!(line.contains(field), "{field}: {line}");
    }
}

async fn endpoints(calico: &Datastore) -> Vec<String> {
    let endpoints = calico
        .list::<WorkloadEndpoint>(&ObjectSelect::default())
        .await
        .unwrap();
    endpoints.into_iter().map(|entry| entry.key.name).collect()
}

#[tokio::test]
async fn address_of_a_deleted_pod_is_released_unless_its_endpoint_is_unreadable() {
    for is_readable in [true, false] {
        let (_dir, calico) = embedded();
        let of_pod = endpoint("node-a", "gone", "gone");
        match is_readable {
            true => _ = calico.create(&of_pod.key(), &of_pod).await.unwrap(),
            false => store_unreadable(&calico, &of_pod).await,
        }
        assert_eq!(
            collect(answering(&[]), &calico, leaky()).await,
            !is_readable,
            "{is_readable}"
        );
        assert_eq!(endpoints(&calico).await, [""; 0]);
    }
}

#[tokio::test]
async fn unreadable_endpoint_of_another_pod_blocks_no_release() {
    let (_dir, calico) = embedded();
    store_unreadable(&calico, &endpoint("node-a", "other", "other")).await;
    assert!(!collect(answering(&[]), &calico, leaky()).await);
}

/// Returns an index with a confirmed leak of a virtual machine's address, with these pods as its
/// owners.
fn of_machine(owners: [Option<&str>; 2]) -> (Index, Block) {
    let settings = libcalico::ipam::gc::GcSettings {
        vmis: VmiAvailability::Watched,
        ..Default::default()
    };
    let attributes = owners.map(|launcher| {
        let of = |launcher| {
            [
                ("node", "node-a"),
                ("pod", launcher),
                ("namespace", "ns"),
                ("vmi-name", "vm"),
            ]
        };
        launcher.map(of).into_iter().flatten().collect::<Vec<_>>()
    });
    leaked(settings, "net.vmi.ns.vm", [&attributes[0], &attributes[1]])
}

fn launcher(name: &str, phase: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": "u"},
        "spec": {"nodeName": "node-b"},
        "status": {"phase": phase, "podIP": address, "podIPs": [{"ip": address}]},
    })
}

/// The launchers are source and target of a live migration, and their endpoint is on another node
/// than the allocation names.
#[tokio::test]
async fn vmi_address_is_released_after_the_endpoints_of_ended_launchers() {
    for owners in [
        [Some("launcher"), None],
        [None, Some("launcher")],
        [Some("source"), Some("launcher")],
    ] {
        for pods in [&[][..], &[launcher("launcher", "Succeeded", ADDRESS)]] {
            let (_dir, calico) = embedded();
            let of_launcher = endpoint("node-b", "launcher", "c1");
            calico
                .create(&of_launcher.key(), &of_launcher)
                .await
                .unwrap();
            assert!(
                !collect(answering(pods), &calico, of_machine(owners)).await,
                "{owners:?} {pods:?}"
            );
            assert_eq!(endpoints(&calico).await, [""; 0], "{owners:?} {pods:?}");
        }
    }
}

#[tokio::test]
async fn vmi_address_is_retained_while_a_launcher_endpoint_exists_or_is_unreadable() {
    let of_launcher = endpoint("node-b", "launcher", "c1");
    for is_readable in [true, false] {
        let (_dir, calico) = embedded();
        match is_readable {
            true => {
                _ = calico
                    .create(&of_launcher.key(), &of_launcher)
                    .await
                    .unwrap()
            }
            false => store_unreadable(&calico, &of_launcher).await,
        }
        let pods = [launcher(
            "launcher",
            if is_readable { "Running" } else { "Succeeded" },
            "10.0.9.9",
        )];
        assert!(
            collect(
                answering(&pods),
                &calico,
                of_machine([Some("launcher"), None])
            )
            .await,
            "{is_readable}"
        );
        assert_eq!(endpoints(&calico).await.len(), usize::from(is_readable));
    }
}
