use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use datastore::config::{DEFAULT_DEADLINE, LocalConfig};
use datastore::{Datastore, DatastoreConfig};
use hyper::{Response, StatusCode};
use kube::client::Body;
use libcalico::ipam::gc::{Decision, SuspectOwner};
use libcalico::ipam::{InUseReason, LeakReason, OwnerKind};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::gc::events::tests::suspect;
use crate::gc::gate::LeaderGate;
use crate::gc::owners_api::OwnersApi;
use crate::gc::this_replica::ThisReplica;
use crate::leader::Leadership;

const MIN_LISTED_PODS: u8 = pods::MIN_LISTED_PODS as u8;

#[derive(Clone, Default)]
struct Server {
    answers: Arc<Mutex<BTreeMap<String, (u16, Value)>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn says(&self, target: &str, answer: Value) -> &Self {
        self.fails(target, 200, answer)
    }

    fn has(&self, path: &str, object: Value) -> &Self {
        self.says(
            &by_name(path),
            json!({"kind": "PartialObjectMetadataList", "metadata": {}, "items": [object]}),
        )
    }

    fn refuses(&self, path: &str, code: u16, answer: Value) -> &Self {
        self.fails(&by_name(path), code, answer)
    }

    fn fails(&self, target: &str, code: u16, answer: Value) -> &Self {
        self.answers
            .lock()
            .unwrap()
            .insert(target.into(), (code, answer));
        self
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let target = request.uri().to_string();
            let absent = json!({"kind": "PartialObjectMetadataList", "metadata": {}, "items": []});
            let (code, body) = server
                .answers
                .lock()
                .unwrap()
                .get(&target)
                .cloned()
                .unwrap_or((200, absent));
            server.asked.lock().unwrap().push(target);
            let answer = Response::builder().status(StatusCode::from_u16(code).unwrap());
            let answer = answer
                .body(Body::from(body.to_string().into_bytes()))
                .unwrap();
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        kube::Client::new(service, "default")
    }
}

fn by_name(path: &str) -> String {
    let (collection, name) = path.rsplit_once('/').unwrap();
    format!("{collection}?fieldSelector=metadata.name%3D{name}&limit=1")
}

/// Returns the decisions about suspects after the lookup, in a cluster with 100 pods.
async fn decide(server: &Server, suspects: &[Suspect]) -> Vec<Decision> {
    decide_among(server, suspects, 100).await
}

async fn decide_among(server: &Server, suspects: &[Suspect], pods: usize) -> Vec<Decision> {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalConfig {
        path: dir.path().join("calico.db"),
        deadline: DEFAULT_DEADLINE,
    };
    let calico = Datastore::open(&DatastoreConfig::Local(local)).unwrap();
    let gate = LeaderGate::new(Leadership::always(), CancellationToken::new(), 0);
    let api = OwnersApi::new(server.client());
    let reader = ApiReader::<ThisReplica> {
        api: &api,
        calico: &calico,
        gate: &gate,
        parallel: 4,
    };
    let live = reader.read(suspects, pods).await;
    suspects
        .iter()
        .map(|suspect| suspect.recheck(&live.current_facts(suspect)))
        .collect()
}

fn pod(number: u8, node: &str, ip: &str) -> Value {
    json!({
        "metadata": {"name": format!("pod{number}"), "namespace": "ns", "uid": "u"},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]},
    })
}

fn pod_path(number: u8) -> String {
    format!("/api/v1/namespaces/ns/pods/pod{number}")
}

#[tokio::test]
async fn address_reported_by_a_live_pod_is_retained_despite_the_cache() {
    let server = Server::default();
    server
        .has(&pod_path(1), pod(1, "a", "10.0.0.1"))
        .has(&pod_path(2), pod(2, "a", "10.0.0.99"));
    let changed = Suspect {
        reason: LeakReason::OtherAddresses,
        ..suspect(2, Some("a"))
    };
    // The cache had found the second pod missing, so the index has not checked if the address is on
    // a second interface.
    let decided = decide(
        &server,
        &[
            suspect(1, Some("a")),
            suspect(2, Some("a")),
            changed,
            suspect(3, Some("a")),
        ],
    )
    .await;
    let expected = [
        Decision::Keep(InUseReason::Pod),
        Decision::Keep(InUseReason::NotLookedUp),
        Decision::Release(LeakReason::OtherAddresses),
        Decision::Release(LeakReason::PodGone),
    ];
    assert_eq!(decided, expected);
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn address_is_retained_when_its_pod_cannot_be_read() {
    let server = Server::default();
    let other =
        json!({"kind": "Status", "code": 404, "details": {"name": "ns", "kind": "namespaces"}});
    server
        .refuses(&pod_path(1), 500, json!({"kind": "Status", "code": 500}))
        .refuses(
            &pod_path(2),
            403,
            json!({"kind": "Status", "code": 403, "details": {"name": "pod2"}}),
        )
        .refuses(&pod_path(3), 404, json!("404 page not found"))
        .refuses(&pod_path(4), 404, other)
        .has(
            &pod_path(5),
            json!({"metadata": {"name": "pod5", "namespace": "ns"}}),
        )
        .says(
            &by_name(&pod_path(6)),
            json!({"kind": "Status", "status": "Success"}),
        )
        // A list of another kind, a list without items, and another object than the requested one.
        .says(
            &by_name(&pod_path(7)),
            json!({"kind": "NodeList", "metadata": {}, "items": []}),
        )
        .says(
            &by_name(&pod_path(8)),
            json!({"kind": "PodList", "metadata": {}}),
        )
        .has(&pod_path(9), pod(1, "a", "10.0.0.99"));
    let suspects: Vec<Suspect> = (1..=9).map(|n| suspect(n, Some("a"))).collect();
    assert_eq!(
        decide(&server, &suspects).await,
        [Decision::Keep(InUseReason::NotLookedUp); 9]
    );
}

#[tokio::test]
async fn many_pods_of_a_node_are_read_with_a_single_list() {
    let server = Server::default();
    let list = "/api/v1/pods?fieldSelector=spec.nodeName%3Da";
    let page = |token: &str, pod: Value| {
        json!({
            "kind": "PodList", "metadata": {"continue": token}, "items": [pod],
        })
    };
    server.says(list, page("more", pod(1, "a", "10.0.0.1")));
    server.says(
        &format!("{list}&continue=more"),
        page("", pod(2, "a", "10.0.0.99")),
    );
    let mut suspects: Vec<Suspect> = (1..=MIN_LISTED_PODS)
        .map(|n| suspect(n, Some("a")))
        .collect();
    // The cache had found this pod on another node, so a list of one node does not locate the pod.
    suspects.push(Suspect {
        reason: LeakReason::PodElsewhere,
        ..suspect(MIN_LISTED_PODS + 1, Some("a"))
    });
    suspects.push(suspect(MIN_LISTED_PODS + 2, Some("b")));
    let decided = decide(&server, &suspects).await;
    assert_eq!(
        decided[..2],
        [
            Decision::Keep(InUseReason::Pod),
            Decision::Keep(InUseReason::NotLookedUp)
        ]
    );
    assert!(
        decided[2..]
            .iter()
            .all(|decision| *decision == Decision::Release(LeakReason::PodGone)),
        "{decided:?}"
    );
    let mut asked = server.asked();
    asked.sort();
    let mut expected = [
        by_name(&pod_path(MIN_LISTED_PODS + 1)),
        by_name(&pod_path(MIN_LISTED_PODS + 2)),
        list.to_owned(),
        format!("{list}&continue=more"),
    ];
    expected.sort();
    assert_eq!(asked, expected);
}

/// With an old etcd, each list of a node's pods filters the pods of all nodes.
#[tokio::test]
async fn large_clusters_need_more_suspects_per_node_before_listing() {
    let server = Server::default();
    let suspects: Vec<Suspect> = (1..=MIN_LISTED_PODS)
        .map(|n| suspect(n, Some("a")))
        .collect();
    let list = "/api/v1/pods?fieldSelector=spec.nodeName%3Da";
    server.says(
        list,
        json!({"kind": "PodList", "metadata": {}, "items": []}),
    );
    decide_among(&server, &suspects, 2_000).await;
    assert_eq!(server.asked(), [list]);
    decide_among(&server, &suspects, 20_000).await;
    assert_eq!(server.asked().len(), usize::from(MIN_LISTED_PODS));
}

/// The server has lost the position of the second page, so the list is incomplete after the first
/// page.
#[tokio::test]
async fn incomplete_pod_list_is_ignored() {
    let server = Server::default();
    let list = "/api/v1/pods?fieldSelector=spec.nodeName%3Da";
    server.says(
        list,
        json!({
            "kind": "PodList", "metadata": {"continue": "more"}, "items": [pod(1, "a", "10.0.0.1")],
        }),
    );
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired"});
    server.fails(&format!("{list}&continue=more"), 410, gone);
    for number in 1..=MIN_LISTED_PODS {
        server.has(
            &pod_path(number),
            pod(number, "a", &format!("10.0.0.{number}")),
        );
    }
    let suspects: Vec<Suspect> = (1..=MIN_LISTED_PODS)
        .map(|n| suspect(n, Some("a")))
        .collect();
    assert_eq!(
        decide(&server, &suspects).await,
        [Decision::Keep(InUseReason::Pod); pods::MIN_LISTED_PODS]
    );
    assert_eq!(server.asked().len(), usize::from(MIN_LISTED_PODS) + 2);
}

#[tokio::test]
async fn pod_list_with_an_unreadable_item_is_ignored() {
    let server = Server::default();
    let list = "/api/v1/pods?fieldSelector=spec.nodeName%3Da";
    server.says(
        list,
        json!({"kind": "PodList", "metadata": {}, "items": [{"metadata": {"name": "odd"}}]}),
    );
    server.has(&pod_path(1), pod(1, "a", "10.0.0.1"));
    let suspects: Vec<Suspect> = (1..=MIN_LISTED_PODS)
        .map(|n| suspect(n, Some("a")))
        .collect();
    let decided = decide(&server, &suspects).await;
    assert_eq!(
        decided[..2],
        [
            Decision::Keep(InUseReason::Pod),
            Decision::Release(LeakReason::PodGone)
        ]
    );
    assert_eq!(server.asked().len(), usize::from(MIN_LISTED_PODS) + 1);
}

#[tokio::test]
async fn response_other_than_a_pod_list_is_ignored() {
    let list = "/api/v1/pods?fieldSelector=spec.nodeName%3Da";
    let suspects: Vec<Suspect> = (1..=MIN_LISTED_PODS)
        .map(|n| suspect(n, Some("a")))
        .collect();
    for answer in [
        json!({}),
        json!({"kind": "Status", "status": "Success", "code": 200}),
        json!({"kind": "PodList", "metadata": {}}),
        json!({"kind": "NodeList", "metadata": {}, "items": []}),
        json!({"metadata": {}, "items": []}),
    ] {
        let server = Server::default();
        server.says(list, answer.clone());
        for number in 1..=MIN_LISTED_PODS {
            server.has(
                &pod_path(number),
                pod(number, "a", &format!("10.0.0.{number}")),
            );
        }
        assert_eq!(
            decide(&server, &suspects).await,
            [Decision::Keep(InUseReason::Pod); pods::MIN_LISTED_PODS],
            "{answer}"
        );
    }
    for empty in [json!([]), json!(null)] {
        let server = Server::default();
        server.says(
            list,
            json!({"kind": "PodList", "metadata": {}, "items": empty}),
        );
        assert_eq!(
            decide(&server, &suspects).await,
            [Decision::Release(LeakReason::PodGone); pods::MIN_LISTED_PODS]
        );
        assert_eq!(server.asked(), [list]);
    }
}

#[tokio::test]
async fn empty_page_with_a_continue_token_is_inconclusive() {
    let server = Server::default();
    let list = "/api/v1/namespaces/ns/pods?fieldSelector=metadata.name%3Dpod1&limit=1";
    server.says(
        list,
        json!({"kind": "PodList", "metadata": {"continue": "next"}, "items": []}),
    );
    assert_eq!(
        decide(&server, &[suspect(1, Some("a"))]).await,
        [Decision::Keep(InUseReason::NotLookedUp)]
    );
    assert_eq!(server.asked(), [list]);
}

/// An existing VirtualMachine or VMI keeps the address; a 404 for the kind counts as unknown.
#[tokio::test]
async fn existing_vm_or_vmi_retains_the_address() {
    let machine = |n: u8| machine(n, LeakReason::VmiGone, &[]);
    let of = |plural: &str, n: u8| format!("/apis/kubevirt.io/v1/namespaces/ns/{plural}/vm{n}");
    let metadata = |n: u8| json!({"metadata": {"name": format!("vm{n}"), "namespace": "ns"}});
    let mut owned = metadata(3);
    owned["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm3", "uid": "u",
    }]);
    let server = Server::default();
    server
        .has(&of("virtualmachines", 1), metadata(1))
        .has(&of("virtualmachineinstances", 2), metadata(2))
        .has(&of("virtualmachineinstances", 3), owned)
        .refuses(&of("virtualmachines", 5), 404, json!("404 page not found"));
    let decided = decide(&server, &[1, 2, 3, 4, 5].map(machine)).await;
    let expected = [
        Decision::Keep(InUseReason::Vmi),
        Decision::Keep(InUseReason::Vmi),
        // The VirtualMachine is gone, but its launcher may be running.
        Decision::Keep(InUseReason::Vmi),
        Decision::Release(LeakReason::VmiGone),
        // The server does not serve the kind, so nothing is known about the machine.
        Decision::Keep(InUseReason::NotLookedUp),
    ];
    assert_eq!(decided, expected);
}

/// Returns an address of a virtual machine whose owner attributes name these pods.
fn machine(n: u8, reason: LeakReason, owners: &[u8]) -> Suspect {
    Suspect {
        owner: SuspectOwner {
            kind: OwnerKind::Vmi,
            names: Some(("ns".into(), format!("vm{n}"))),
        },
        owners: owners
            .iter()
            .map(|owner| ("ns".into(), format!("pod{owner}")))
            .collect(),
        reason,
        ..suspect(n, Some("a"))
    }
}

#[tokio::test]
async fn launcher_that_reports_the_address_retains_it_after_the_vmi_is_deleted() {
    let ended = |n: u8, ip: &str| {
        let mut pod = pod(n, "a", ip);
        pod["status"]["phase"] = json!("Failed");
        pod
    };
    let server = Server::default();
    server
        .has(&pod_path(1), pod(1, "a", "10.0.0.1"))
        .has(&pod_path(12), pod(12, "a", "10.0.0.2"))
        .has(&pod_path(3), ended(3, "10.0.0.3"))
        .has(&pod_path(4), pod(4, "a", "10.0.0.99"))
        .refuses(&pod_path(5), 500, json!({"kind": "Status", "code": 500}));
    let owners: [&[u8]; 6] = [&[1], &[11, 12], &[3], &[4], &[5], &[6, 16]];
    let suspects: Vec<_> = (1..)
        .zip(owners)
        .map(|(n, owners)| machine(n, LeakReason::VmiGone, owners))
        .collect();
    let expected = [
        Decision::Keep(InUseReason::Pod),
        Decision::Keep(InUseReason::Pod),
        Decision::Release(LeakReason::VmiGone),
        Decision::Release(LeakReason::VmiGone),
        Decision::Keep(InUseReason::NotLookedUp),
        Decision::Release(LeakReason::VmiGone),
    ];
    assert_eq!(decide(&server, &suspects).await, expected);
}

#[tokio::test]
async fn without_kubevirt_an_address_is_released_only_if_all_launchers_are_deleted() {
    let groups = |names: &[&str]| {
        let group = |name: &&str| {
            json!({
                "name": name, "versions": [{"groupVersion": format!("{name}/v1")}],
            })
        };
        json!({"kind": "APIGroupList", "groups": names.iter().map(group).collect::<Vec<_>>()})
    };
    let kinds = |names: &[&str]| {
        let named: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"kind": "APIResourceList", "groupVersion": "kubevirt.io/v1", "resources": named})
    };
    let suspects = [
        machine(1, LeakReason::NoKubeVirt, &[]),
        machine(2, LeakReason::NoKubeVirt, &[2, 12]),
    ];
    let first = [true, false];
    for (of_groups, of_kinds, released) in [
        (
            (200, groups(&["apps"])),
            (404, json!("404 page not found")),
            first,
        ),
        (
            (200, groups(&["apps", "kubevirt.io"])),
            (200, kinds(&["kubevirts"])),
            first,
        ),
        (
            (200, groups(&["apps", "kubevirt.io"])),
            (200, kinds(&["virtualmachineinstances"])),
            [false, false],
        ),
        (
            (200, groups(&["apps", "kubevirt.io"])),
            (404, json!("404 page not found")),
            [false, false],
        ),
        ((200, groups(&[])), (200, kinds(&[])), [false, false]),
        (
            (403, json!({"kind": "Status", "code": 403})),
            (200, kinds(&[])),
            [false, false],
        ),
        (
            (404, json!("404 page not found")),
            (404, json!("404 page not found")),
            [false, false],
        ),
        ((200, json!({})), (200, kinds(&[])), [false, false]),
    ] {
        for (there, expected) in [(true, released), (false, [released[0]; 2])] {
            let server = Server::default();
            server.fails("/apis", of_groups.0, of_groups.1.clone());
            server.fails("/apis/kubevirt.io/v1", of_kinds.0, of_kinds.1.clone());
            if there {
                // The launcher has another address and has not ended.
                server.has(&pod_path(12), pod(12, "a", "10.0.0.99"));
            }
            let decided = decide(&server, &suspects).await;
            let gone = Decision::Release(LeakReason::NoKubeVirt);
            assert_eq!(
                [decided[0] == gone, decided[1] == gone],
                expected,
                "{of_groups:?} {of_kinds:?} {there}"
            );
            let looks = server
                .asked()
                .iter()
                .filter(|path| *path == "/apis")
                .count();
            assert_eq!(looks, 1, "one look for all");
        }
    }
}

#[tokio::test]
async fn existing_node_and_service_retain_their_addresses() {
    let by_node = |n: u8, node: &str| Suspect {
        by_node: true,
        ..suspect(n, Some(node))
    };
    let service = Suspect {
        owner: SuspectOwner {
            kind: OwnerKind::Service,
            names: Some(("ns".into(), "web".into())),
        },
        reason: LeakReason::ServiceGone,
        ..suspect(3, None)
    };
    let server = Server::default();
    server.has(
        "/api/v1/nodes/there",
        json!({"metadata": {"name": "there"}}),
    );
    server.has(
        "/api/v1/namespaces/ns/services/web",
        json!({"metadata": {"name": "web", "namespace": "ns"}}),
    );
    let decided = decide(&server, &[by_node(1, "there"), by_node(2, "gone"), service]).await;
    let expected = [
        Decision::Keep(InUseReason::Node),
        Decision::Release(LeakReason::PodGone),
        Decision::Keep(InUseReason::Service),
    ];
    assert_eq!(decided, expected);
    // Nodes are large, so only their metadata is requested. No Calico node is looked up, because no
    // suspect depends on one.
    let reader_asks = server.asked();
    assert_eq!(
        reader_asks
            .iter()
            .filter(|path| path.contains("/nodes?"))
            .count(),
        2,
        "{reader_asks:?}"
    );
}
