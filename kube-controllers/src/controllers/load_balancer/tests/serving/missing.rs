//! A Service that the API server lacks loses its addresses, unless the API server may be that of
//! another cluster.

use super::*;
use crate::same_cluster::MismatchKind;

impl Serving {
    /// Returns a reconciler with an address whose Service is missing.
    async fn abandoned() -> Self {
        let serving = Serving::served(wants("10.0.0.5")).await;
        serving.server.lock().unwrap().is_missing = true;
        serving
    }
}

#[tokio::test]
async fn addresses_of_a_missing_service_stay_while_kubernetes_has_no_common_node() {
    for kind in [MismatchKind::NoNode, MismatchKind::NoCommonNode] {
        let serving = Serving::abandoned().await;
        let cluster = &serving.reconciler.context.same_cluster;
        cluster.await_nodes();
        assert!(
            matches!(serving.look().await, NextReconcile::After(_)),
            "the nodes are not listed"
        );
        cluster.observe(Some(kind), None, 3);
        for _ in 0..3 {
            assert!(
                matches!(serving.look().await, NextReconcile::After(wait) if wait > CACHE_LAG),
                "{kind:?}"
            );
            assert_eq!(serving.held().await, texts(&["10.0.0.5"]), "{kind:?}");
        }
        cluster.observe(None, None, 3);
        assert_eq!(serving.look().await, NextReconcile::AwaitChange);
        assert_eq!(serving.held().await, texts(&[]), "{kind:?}");
    }
}

/// A cluster without Services is ordinary.
#[tokio::test]
async fn addresses_of_a_missing_service_are_released_if_the_nodes_are_known() {
    let serving = Serving::abandoned().await;
    serving.reconciler.context.same_cluster.await_nodes();
    serving
        .reconciler
        .context
        .same_cluster
        .observe(None, None, 3);
    assert_eq!(serving.look().await, NextReconcile::AwaitChange);
    assert_eq!(serving.held().await, texts(&[]));
}

/// The request of a Service does not depend on other objects of the cluster.
#[tokio::test]
async fn existing_service_is_served_while_kubernetes_has_no_common_node() {
    let serving = Serving::served(wants("10.0.0.5")).await;
    let cluster = &serving.reconciler.context.same_cluster;
    cluster.await_nodes();
    cluster.observe(Some(MismatchKind::NoCommonNode), None, 3);
    serving.annotate(wants("10.0.0.7"));
    assert_eq!(serving.look().await, NextReconcile::AwaitChange);
    assert_eq!(
        (serving.held().await, serving.shown()),
        (texts(&["10.0.0.7"]), texts(&["10.0.0.7"]))
    );
}
