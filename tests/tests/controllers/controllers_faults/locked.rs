//! A locked datastore, `datastoreReady: false`: only some kinds of objects are written until the
//! datastore is unlocked.

use std::thread::sleep;

use integration_tests::controllers::{ControllersCluster, Proxied, REPLICAS, Setup, on};
use integration_tests::kubernetes::Audit;
use serde_json::json;

use crate::controllers_faults::{CALM, await_completion, workload};

/// Log message about the lock.
const LOCKED: &str = "no controller writes until";
/// Resources that may be written on the API server in spite of the lock.
const OF_API_SERVER: [&str; 4] = [
    "leases",
    "events",
    "clusterinformations",
    "kubecontrollersconfigurations/status",
];
/// Keys that may be written in etcd in spite of the lock.
const OF_ETCD: [&str; 2] = [
    "/clusterinformations/default",
    "/kubecontrollersconfigurations/default",
];

/// Shows SEC-67.
#[on(kubernetes_v3)]
fn locked_datastore_in_v3_is_not_written_until_unlocked(cluster: &ControllersCluster<'_>) {
    assert_not_written_until_unlocked(cluster);
}

/// Shows SEC-67.
#[on(etcd)]
fn locked_datastore_in_etcd_is_not_written_until_unlocked(cluster: &ControllersCluster<'_>) {
    assert_not_written_until_unlocked(cluster);
}

fn assert_not_written_until_unlocked(cluster: &ControllersCluster<'_>) {
    let spec =
        json!({ "clusterGUID": "0".repeat(32), "clusterType": "k8s", "datastoreReady": false });
    cluster.put(
        "ClusterInformation",
        "clusterinformations",
        "default",
        &spec,
    );
    workload::create_objects(cluster);
    let audit = cluster.api.audit().unwrap();
    let more = |setup: Setup| {
        setup
            .env("AUTO_HOST_ENDPOINTS", "enabled")
            .env("ORPHAN_ENDPOINT_GRACE_PERIOD", "1s")
    };
    let mut program = Proxied::start(cluster, REPLICAS[0], more).unwrap();
    program
        .controllers
        .await_log("running controllers: ", 1)
        .unwrap();
    workload::change_objects(cluster);
    sleep(CALM);
    assert_eq!(writes(&program, &audit), Vec::<String>::new());
    let configuration = || cluster.calico("kubecontrollersconfigurations", "default");
    assert!(configuration().is_null() && cluster.calico("tiers", "kube-admin").is_null());

    set_ready(cluster, true);
    cluster.until(&program.controllers, "there is a configuration", || {
        !configuration().is_null()
    });
    cluster.configure(&json!({ "leakGracePeriod": "1s" }));
    await_completion(cluster, &program);
    workload::assert_complete(cluster);

    set_ready(cluster, false);
    program.controllers.await_log(LOCKED, 2).unwrap();
    program.proxies().for_each(|proxy| proxy.arm(None));
    let (before, audit) = (cluster.revisions(), cluster.api.audit().unwrap());
    workload::change_more_objects(cluster);
    cluster.configure(&json!({ "leakGracePeriod": "2s" }));
    cluster.until(
        &program.controllers,
        "the status of the configuration",
        || {
            configuration()["status"]["runningConfig"]["controllers"]["node"]["leakGracePeriod"]
                == "2s"
        },
    );
    sleep(CALM);
    assert_eq!(writes(&program, &audit), Vec::<String>::new());
    assert!(cluster.revisions() != before, "the test itself wrote");

    set_ready(cluster, true);
    cluster.until(&program.controllers, "all is done", || {
        workload::are_more_changes_complete(cluster)
    });
    assert!(program.controllers.terminate().unwrap().success());
}

fn set_ready(cluster: &ControllersCluster<'_>, ready: bool) {
    cluster.change(
        "clusterinformations",
        "default",
        &json!({ "spec": { "datastoreReady": ready } }),
    );
}

/// Returns the program's write requests, except the allowed ones.
fn writes(program: &Proxied, audit: &Audit) -> Vec<String> {
    let of_api_server = audit
        .of(&program.user)
        .unwrap()
        .into_iter()
        .filter(|request| {
            !["get", "list", "watch"].contains(&&*request.verb)
                && !OF_API_SERVER.contains(&&*request.resource)
        });
    let asked = program
        .etcd
        .iter()
        .flat_map(|etcd| etcd.requests())
        .filter(|request| {
            let writes = ["KV/Txn?if=", "KV/Put", "KV/DeleteRange"]
                .iter()
                .any(|method| request.contains(method));
            writes && !OF_ETCD.iter().any(|key| request.ends_with(key))
        });
    of_api_server
        .map(|request| request.to_string())
        .chain(asked)
        .collect()
}
