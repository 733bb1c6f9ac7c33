//! The nodes that Kubernetes and the datastore have in common, for [`SameCluster`] (etcd only), and
//! the report if there is none.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::kubernetes::{ApiGroup, NODES};
use libcalico::store::Entry;
use serde_json::json;

use super::node_names::NodeNames;
use crate::api_reads;
use crate::context::Context;
use crate::events::{self, EventPublisher, EventType};
use crate::leader::Leadership;
use crate::same_cluster::{MismatchKind, SameCluster};
use crate::settings::Settings;
use crate::watched::Node;
use crate::watches::{Cache, Event, Watches};

const REASON: &str = "NoCommonNode";

#[derive(Debug, Default)]
struct Nodes {
    kubernetes: Cache<ObjectKey, ()>,
    calico: NodeNames,
}

/// Follows the nodes, from new lists on. Call before the controllers subscribe, so that each
/// deletion of a Node is known here before a controller acts on the deletion.
pub(crate) fn follow(cluster: &SameCluster, watches: &mut Watches) {
    cluster.await_nodes();
    let nodes = Arc::new(Mutex::new(Nodes::default()));
    let (state, shared) = (cluster.clone(), nodes.clone());
    watches.nodes.subscribe(move |event: &Event<'_, Node>| {
        let mut nodes = shared.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.kubernetes.apply(event, |_| Some(()));
        nodes.show(&state);
    });
    let state = cluster.clone();
    watches
        .calico_nodes
        .subscribe(move |event: &Event<'_, Entry<CalicoNode>>| {
            let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
            nodes.calico.apply(event);
            nodes.show(&state);
        });
}

/// Returns the time after which to ask again, or `None` if deletions are allowed:
/// [`SameCluster::hold`] allows them, and the API server still has a common node. Reports a
/// mismatch as [`report`] does.
pub(crate) async fn hold_and_report(context: &Context) -> Option<Duration> {
    match report(context).await {
        None => confirm(&context.same_cluster, &context.kubernetes).await,
        held => held,
    }
}

/// Does the same as [`SameCluster::hold`] with the settings in force. Also reports a mismatch in
/// the log and as an Event, once.
pub(crate) async fn report(context: &Context) -> Option<Duration> {
    let settings = context.settings.borrow().clone();
    report_wait(
        &context.same_cluster,
        &settings,
        &context.leadership,
        &context.kubernetes,
    )
    .await
}

/// Does the same as [`report`] with these settings, this right to write and this API server.
pub(crate) async fn report_wait(
    cluster: &SameCluster,
    settings: &Settings,
    leadership: &Leadership,
    kubernetes: &kube::Client,
) -> Option<Duration> {
    let held = cluster.hold(settings);
    // Only the leader can post the Event.
    if held.is_some()
        && leadership.holds()
        && let Some(message) = cluster.new_report(settings)
    {
        tracing::warn!("{message}");
        let object = json!({ "apiVersion": ApiGroup::V3.api_version(),
                "kind": "KubeControllersConfiguration",
            "name": "default" });
        let event = events::event(
            &object,
            EventType::Warning,
            REASON,
            &message,
            SystemTime::now(),
        );
        Box::pin(EventPublisher::default().create(kubernetes, leadership.holds(), event)).await;
    }
    held
}

/// Reads a common node from the API server. Returns the time after which to ask again if the node
/// is missing: the API server is empty or another one since the nodes were listed.
pub(crate) async fn confirm(cluster: &SameCluster, kubernetes: &kube::Client) -> Option<Duration> {
    let node = cluster.unconfirmed()?;
    match Box::pin(api_reads::exists(
        kubernetes,
        NODES,
        &ObjectKey::global(&node),
    ))
    .await
    {
        Ok(true) => {
            cluster.confirm();
            None
        }
        Ok(false) => {
            tracing::warn!(
                node,
                hint = "deletions continue when the nodes are listed again",
                "a node that Kubernetes had is missing; deletions wait"
            );
            Some(cluster.refuse(false))
        }
        Err(error) => {
            tracing::warn!(node, %error, "cannot read a node of Kubernetes; deletions wait");
            Some(cluster.refuse(true))
        }
    }
}

impl Nodes {
    fn show(&self, cluster: &SameCluster) {
        if self.kubernetes.is_synced() && self.calico.is_synced() {
            let common = self.common();
            let kind = if common.is_some() {
                None
            } else {
                self.mismatch()
            };
            cluster.observe(kind, common, self.calico.names.all_members().count());
        }
    }

    fn common(&self) -> Option<&str> {
        let node = self
            .calico
            .names
            .groups()
            .find(|node| self.kubernetes.get(*node).is_some())?;
        Some(&node.name)
    }

    /// Returns the mismatch of nodes of which none is common.
    fn mismatch(&self) -> Option<MismatchKind> {
        self.calico.names.groups().next()?;
        let has_none = self.kubernetes.iter().next().is_none();
        Some(if has_none {
            MismatchKind::NoNode
        } else {
            MismatchKind::NoCommonNode
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use libcalico::api::{NodeSpec, OrchRef};
    use libcalico::store::Revision;

    use super::*;
    use crate::controllers::testing::{kubernetes_with_node, settings};
    use crate::settings::Settings;

    const GRACE: Duration = Duration::from_secs(60);

    fn with_grace() -> Settings {
        Settings {
            leak_grace_period: Some(GRACE),
            ..settings()
        }
    }

    fn kubernetes(watches: &mut Watches, names: &[&str]) {
        watches.nodes.dispatch(&Event::ListStart);
        for name in names {
            let node = Node {
                name: ObjectKey::global(*name),
                uid: "u".into(),
                labels: Default::default(),
            };
            watches.nodes.dispatch(&Event::Upsert(&node));
        }
        watches.nodes.dispatch(&Event::ListEnd);
    }

    fn calico(watches: &mut Watches, names: &[&str]) {
        watches.calico_nodes.dispatch(&Event::ListStart);
        for name in names {
            let node_ref = OrchRef {
                node_name: (*name).into(),
                orchestrator: "k8s".into(),
                ..OrchRef::default()
            };
            let value = CalicoNode::new(
                *name,
                NodeSpec {
                    orch_refs: vec![node_ref],
                    ..NodeSpec::default()
                },
            );
            let entry = Entry {
                key: value.key(),
                value,
                revision: Revision("1".into()),
            };
            watches.calico_nodes.dispatch(&Event::Upsert(&entry));
        }
        watches.calico_nodes.dispatch(&Event::ListEnd);
    }

    /// The watch of the nodes has not noticed another API server yet.
    #[tokio::test(start_paused = true)]
    async fn deletions_wait_while_the_api_server_lacks_a_node_that_the_watch_delivered() {
        let (cluster, mut watches) = (SameCluster::default(), Watches::default());
        let ((same, requests), (other, _)) = (kubernetes_with_node("b"), kubernetes_with_node("x"));
        assert_eq!(confirm(&cluster, &other).await, None, "not followed");
        follow(&cluster, &mut watches);
        kubernetes(&mut watches, &["b"]);
        calico(&mut watches, &["a", "b"]);
        assert!(confirm(&cluster, &other).await.is_some());
        for _ in 0..3 {
            assert_eq!(confirm(&cluster, &same).await, None);
        }
        assert_eq!(
            requests.load(Ordering::Relaxed),
            1,
            "one read for deletions at the same time"
        );
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(confirm(&cluster, &other).await.is_some());
        assert!(
            cluster.hold(&with_grace()).is_some(),
            "the other deletions wait without a request"
        );
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(cluster.hold(&with_grace()), None);
        kubernetes(&mut watches, &[]);
        assert_eq!(
            confirm(&cluster, &other).await,
            None,
            "the mismatch holds deletions"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_are_not_listed_are_reported_once() {
        let (cluster, mut watches) = (SameCluster::default(), Watches::default());
        follow(&cluster, &mut watches);
        assert_eq!(cluster.new_report(&with_grace()), None);
        tokio::time::advance(Duration::from_secs(300)).await;
        let report = cluster.new_report(&with_grace()).unwrap();
        assert!(report.contains("may list and watch nodes"), "{report}");
        assert_eq!(cluster.new_report(&with_grace()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn deletions_wait_until_kubernetes_has_a_node_of_the_datastore() {
        let (cluster, mut watches) = (SameCluster::default(), Watches::default());
        assert_eq!(cluster.hold(&with_grace()), None, "not subscribed");
        follow(&cluster, &mut watches);
        kubernetes(&mut watches, &[]);
        assert!(
            cluster.hold(&with_grace()).is_some(),
            "Calico's nodes are not listed"
        );
        calico(&mut watches, &[]);
        assert_eq!(
            cluster.hold(&with_grace()),
            None,
            "the datastore has no node that could be missing"
        );
        calico(&mut watches, &["a", "b"]);
        tokio::time::advance(GRACE * 1000).await;
        assert!(
            cluster.hold(&with_grace()).is_some(),
            "Kubernetes has no Node"
        );
        kubernetes(&mut watches, &["b"]);
        assert_eq!(cluster.hold(&with_grace()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn deletions_wait_for_the_grace_period_since_kubernetes_has_only_other_nodes() {
        let (cluster, mut watches) = (SameCluster::default(), Watches::default());
        follow(&cluster, &mut watches);
        calico(&mut watches, &["a", "b"]);
        kubernetes(&mut watches, &[]);
        tokio::time::advance(GRACE).await;
        kubernetes(&mut watches, &["x"]);
        assert!(cluster.hold(&with_grace()).is_some());
        tokio::time::advance(GRACE - Duration::from_secs(1)).await;
        assert_eq!(cluster.hold(&with_grace()), Some(Duration::from_secs(1)));
        // A change of the settings restarts the controllers, which list the nodes again.
        let mut watches = Watches::default();
        follow(&cluster, &mut watches);
        kubernetes(&mut watches, &["x"]);
        calico(&mut watches, &["a", "b"]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cluster.hold(&with_grace()), None);
        assert!(
            cluster
                .hold(&Settings {
                    leak_grace_period: None,
                    ..settings()
                })
                .is_some(),
            "15 minutes"
        );
        kubernetes(&mut watches, &["x", "a"]);
        kubernetes(&mut watches, &["x"]);
        assert!(
            cluster.hold(&with_grace()).is_some(),
            "the state began anew"
        );
    }
}
