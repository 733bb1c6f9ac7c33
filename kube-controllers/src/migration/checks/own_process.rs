//! [`unready`]: the configuration of this process, which has to end the lock that it sets.

use libcalico::kubernetes::{ApiGroup, Location, PODS};

use super::super::requests::{Problem, Requests};
use super::Checked;
use crate::leader::{name_of_pod, namespace_of_pod};

const IN_V1: &str = "CALICO_API_GROUP of kube-controllers is crd.projectcalico.org/v1; leave it empty \
                     (deploy/components/migrate-to-v3)";
const NOT_ON_THE_HOST: &str = "kube-controllers is not on the host network: while v1 is locked, a new pod of it would \
                               get no address. Add deploy/components/host-network-controllers";

/// Returns the reason to wait if this process would use v1 again after the migration (MB-2), or if a new pod of it
/// could not start while v1 is locked (MB-4).
pub(super) async fn unready(context: &Checked<'_>) -> Result<Option<String>, Problem> {
    if context.configured == Some(ApiGroup::CrdV1) {
        return Ok(Some(IN_V1.to_owned()));
    }
    match namespace_of_pod() {
        Some(namespace) => not_on_the_host(context.requests, &namespace, &name_of_pod()).await,
        None => Ok(None),
    }
}

/// Returns the reason to wait if the pod exists and has a network of its own. On the host network, the name of the host
/// may be that of no pod.
async fn not_on_the_host(requests: &Requests, namespace: &str, name: &str) -> Result<Option<String>, Problem> {
    let pod = requests.get(&Location::namespaced(PODS, namespace, name)).await?;
    let has_own_network = pod.is_some_and(|pod| pod["spec"]["hostNetwork"] != true);
    Ok(has_own_network.then(|| NOT_ON_THE_HOST.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::migration::testing::World;

    #[tokio::test(start_paused = true)]
    async fn pod_with_a_network_of_its_own_waits() {
        let world = World::new();
        let requests = world.requests();
        for (spec, waits) in
            [(json!({}), true), (json!({ "hostNetwork": false }), true), (json!({ "hostNetwork": true }), false)]
        {
            world.server.with_store(|store| {
                store.put(&Location::namespaced(PODS, "ns", "one"), json!({ "spec": spec.clone() }));
            });
            let found = not_on_the_host(&requests, "ns", "one").await.unwrap();
            assert_eq!(found.is_some_and(|text| text == NOT_ON_THE_HOST), waits, "{spec}");
        }
        assert_eq!(not_on_the_host(&requests, "ns", "host-1").await, Ok(None));
    }
}
