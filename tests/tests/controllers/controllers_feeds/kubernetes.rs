//! Watches of Kubernetes' own kinds, and of Calico's custom resources.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use integration_tests::controllers::{Connection, RunningControllers};
use integration_tests::kubernetes::{
    ApiServer, Client, Kubernetes, ServiceAccount, on_prepared_kubernetes,
};
use integration_tests::proxy::{Fault, Point, Protocol, Proxy, Refusal, ServerCertificate};
use integration_tests::{Place, on};
use kube_controllers::watched::Pod;
use libcalico::api::IpPool;
use libcalico::ipam::Block;
use libcalico::kubernetes::ApiGroup;
use libcalico::store::Entry;
use serde_json::{Value, json};

use crate::controllers_feeds::reported::{self, Reported};

/// Runs a test with an API server without Calico's kinds, a proxy in front of the server, and a
/// kubeconfig through the proxy.
fn behind_proxy(test: impl FnOnce(&mut Kubernetes, Proxy, PathBuf) + Send) {
    let prepare = |api: &ApiServer| {
        api.namespace("default")?;
        account(api).map(drop)
    };
    on_prepared_kubernetes("an account of watches", prepare, |_, servers| {
        let api = &servers.api;
        let (proxy, account) = (api.proxy().unwrap(), account(api).unwrap());
        let kubeconfig = api.kubeconfig_to(&proxy.endpoint(), "watches", &account.identity);
        test(servers, proxy, kubeconfig.unwrap());
    });
}

/// Creates the account of the watches, which may do everything. Writes nothing if it exists.
fn account(api: &ApiServer) -> Result<ServiceAccount> {
    let account = api.service_account("kube-system", "watches")?;
    api.bind(&account, "cluster-admin")?;
    Ok(account)
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const GROUP: Option<ApiGroup> = Some(ApiGroup::CrdV1);

/// Pods on an API server, and a proxy for their watch.
struct WatchedPods<'k> {
    proxy: Proxy,
    servers: &'k mut Kubernetes,
    connection: Connection,
    /// The state that subscribers of the watch must reach.
    known: BTreeMap<String, String>,
}

/// Runs a test on an API server without Calico's kinds.
fn on(_: Place, test: fn(&mut WatchedPods<'_>)) {
    behind_proxy(|servers, proxy, kubeconfig| {
        test(&mut WatchedPods {
            proxy,
            servers,
            connection: Connection::new(GROUP, kubeconfig),
            known: BTreeMap::new(),
        });
    });
}

impl WatchedPods<'_> {
    fn admin(&self) -> &Client {
        self.servers.api.admin()
    }

    fn create(&mut self, name: &str) {
        let pod = json!({
            "metadata": {
                "name": name, "labels": {"app": name}, "annotations": {"big": "x".repeat(4000)},
            },
            "spec": {
                "nodeName": "n1", "containers": [{"name": "c", "image": "i"}],
                "automountServiceAccountToken": false,
            },
        });
        self.admin().create(PODS, &pod).unwrap().success();
        self.known
            .insert(format!("default/{name}"), "Pending n1 -".into());
    }

    fn run(&mut self, name: &str, ip: &str) {
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        let answer = self
            .admin()
            .patch(&format!("{PODS}/{name}/status"), &status);
        answer.unwrap().success();
        self.known
            .insert(format!("default/{name}"), format!("Running n1 {ip}"));
    }

    fn delete(&mut self, name: &str) {
        let answer = self.admin().delete(&format!("{PODS}/{name}"));
        answer.unwrap().success();
        self.known.remove(&format!("default/{name}"));
    }

    /// Starts the watch through the proxy.
    fn watch(&self) -> (RunningControllers, Reported) {
        let reported = Reported::default();
        let subscriber = reported.clone();
        let running = reported::start(GROUP, &self.connection, move |watches| {
            subscriber.subscribe(&mut watches.pods, show);
        });
        (running, reported)
    }
}

fn show(pod: &Pod) -> String {
    format!(
        "{} {} {}",
        pod.phase,
        pod.node,
        pod.pod_ip.as_deref().unwrap_or("-")
    )
}

#[on(kubernetes_v1)]
fn pod_watch_converges_through_cuts_failing_requests_and_a_restart(pods: &mut WatchedPods<'_>) {
    for n in 0..130 {
        pods.create(&format!("p{n:03}"));
    }
    let failing = Some((Point::EachNth(20), Fault::Refuse(Refusal::of(500))));
    pods.proxy.arm(failing);
    let (running, reported) = pods.watch();
    reported.becomes(&pods.known);
    assert!(
        pods.proxy
            .requests()
            .iter()
            .any(|request| request.contains("continue=")),
        "{:?}",
        pods.proxy.requests()
    );

    // The watch is cut only if a new watch was opened since the last cut.
    let watches = || running.watch("Pod").stats().watches;
    let (mut cuts, mut last) = (0, Instant::now());
    for n in 0..60 {
        let name = format!("q{n:03}");
        pods.create(&name);
        pods.run(&name, &format!("10.0.0.{n}"));
        if n % 2 == 0 {
            pods.delete(&name);
        }
        if last.elapsed() >= Duration::from_secs(1) && watches() > cuts {
            pods.proxy.cut();
            (cuts, last) = (cuts + 1, Instant::now());
        }
        thread::sleep(Duration::from_millis(50));
    }
    reported.becomes(&pods.known);
    assert!(
        reported
            .deleted()
            .iter()
            .all(|name| name.starts_with("default/q")),
        "only deleted pods are reported as deleted"
    );
    let report = running.watch("Pod").stats();
    assert!(
        cuts > 0 && report.watches >= cuts && report.lists == 1,
        "{cuts} cuts, {report:?}"
    );

    // The next watch or a new list reports objects that were deleted while no watch was open.
    pods.proxy.go_away();
    pods.delete("p000");
    pods.servers.api.stop();
    pods.servers.api.restart().unwrap();
    pods.delete("p001");
    pods.create("r");
    pods.proxy.arm(failing);
    reported.becomes(&pods.known);
    assert_eq!(reported.deleted(), ["default/p000", "default/p001"]);
}

/// The proxy rejects the request for the second page as a server does that has compacted the
/// revision of the list.
#[on(kubernetes_v1)]
fn list_with_an_expired_continue_token_starts_again(pods: &mut WatchedPods<'_>) {
    for n in 0..60 {
        pods.create(&format!("p{n:03}"));
    }
    pods.proxy.arm(Some((
        Point::First("GET", "&continue="),
        Fault::Refuse(Refusal::of(410)),
    )));
    let (running, reported) = pods.watch();
    reported.becomes(&pods.known);
    assert!(pods.proxy.fired(), "{:?}", pods.proxy.requests());
    assert!(
        reported.deleted().is_empty(),
        "the objects of the first page exist"
    );
    assert_eq!(running.watch("Pod").stats().lists, 2);
}

#[on(kubernetes_v1)]
fn watches_over_http1_do_not_block_other_watches_and_requests(pods: &mut WatchedPods<'_>) {
    let certificate = pods.servers.api.server_certificate().unwrap();
    pods.proxy
        .present(&ServerCertificate {
            protocol: Protocol::Http1,
            ..certificate
        })
        .unwrap();
    pods.create("a");
    let [reported, nodes, namespaces] = [(); 3].map(|()| Reported::default());
    let subscribers = [&reported, &nodes, &namespaces].map(Reported::clone);
    let _running = reported::start(GROUP, &pods.connection, |watches| {
        let [reported, nodes, namespaces] = subscribers;
        reported.subscribe(&mut watches.pods, show);
        nodes.subscribe(&mut watches.nodes, |node| {
            node.labels.get("rack").cloned().unwrap_or_default()
        });
        namespaces.subscribe(&mut watches.namespaces, |_| String::new());
    });
    reported.becomes(&pods.known);
    nodes.becomes(&BTreeMap::new());
    for n in 0..3 {
        let node = json!({"metadata": {"name": format!("n{n}"), "labels": {"rack": "r1"}}});
        pods.admin()
            .create("/api/v1/nodes", &node)
            .unwrap()
            .success();
        pods.create(&format!("b{n}"));
    }
    reported.becomes(&pods.known);
    nodes.becomes(&(0..3).map(|n| (format!("n{n}"), "r1".to_owned())).collect());
    pods.proxy.cut();
    pods.delete("a");
    reported.becomes(&pods.known);
}

fn block(cidr: &str, allocated: u64) -> Value {
    json!({
        "cidr": cidr, "affinity": "host:n1", "allocations": [0, null], "unallocated": [1],
        "strictAffinity": false,
        "attributes": [{"handle_id": format!("h{allocated}")}], "sequenceNumber": 1,
        "sequenceNumberForAllocation": {}, "deleted": false,
    })
}

fn show_block(block: &Entry<Block>) -> String {
    block
        .value
        .attributes
        .iter()
        .filter_map(|attribute| attribute.handle_id.clone())
        .collect()
}

#[test]
fn watches_of_calicos_kinds_work_in_both_api_groups() {
    behind_proxy(|kubernetes, _proxy, kubeconfig| {
        let client = kubernetes.api.admin().clone();
        for group in [ApiGroup::CrdV1, ApiGroup::V3] {
            let [pools, blocks] = [(); 2].map(|()| Reported::default());
            let subscribers = [&pools, &blocks].map(Reported::clone);
            let connection = Connection::new(Some(group), kubeconfig.clone());
            let running = reported::start(Some(group), &connection, |watches| {
                let [pools, blocks] = subscribers;
                pools.subscribe(&mut watches.ip_pools, |pool: &Entry<IpPool>| {
                    pool.value.spec.cidr.clone()
                });
                blocks.subscribe(&mut watches.blocks, show_block);
            });
            pools.becomes(&BTreeMap::new());
            assert!(running.watch("IPPool").stats().is_missing);
            kubernetes.api.define(group.api_version()).unwrap();
            let collection = |plural: &str| format!("/apis/{}/{plural}", group.api_version());
            let create = |plural: &str, kind: &str, name: &str, spec: Value| {
                let object = json!({
                    "apiVersion": group.api_version(), "kind": kind, "metadata": {"name": name},
                    "spec": spec,
                });
                client
                    .create(&collection(plural), &object)
                    .unwrap()
                    .success();
            };
            create("ippools", "IPPool", "pool", json!({"cidr": "10.0.0.0/16"}));
            create(
                "ipamblocks",
                "IPAMBlock",
                "10-0-0-0-31",
                block("10.0.0.0/31", 1),
            );
            create(
                "ipamblocks",
                "IPAMBlock",
                "10-0-0-2-31",
                block("10.0.0.2/31", 2),
            );
            // The third block's CIDR is invalid if the definition accepts invalid CIDRs.
            let checked = group == ApiGroup::V3;
            let third = if checked { "10.0.0.6/31" } else { "nonsense" };
            create("ipamblocks", "IPAMBlock", "10-0-0-4-31", block(third, 3));
            pools.becomes(&BTreeMap::from([("pool".into(), "10.0.0.0/16".into())]));
            let known = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
                pairs
                    .iter()
                    .map(|(cidr, handle)| ((*cidr).to_owned(), (*handle).to_owned()))
                    .collect()
            };
            // The field `spec.cidr` identifies a block, whatever the name of the object (DS-69).
            let both = [
                ("10.0.0.0/31", "h1"),
                ("10.0.0.2/31", "h2"),
                ("10.0.0.6/31", "h3"),
            ];
            blocks.becomes(&known(&both[..if checked { 3 } else { 2 }]));
            let path = |name: &str| format!("{}/{name}", collection("ipamblocks"));
            client.delete(&path("10-0-0-0-31")).unwrap().success();
            blocks.becomes(&known(&both[1..if checked { 3 } else { 2 }]));
            if checked {
                continue;
            }
            // A block that becomes unreadable is reported as deleted.
            let cidr = |cidr: &str| json!({"spec": {"cidr": cidr}});
            client
                .patch(&path("10-0-0-4-31"), &cidr("10.0.0.4/31"))
                .unwrap()
                .success();
            blocks.becomes(&known(&[("10.0.0.2/31", "h2"), ("10.0.0.4/31", "h3")]));
            client
                .patch(&path("10-0-0-2-31"), &cidr("no"))
                .unwrap()
                .success();
            blocks.becomes(&known(&[("10.0.0.4/31", "h3")]));
        }
    });
}
