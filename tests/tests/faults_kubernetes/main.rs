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

use std::sync::Arc;

use integration_tests::cluster::{
    Cluster, ControlPlane, Faulty, on_api_server, on_api_server_of_both_groups,
    on_restricted_api_server,
};
use integration_tests::content::Content;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

/// Runs a test with plugins that reach the API server through a proxy. Their configuration names
/// the group, and the server also serves the other one.
fn on_faulty_api(
    group: ApiGroup,
    test: impl FnOnce(&mut Faulty<'_>, &mut ControlPlane<'_>) + Send,
) {
    on_api_server_of_both_groups(group, |cluster, control_plane| {
        faulty(cluster, control_plane, test)
    });
}

/// Does the same as [`on_faulty_api`] on a server that serves this group alone.
fn on_faulty_api_of_one_group(
    group: ApiGroup,
    test: impl FnOnce(&mut Faulty<'_>, &mut ControlPlane<'_>) + Send,
) {
    on_api_server(group, |cluster, control_plane| {
        faulty(cluster, control_plane, test)
    });
}

/// Does the same as [`on_faulty_api`] with `components/node-restriction`.
fn on_restricted_faulty_api(
    group: ApiGroup,
    test: impl FnOnce(&mut Faulty<'_>, &mut ControlPlane<'_>) + Send,
) {
    on_restricted_api_server(group, &["node1"], |cluster, control_plane| {
        faulty(cluster, control_plane, test)
    });
}

fn faulty(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
    test: impl FnOnce(&mut Faulty<'_>, &mut ControlPlane<'_>),
) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let proxy = Arc::clone(&control_plane.proxy);
    let mut faulty = Faulty::new(
        cluster,
        &proxy,
        cluster.conf("node1", json!({ "cniVersion": "1.1.0" })),
    );
    test(&mut faulty, control_plane);
}
