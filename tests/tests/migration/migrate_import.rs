//! `calico-ipam migrate import` on a real API server: interruptions, refusals, and a cluster that
//! moves from etcd with its pods.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use integration_tests::cluster::{Cluster, ControlPlane, handle, on_one_group, pod_path};
use integration_tests::content::Content;
use integration_tests::controllers::await_that;
use integration_tests::etcd;
use integration_tests::golden::calicoctl::Course;
use integration_tests::kubernetes::{ApiServer, Objects, ServiceAccount, on_prepared_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::plugin::{Call, DEADLINE, Outcome, Plugins, wait};
use integration_tests::proxy::{Fault, Point, Proxy, Refusal};
use integration_tests::{Place, on};
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::calicoctl_file::{IpamPart, parse};
use serde_json::{Value, json};

/// Fewer writes than an import makes.
const SOME: usize = 30;
/// The clusterGUID in the file.
const GUID: &str = "11111111111111111111111111111111";
/// Timeout until a deleted definition is gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// The node of the moved cluster in etcd.
const NODE_IN_ETCD: &str = "etcd-name-1";
const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/";

/// An import of the file of calicoctl's recording into an API server behind a proxy.
struct Import<'a> {
    api: &'a ApiServer,
    objects: Objects,
    proxy: Proxy,
    file: PathBuf,
    call: Call,
    from_stdin: Call,
    unlock: Call,
}

fn on(place: Place, test: fn(&Import<'_>)) {
    let group = place.api_group();
    let prepare = move |api: &ApiServer| {
        api.define(group.api_version())?;
        api.define_others(group.api_version())?;
        api.namespace("ns1")?;
        account(api).map(drop)
    };
    on_prepared_kubernetes(
        &format!("a file, {group:?}"),
        prepare,
        |host, kubernetes| {
            let api = &kubernetes.api;
            let file = recorded_file(host);
            let proxy = api.proxy().unwrap();
            let account = account(api).unwrap();
            let kubeconfig = api
                .kubeconfig_to(&proxy.endpoint(), "import", &account.identity)
                .unwrap();
            let plugins = Plugins::locate().unwrap();
            let call_of = |arguments: &[&str]| {
                let call = plugins.call("calico-ipam").args(arguments.iter().copied());
                call.env("DATASTORE_TYPE", "kubernetes")
                    .env("CALICO_API_GROUP", group.api_version())
                    .env("KUBECONFIG", &kubeconfig)
            };
            let call = call_of(&["migrate", "import", "-f", file.to_str().unwrap()]);
            let from_stdin = call_of(&["migrate", "import", "-f", "-"]);
            let unlock = call_of(&["migrate", "unlock"]);
            let objects = Objects::new(api.admin(), group, api.admin_kubeconfig());
            test(&Import {
                api,
                objects,
                proxy,
                file,
                call,
                from_stdin,
                unlock,
            });
        },
    );
}

/// Creates the account of the import. Writes nothing if it exists.
fn account(api: &ApiServer) -> Result<ServiceAccount> {
    let account = api.service_account("kube-system", "import")?;
    api.bind(&account, "cluster-admin")?;
    Ok(account)
}

fn recorded_file(host: &Host) -> PathBuf {
    let course = Course::read("migrate-etcd").unwrap();
    let file = host.dir("import").join("export.yaml");
    fs::write(&file, &course.step("03").unwrap().stdout).unwrap();
    file
}

impl Import<'_> {
    /// Deletes all objects of Calico, and creates the nodes again.
    fn reset(&self) {
        self.objects.clear().unwrap();
        for node in ["node1", "node2"] {
            self.api
                .admin()
                .delete(&format!("/api/v1/nodes/{node}"))
                .unwrap();
            self.api.admin().node(node).unwrap();
        }
    }

    /// Returns the specs of all objects and the annotations of all nodes.
    fn state(&self) -> BTreeMap<String, Value> {
        let objects = self
            .objects
            .dump()
            .unwrap()
            .into_iter()
            .map(|(key, object)| (key, object["spec"].clone()));
        let nodes = self.api.admin().get("/api/v1/nodes").unwrap().success();
        let nodes = nodes["items"].as_array().unwrap().iter().map(|node| {
            let metadata = &node["metadata"];
            (
                format!("nodes/{}", metadata["name"].as_str().unwrap()),
                metadata["annotations"].clone(),
            )
        });
        objects.chain(nodes).collect()
    }

    fn run(&self) -> Outcome {
        let outcome = self.call.run();
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
        outcome
    }

    /// Returns true if the fault happened.
    fn run_with(&self, point: Point, fault: Fault) -> (bool, Outcome) {
        self.proxy.arm(Some((point, fault)));
        let started = Instant::now();
        let child = self.call.spawn().unwrap();
        self.proxy.plugin(child.id());
        let outcome = wait(child, started, DEADLINE).unwrap();
        let fired = self.proxy.fired();
        self.proxy.arm(None);
        (fired, outcome)
    }

    /// Expects a refusal with this text, before the first write.
    fn assert_refused(&self, text: &str) {
        self.assert_refused_with(None, text);
    }

    /// Does the same as [`Import::assert_refused`], with a fault.
    fn assert_refused_with(&self, fault: Option<(Point, Fault)>, text: &str) {
        let before = self.state();
        self.proxy.arm(fault);
        let outcome = self.call.run();
        assert_eq!(
            self.proxy.fired(),
            fault.is_some(),
            "{fault:?}: {outcome:?}"
        );
        assert!(
            outcome.exit == Some(1) && outcome.stderr.contains(text),
            "{outcome:?}"
        );
        let writes: Vec<String> = self
            .proxy
            .requests()
            .into_iter()
            .filter(|request| !request.starts_with("GET "))
            .collect();
        assert_eq!(writes, Vec::<String>::new());
        assert_eq!(self.state(), before);
    }
}

#[on(kubernetes_v1)]
fn import_killed_at_each_request_is_completed_by_a_second_run(import: &Import<'_>) {
    import.reset();
    import.proxy.arm(None);
    import.run();
    let complete = import.state();
    let requests = import.proxy.requests();
    let is_write = |number: &usize| !requests[*number].starts_with("GET ");
    let writes: Vec<usize> = (0..requests.len()).filter(is_write).collect();
    assert!(requests.len() > writes[0] + SOME, "{requests:?}");
    let last = Point::Answer(writes[writes.len() - 1]);
    let information = format!(
        "/apis/{}/clusterinformations/default",
        ApiGroup::CrdV1.api_version()
    );
    // The state before a write is that after the write before it.
    for point in writes.into_iter().map(Point::Request).chain([last]) {
        import.reset();
        let (fired, outcome) = import.run_with(point, Fault::Kill);
        assert!(fired, "{point:?}: {outcome:?}");
        let information = import.api.admin().get(&information).unwrap();
        assert!(
            information.code == 404 || information.body["spec"]["datastoreReady"] == false,
            "{information:?}"
        );
        import.run();
        assert_eq!(import.state(), complete, "{point:?}");
    }
}

#[on(kubernetes_v3)]
fn import_with_a_refused_object_is_continued_after_the_cause_is_gone(import: &Import<'_>) {
    import.reset();
    let refused = Fault::Refuse(Refusal::of(403));
    let (fired, outcome) = import.run_with(Point::First("POST", "/ipamblocks"), refused);
    assert!(fired && outcome.exit == Some(1), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("run the command again, which continues"),
        "{outcome:?}"
    );
    let unlocked = import.unlock.run();
    assert!(
        unlocked.exit == Some(1)
            && unlocked
                .stderr
                .contains("import into this datastore is incomplete")
    );
    let text = fs::read_to_string(&import.file).unwrap();
    fs::write(&import.file, text.replace(GUID, &"2".repeat(GUID.len()))).unwrap();
    import.assert_refused(&format!(
        "an import of the cluster with clusterGUID {GUID} is incomplete"
    ));
    fs::write(&import.file, text).unwrap();
    import.run();
    let (state, imported) = (import.state(), import.run());
    assert!(
        imported
            .stdout
            .contains("13 IPAM resource(s), of which 13 existed already"),
        "{imported:?}"
    );
    assert_eq!(import.state(), state);

    let unlocked = import.unlock.run();
    assert_eq!(
        (unlocked.exit, unlocked.stdout.as_str()),
        (Some(0), "Datastore unlocked.\n"),
        "{unlocked:?}"
    );
    import.assert_refused(
        "ClusterInformation(default): has the clusterGUID of the file and is unlocked",
    );
    assert_imports_without_addresses(import);
}

/// Imports a file without objects of IPAM from stdin. Upstream ends with exit status 1 then,
/// although it has imported the rest (MIG-99).
fn assert_imports_without_addresses(import: &Import<'_>) {
    import.reset();
    let mut file = parse(&fs::read_to_string(&import.file).unwrap()).unwrap();
    file.ipam = IpamPart::default();
    let outcome = import.from_stdin.clone().stdin(file.to_string()).run();
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    let without_addresses = "Importing IPAM resources\nSuccessfully applied 0 IPAM resource(s)\n";
    assert!(outcome.stdout.contains(without_addresses), "{outcome:?}");
    let state = import.state();
    assert!(
        state.contains_key("ippools/big")
            && !state.keys().any(|key| key.starts_with("ipamblocks/")),
        "{state:?}"
    );
    assert_eq!(state["clusterinformations/default"]["clusterGUID"], GUID);
}

#[on(kubernetes_v3)]
fn two_imports_at_once_complete_each_other(import: &Import<'_>) {
    import.reset();
    import.proxy.arm(None);
    let started = Instant::now();
    for child in [import.call.spawn().unwrap(), import.call.spawn().unwrap()] {
        let outcome = wait(child, started, DEADLINE).unwrap();
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    }
    let (state, imported) = (import.state(), import.run());
    assert!(
        imported
            .stdout
            .contains("13 IPAM resource(s), of which 13 existed already"),
        "{imported:?}"
    );
    assert_eq!(import.state(), state);
}

/// Lists omit such an affinity, so that the import tries to create it.
#[on(kubernetes_v3)]
fn import_of_an_affinity_that_is_marked_as_deleted_replaces_the_affinity(import: &Import<'_>) {
    import.reset();
    let group = ApiGroup::V3.api_version();
    let spec = json!({
        "cidr": "10.66.0.208/28", "node": "node1", "type": "host", "state": "pendingDeletion",
        "deleted": true,
    });
    let metadata = json!({ "name": "node1-10-66-0-208-28" });
    let affinity = json!({
        "apiVersion": group, "kind": "BlockAffinity", "metadata": metadata, "spec": spec,
    });
    import
        .api
        .admin()
        .create(&format!("/apis/{group}/blockaffinities"), &affinity)
        .unwrap()
        .success();
    import.run();
    let imported = import
        .state()
        .remove("blockaffinities/node1-10-66-0-208-28")
        .unwrap();
    assert_eq!(
        (&imported["state"], &imported["deleted"]),
        (&json!("confirmed"), &json!(false))
    );
}

#[on(kubernetes_v1)]
fn import_refuses_before_the_first_write(import: &Import<'_>) {
    let admin = import.api.admin();
    let group = ApiGroup::CrdV1.api_version();
    import.reset();
    // Upstream takes a refused list for an empty one (MIG-101).
    for list in [
        "/tiers",
        "/ippools",
        "/ipamblocks",
        "/ipamhandles",
        "/namespaces",
        "/nodes",
    ] {
        let refused = (Point::First("GET", list), Fault::Refuse(Refusal::of(403)));
        import.assert_refused_with(Some(refused), "the proxy says so");
    }

    let pool = json!({
        "apiVersion": group, "kind": "IPPool", "metadata": { "name": "big" },
        "spec": { "cidr": "10.9.0.0/24" },
    });
    admin
        .create(&format!("/apis/{group}/ippools"), &pool)
        .unwrap()
        .success();
    import.assert_refused("IPPool(big): exists and differs in spec.");

    import.reset();
    let handle = json!({
        "apiVersion": group, "kind": "IPAMHandle", "metadata": { "name": "net1.other" },
        "spec": { "handleID": "net1.other", "block": {}, "deleted": false },
    });
    admin
        .create(&format!("/apis/{group}/ipamhandles"), &handle)
        .unwrap()
        .success();
    import.assert_refused("handle/net1.other: exists, but not in the file");

    import.reset();
    let text = fs::read_to_string(&import.file).unwrap();
    fs::write(
        &import.file,
        text.replace("namespace: ns1", "namespace: ns2"),
    )
    .unwrap();
    import.assert_refused("NetworkSet(ns2/set2): namespace ns2 does not exist");
    fs::write(&import.file, &text[..text.len() / 2]).unwrap();
    import.assert_refused("is improperly formatted");
    fs::write(&import.file, text).unwrap();

    let definition =
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bgppeers.crd.projectcalico.org";
    admin.delete(definition).unwrap().success();
    await_that(PATIENCE, || {
        let kinds = admin.get(&format!("/apis/{group}"))?.checked()?.to_string();
        Ok(!kinds.contains("\"bgppeers\""))
    })
    .unwrap();
    import.assert_refused("BGPPeer: the API server does not serve this kind");
}

fn run_on_etcd(cluster: &Cluster<'_>, arguments: &[&str]) -> Outcome {
    let call = cluster
        .plugins
        .call("calico-ipam")
        .args(arguments.iter().copied());
    let outcome = call
        .env("DATASTORE_TYPE", "etcdv3")
        .env("ETCD_ENDPOINTS", etcd::ENDPOINT)
        .run();
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    outcome
}

/// Returns a configuration for the node in etcd.
fn conf_of_etcd(cluster: &Cluster<'_>) -> Value {
    let mut conf = cluster.conf(NODE_IN_ETCD, json!({}));
    let keys = conf.as_object_mut().unwrap();
    keys.remove("calico_api_group");
    keys.insert("datastore_type".into(), "etcdv3".into());
    keys.insert("etcd_endpoints".into(), etcd::ENDPOINT.into());
    keys["kubernetes"]["node_name"] = "node1".into();
    conf
}

/// Returns a cluster in etcd, in which `node1` of Kubernetes has another name.
fn content_of_etcd() -> BTreeMap<String, Value> {
    let content = Content::dual_stack();
    let mut pairs = content.pairs().clone();
    let mut node = pairs.remove(&format!("{NODE}node1")).unwrap();
    node["metadata"]["name"] = NODE_IN_ETCD.into();
    pairs.insert(format!("{NODE}{NODE_IN_ETCD}"), node);
    pairs
}

fn moves_a_cluster(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let servers = &control_plane.servers;
    let admin = servers.api.admin();
    admin.node("node1").unwrap();
    servers.etcd.load(&content_of_etcd()).unwrap();
    let (in_etcd, conf) = (conf_of_etcd(cluster), cluster.conf("node1", json!({})));
    let pods = [cluster.pod(1), cluster.pod(2)];
    let third = cluster.pod(3);
    let mut addresses = BTreeMap::<IpAddr, String>::new();
    for pod in &pods {
        let result = cluster.add(pod, &in_etcd);
        let ips: Vec<String> = result["ips"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ip| {
                ip["address"]
                    .as_str()
                    .unwrap()
                    .split('/')
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        let listed: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        let status = json!({ "status": { "phase": "Running", "podIP": ips[0], "podIPs": listed } });
        let path = format!("{}/status", pod_path(pod.object.as_ref().unwrap()));
        admin.patch(&path, &status).unwrap().success();
        addresses.extend(ips.into_iter().map(|ip| (ip.parse().unwrap(), handle(pod))));
    }

    run_on_etcd(cluster, &["migrate", "lock"]);
    assert!(cluster.verb("ADD", &third, &in_etcd).run().exit != Some(0));
    let file = cluster.host.dir("export").join("calico.yaml");
    let file = file.to_str().unwrap();
    run_on_etcd(cluster, &["migrate", "export", file]);
    // The documented command pipes this output into `cmp`.
    let again = run_on_etcd(cluster, &["migrate", "export", "-"]).stdout;
    assert_eq!(again, fs::read_to_string(file).unwrap());
    let run = |arguments: &[&str]| {
        let outcome = cluster
            .store
            .calico_ipam(&cluster.plugins, arguments)
            .unwrap();
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
        outcome
    };
    run(&["migrate", "import", "-f", file, "--dry-run"]);
    assert_eq!(
        cluster
            .store
            .dump()
            .unwrap()
            .keys()
            .filter(|key| !key.starts_with("pods/"))
            .count(),
        0
    );
    run(&["migrate", "import", "-f", file]);
    assert!(cluster.verb("ADD", &third, &conf).run().exit != Some(0));
    assert_eq!(run(&["migrate", "unlock"]).stdout, "Datastore unlocked.\n");

    assert_eq!(cluster.accounts().held, addresses);
    run(&["check", "--settle", "0"]);
    let given = cluster.add(&third, &conf)["ips"].as_array().unwrap().len();
    assert_eq!(cluster.accounts().held.len(), addresses.len() + given);
    for pod in pods.iter().chain([&third]) {
        cluster.delete(pod, &conf);
    }
    assert!(cluster.accounts().held.is_empty());
}

#[test]
fn moved_cluster_runs_on_an_api_server_in_crd_v1() {
    on_one_group(ApiGroup::CrdV1, moves_a_cluster);
}

#[test]
fn moved_cluster_runs_on_an_api_server_in_v3() {
    on_one_group(ApiGroup::V3, moves_a_cluster);
}
