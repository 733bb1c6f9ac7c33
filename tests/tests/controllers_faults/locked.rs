//! A locked datastore, `datastoreReady: false`: only some kinds of objects are written until the
//! datastore is unlocked.

use std::thread::sleep;

use integration_tests::controllers::{Proxied, Setup, World};
use integration_tests::kubernetes::{Audit, with_kubernetes};
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::{CALM, life, settle};

/// Log message about the lock.
const HEARD: &str = "no controller writes until";
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

fn on(group: Option<ApiGroup>) {
    with_kubernetes(|host, servers| {
        let world = World::new(&servers, group);
        let spec =
            json!({ "clusterGUID": "0".repeat(32), "clusterType": "k8s", "datastoreReady": false });
        world.put(
            "ClusterInformation",
            "clusterinformations",
            "default",
            &spec,
        );
        life::beginning(&world);
        let audit = world.api.audit().unwrap();
        let more = |setup: Setup| {
            setup
                .env("AUTO_HOST_ENDPOINTS", "enabled")
                .env("ORPHAN_ENDPOINT_GRACE_PERIOD", "1s")
        };
        let mut program = Proxied::start(host, &world, "program", more).unwrap();
        program
            .controllers
            .await_log("running controllers: ", 1)
            .unwrap();
        life::happenings(&world);
        sleep(CALM);
        assert_eq!(writes(&program, &audit), Vec::<String>::new());
        let configuration = || world.calico("kubecontrollersconfigurations", "default");
        assert!(configuration().is_null() && world.calico("tiers", "kube-admin").is_null());

        set_ready(&world, true);
        world.until(&program.controllers, "there is a configuration", || {
            !configuration().is_null()
        });
        world.configure(&json!({ "leakGracePeriod": "1s" }));
        settle(&world, &program);
        life::assert_complete(&world);

        set_ready(&world, false);
        program.controllers.await_log(HEARD, 2).unwrap();
        program.proxies().for_each(|proxy| proxy.arm(None));
        let (before, audit) = (world.revisions(), world.api.audit().unwrap());
        life::more_happenings(&world);
        world.configure(&json!({ "leakGracePeriod": "2s" }));
        world.until(
            &program.controllers,
            "the status of the configuration",
            || {
                configuration()["status"]["runningConfig"]["controllers"]["node"]["leakGracePeriod"]
                    == "2s"
            },
        );
        sleep(CALM);
        assert_eq!(writes(&program, &audit), Vec::<String>::new());
        assert!(world.revisions() != before, "the test itself wrote");

        set_ready(&world, true);
        world.until(&program.controllers, "all is done", || {
            life::is_complete_after_more(&world)
        });
        assert!(program.controllers.terminate().unwrap().success());
    });
}

#[test]
fn locked_datastore_in_v3_is_not_written_until_unlocked() {
    on(Some(ApiGroup::V3));
}

#[test]
fn locked_datastore_in_etcd_is_not_written_until_unlocked() {
    on(None);
}

fn set_ready(world: &World<'_>, ready: bool) {
    world.change(
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
