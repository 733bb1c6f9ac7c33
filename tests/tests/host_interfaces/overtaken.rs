//! Two calls for one pod at once: the older one takes nothing of the newer one away.

use std::time::Instant;

use integration_tests::cluster::on_etcd;
use integration_tests::content::Content;
use integration_tests::kernel;
use integration_tests::plugin::{DEADLINE, wait};
use integration_tests::proxy::{Fault, Point, Proxy};
use serde_json::json;

use crate::{Sandbox, alias_of};

/// The first ADD of the pod waits at the write of its endpoint, which the second one's makes fail.
#[test]
fn an_add_that_is_overtaken_leaves_the_interface_of_the_later_add() {
    on_etcd(|cluster| {
        let proxy = Proxy::start("127.0.0.1:2379").unwrap();
        cluster.load(&Content::dual_stack());
        let direct = cluster.conf("node1", json!({}));
        let held = cluster.conf("node1", json!({ "etcd_endpoints": proxy.endpoint() }));
        let first = Sandbox::new(cluster, 1, "team-a", "web-0");
        let second = Sandbox::new(cluster, 2, "team-a", "web-0");

        proxy.arm(Some((Point::First("POST", "/workloadendpoints/"), Fault::Hold)));
        let started = Instant::now();
        let add = first.call(cluster, "ADD", &held).spawn().unwrap();
        proxy.await_held().unwrap();
        assert_eq!(alias_of(&first.host_ifname()), Some(first.alias()));
        let result = second.call(cluster, "ADD", &direct).run().unwrap().success();
        proxy.resume();
        wait(add, started, DEADLINE).unwrap().error();

        assert_eq!(alias_of(&second.host_ifname()), Some(second.alias()));
        let mut check = direct.clone();
        check["prevResult"] = result;
        second.call(cluster, "CHECK", &check).run().unwrap().success();
        for sandbox in [&first, &second] {
            sandbox.call(cluster, "DEL", &direct).run().unwrap().success();
        }
        assert_eq!(kernel::host().unwrap()["links"], json!({}));
        assert_eq!(cluster.accounts().held.len(), 0);
    });
}
