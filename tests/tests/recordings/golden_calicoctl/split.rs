//! Interruptions of `split` on an API server, which has no transactions.

use std::collections::BTreeMap;
use std::time::Instant;

use integration_tests::kubernetes::Objects;
use integration_tests::plugin::{Call, DEADLINE, Outcome, Plugins, wait};
use integration_tests::proxy::{Fault, Point, Proxy, Refusal};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::golden_calicoctl::datastore::{Datastore, administrator, on};

const PARTS: [&str; 2] = ["ippools/split-big-0", "ippools/split-big-1"];
/// More requests than a split into two parts makes.
const MANY: usize = 60;

/// A locked cluster with one pool behind a proxy.
struct LockedCluster {
    objects: Objects,
    proxy: Proxy,
    call: Call,
}

impl LockedCluster {
    fn new(datastore: &Datastore<'_>) -> LockedCluster {
        let (api, group) = (datastore.api.unwrap(), ApiGroup::CrdV1);
        let proxy = api.proxy().unwrap();
        let account = administrator(api).unwrap();
        let kubeconfig = api
            .kubeconfig_to(&proxy.endpoint(), "split", &account.identity)
            .unwrap();
        let call = Plugins::locate()
            .unwrap()
            .call("calico-ipam")
            .args(["split", "2", "--name", "big"])
            .env("DATASTORE_TYPE", "kubernetes")
            .env("CALICO_API_GROUP", group.api_version())
            .env("KUBECONFIG", kubeconfig);
        LockedCluster {
            objects: Objects::new(api.admin(), group, api.admin_kubeconfig()),
            proxy,
            call,
        }
    }

    fn reset(&self) {
        self.objects.clear().unwrap();
        let object = |kind: &str, name: &str, spec: Value| {
            let version = self.objects.group().api_version();
            json!({
                "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec,
            })
        };
        let information = object(
            "ClusterInformation",
            "default",
            json!({ "datastoreReady": false }),
        );
        let pool = object(
            "IPPool",
            "big",
            json!({ "cidr": "10.66.0.0/24", "blockSize": 28 }),
        );
        let content = [
            ("clusterinformations/default", information),
            ("ippools/big", pool),
        ];
        let content = content.map(|(key, object)| (key.to_owned(), object));
        self.objects.load(&BTreeMap::from(content)).unwrap();
    }

    /// Returns the keys of the pools, with a remark on those that are disabled.
    fn pools(&self) -> Vec<String> {
        let pools = self
            .objects
            .dump()
            .unwrap()
            .into_iter()
            .filter(|(key, _)| key.starts_with("ippools/"));
        let row = |(key, pool): (String, Value)| {
            if pool["spec"]["disabled"] == true {
                format!("{key} (disabled)")
            } else {
                key
            }
        };
        pools.map(row).collect()
    }

    /// Returns true if the fault happened.
    fn split_with(&self, point: Point, fault: Fault) -> (bool, Outcome) {
        self.proxy.arm(Some((point, fault)));
        let started = Instant::now();
        let child = self.call.spawn().unwrap();
        self.proxy.plugin(child.id());
        let outcome = wait(child, started, DEADLINE).unwrap();
        let fired = self.proxy.fired();
        self.proxy.arm(None);
        (fired, outcome)
    }
}

#[on(kubernetes_v1)]
fn split_killed_at_each_write_is_completed_by_a_second_run(datastore: Datastore<'_>) {
    let cluster = LockedCluster::new(&datastore);
    // The state before a request is that after the request before it. After the last one, the
    // state is complete.
    for number in 0..MANY {
        cluster.reset();
        let (fired, outcome) = cluster.split_with(Point::Request(number), Fault::Kill);
        if !fired {
            assert!(
                number > 4 && outcome.exit == Some(0),
                "{number}: {outcome:?}"
            );
            break;
        }
        if cluster.pools() != PARTS {
            let second = cluster.call.run();
            assert_eq!(second.exit, Some(0), "{number}: {second:?}");
        }
        assert_eq!(cluster.pools(), PARTS, "{number}");
    }
}

#[on(kubernetes_v1)]
fn split_with_a_refused_part_leaves_the_pool_in_service(datastore: Datastore<'_>) {
    let cluster = LockedCluster::new(&datastore);
    cluster.reset();
    let refused = Fault::Refuse(Refusal::of(403));
    let (fired, outcome) = cluster.split_with(Point::First("POST", "/ippools"), refused);
    assert!(fired && outcome.exit == Some(1), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("the pools are as before this command"),
        "{outcome:?}"
    );
    assert_eq!(cluster.pools(), ["ippools/big"]);
}
