//! A Service that the API server lacks loses its addresses, unless the API server may be that of
//! another cluster.

use super::*;
use crate::same_cluster::MismatchKind;

impl Scene {
    /// Returns a scene with an address whose Service is missing.
    async fn abandoned() -> Self {
        let scene = Scene::served(wants("10.0.0.5")).await;
        scene.server.lock().unwrap().is_missing = true;
        scene
    }
}

#[tokio::test]
async fn addresses_of_a_missing_service_stay_while_kubernetes_has_no_common_node() {
    for kind in [MismatchKind::NoNode, MismatchKind::NoCommonNode] {
        let scene = Scene::abandoned().await;
        let cluster = &scene.reconciler.context.same_cluster;
        cluster.await_nodes();
        assert!(
            matches!(scene.look().await, NextReconcile::After(_)),
            "the nodes are not listed"
        );
        cluster.observe(Some(kind), None, 3);
        for _ in 0..3 {
            assert!(
                matches!(scene.look().await, NextReconcile::After(wait) if wait > CACHE_LAG),
                "{kind:?}"
            );
            assert_eq!(scene.held().await, texts(&["10.0.0.5"]), "{kind:?}");
        }
        cluster.observe(None, None, 3);
        assert_eq!(scene.look().await, NextReconcile::AwaitChange);
        assert_eq!(scene.held().await, texts(&[]), "{kind:?}");
    }
}

/// A cluster without Services is ordinary.
#[tokio::test]
async fn addresses_of_a_missing_service_are_released_if_the_nodes_are_known() {
    let scene = Scene::abandoned().await;
    scene.reconciler.context.same_cluster.await_nodes();
    scene.reconciler.context.same_cluster.observe(None, None, 3);
    assert_eq!(scene.look().await, NextReconcile::AwaitChange);
    assert_eq!(scene.held().await, texts(&[]));
}

/// The request of a Service does not depend on other objects of the cluster.
#[tokio::test]
async fn existing_service_is_served_while_kubernetes_has_no_common_node() {
    let scene = Scene::served(wants("10.0.0.5")).await;
    let cluster = &scene.reconciler.context.same_cluster;
    cluster.await_nodes();
    cluster.observe(Some(MismatchKind::NoCommonNode), None, 3);
    scene.annotate(wants("10.0.0.7"));
    assert_eq!(scene.look().await, NextReconcile::AwaitChange);
    assert_eq!(
        (scene.held().await, scene.shown()),
        (texts(&["10.0.0.7"]), texts(&["10.0.0.7"]))
    );
}
