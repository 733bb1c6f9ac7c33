//! The plugin and a real API server, with injected faults.

mod api_group;
mod busy;
mod cache;
mod control_plane;
mod each_request;
mod listed;
mod load;
mod objects;
mod standalone;

use integration_tests::cluster::{self, Cluster, ControlPlane, Faulty};
use integration_tests::content::Content;
use integration_tests::proxy::Proxy;
use integration_tests::{Place, on};
use serde_json::json;

/// Runs a test with plugins that reach the API server through a proxy.
fn on(place: Place, test: impl FnOnce(&mut Faulty<'_>) + Send) {
    let test = |cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
        test(&mut faulty(cluster, &control_plane.proxy));
    };
    cluster::on(place, test);
}

/// Loads a node and a pool. Returns the cluster with plugins that reach the API server through the
/// proxy.
fn faulty<'a>(cluster: &'a Cluster<'_>, proxy: &'a Proxy) -> Faulty<'a> {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let conf = cluster.conf("node1", json!({ "cniVersion": "1.1.0" }));
    Faulty::new(cluster, proxy, conf)
}
