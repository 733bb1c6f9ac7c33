use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use datastore::Datastore;
use libcalico::api::{NetworkPolicy, ObjectSelect, Profile};
use libcalico::store::{Kind, Revision, Store, Write, WriteOp};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::context::Context;
use crate::controllers::cached::{CachedReconcile, ResyncKey};
use crate::controllers::policy::Policies;
use crate::controllers::service_account::ServiceAccounts;
use crate::controllers::testing::{embedded, kubernetes, posting_kubernetes, settings};
use crate::leader::{Leadership, LeadershipTerm};
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::Mode;
use crate::status::Watchdog;
use crate::telemetry::Metrics;
use crate::watched;
use crate::watches::Event;
use libcalico::api::ObjectKey;

struct Host {
    context: Context,
    controller: SyncController<Policies>,
    reconciler: SyncReconciler<Policies>,
    /// Names that exist in the API server, whatever the watch has delivered.
    live: Arc<Mutex<BTreeSet<String>>>,
    _dir: tempfile::TempDir,
}

fn source(name: &str, port: u16) -> watched::NetworkPolicy {
    let spec = json!({"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]});
    let (name, uid) = (ObjectKey::namespaced("ns", name), format!("uid-of-{name}"));
    watched::NetworkPolicy {
        name,
        uid,
        spec: serde_json::from_value(spec).unwrap(),
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("ns", format!("knp.default.{name}"))
}

impl Host {
    fn new() -> Self {
        Self::led_by(Leadership::always())
    }

    fn led_by(leadership: Leadership) -> Self {
        let (dir, calico) = embedded();
        let live = Arc::new(Mutex::new(BTreeSet::new()));
        let there = live.clone();
        let context = Context {
            kubernetes: kubernetes(move |uri| {
                let query = uri.query().unwrap_or_default().to_owned();
                let namespace = uri
                    .path()
                    .split("/namespaces/")
                    .nth(1)
                    .and_then(|rest| rest.split('/').next());
                let named = |name: &&String| query.contains(&format!("metadata.name%3D{name}&"));
                let object =
                    |name: &String| json!({"metadata": {"name": name, "namespace": namespace}});
                let items = there
                    .lock()
                    .unwrap()
                    .iter()
                    .filter(named)
                    .map(object)
                    .collect::<Vec<_>>();
                json!({
                    "kind": "PartialObjectMetadataList",
                    "items": (!items.is_empty()).then_some(items),
                })
            }),
            calico,
            mode: Mode::Etcd,
            settings: watch::channel(Arc::new(settings())).1,
            leadership,
            metrics: Metrics::new(),
            same_cluster: Default::default(),
            watchdog: Watchdog::default(),
            stop: tokio_util::sync::CancellationToken::new(),
        };
        let controller = SyncController::<Policies>::unsubscribed();
        let reconciler = SyncReconciler::new(&context, &controller);
        Host {
            context,
            controller,
            reconciler,
            live,
            _dir: dir,
        }
    }

    fn calico(&self) -> &Datastore {
        &self.context.calico
    }

    fn on_event(&self, event: &Event<'_, watched::NetworkPolicy>) {
        let changed = self.controller.cache.lock().apply(event);
        changed
            .into_iter()
            .for_each(|key| self.controller.queue.add(key));
    }

    fn list(&self, sources: &[watched::NetworkPolicy]) {
        self.on_event(&Event::ListStart);
        sources
            .iter()
            .for_each(|source| self.on_event(&Event::Upsert(source)));
        self.on_event(&Event::ListEnd);
    }

    /// Processes the queue until it is empty. Returns the failures.
    async fn work(&self) -> Vec<String> {
        let mut failures = Vec::new();
        while !self.controller.queue.is_empty() {
            let work = self.controller.queue.next().await;
            let outcome = self.reconciler.reconcile(&work).await;
            self.controller.queue.done(&work);
            match outcome {
                Ok(NextReconcile::After(_)) => assert_eq!(work, ResyncKey::All),
                Ok(NextReconcile::AwaitChange) => {}
                Err(ReconcileError::Retry(reason)) => {
                    failures.push(format!("retry {work}: {reason}"))
                }
                Err(ReconcileError::Permanent(reason)) => {
                    failures.push(format!("never {work}: {reason}"))
                }
            }
        }
        failures
    }

    async fn compare_all(&self) -> Vec<String> {
        self.controller.queue.add(ResyncKey::All);
        self.work().await
    }

    async fn stored(&self) -> Vec<(String, Value, Revision)> {
        let all = self
            .calico()
            .list::<NetworkPolicy>(&ObjectSelect::default())
            .await
            .unwrap();
        all.into_iter()
            .map(|entry| (entry.key.name, json!(entry.value), entry.revision))
            .collect()
    }

    async fn names(&self) -> Vec<String> {
        self.stored()
            .await
            .into_iter()
            .map(|(name, ..)| name)
            .collect()
    }

    async fn put_bytes(&self, key: &ObjectKey, bytes: &str) {
        let (kind, path) = ("NetworkPolicy", NetworkPolicy::path(key));
        let op = WriteOp::Create(bytes.as_bytes().to_vec());
        self.calico()
            .write_one(Write {
                kind,
                path,
                key: key.to_string(),
                op,
            })
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn all_sources_are_synced_and_unchanged_objects_are_not_rewritten() {
    let host = Host::new();
    host.on_event(&Event::ListStart);
    host.on_event(&Event::Upsert(&source("a", 80)));
    assert!(
        host.controller.queue.is_empty(),
        "a list that is not complete says nothing"
    );
    assert!(matches!(
        host.reconciler.reconcile(&ResyncKey::One(key("b"))).await,
        Ok(NextReconcile::AwaitChange)
    ));
    host.on_event(&Event::ListEnd);
    assert_eq!(host.work().await, [""; 0]);
    let first = host.stored().await;
    let [(_, policy, _)] = &first[..] else {
        panic!("{first:?}")
    };
    assert_eq!(
        policy["spec"]["ingress"][0]["destination"]["ports"],
        json!([80])
    );
    assert_eq!(
        policy["metadata"]["labels"],
        json!({"projectcalico.org/tier": "default"})
    );
    assert!(
        policy["metadata"]["uid"]
            .as_str()
            .is_some_and(|uid| uid.len() == 36)
    );
    // A restarted watch delivers the same objects.
    host.list(&[source("a", 80)]);
    assert_eq!(host.compare_all().await, [""; 0]);
    assert_eq!(host.stored().await, first);
}

#[tokio::test]
async fn update_changes_the_spec_and_preserves_the_metadata() {
    let host = Host::new();
    host.list(&[source("a", 80)]);
    host.work().await;
    let mut entry = host.calico().get::<NetworkPolicy>(&key("a")).await.unwrap();
    entry
        .value
        .metadata
        .annotations
        .insert("note".into(), "kept".into());
    host.calico()
        .update(&key("a"), &entry.value, &entry.revision)
        .await
        .unwrap();
    host.on_event(&Event::Upsert(&source("a", 81)));
    assert_eq!(host.work().await, [""; 0]);
    let after = host
        .calico()
        .get::<NetworkPolicy>(&key("a"))
        .await
        .unwrap()
        .value;
    assert_eq!(json!(after.spec.ingress[0].destination.ports), json!([81]));
    assert_eq!(after.metadata.annotations["note"], "kept");
    assert_eq!(after.metadata.uid, entry.value.metadata.uid);
}

#[tokio::test]
async fn foreign_changes_and_orphans_are_corrected() {
    let host = Host::new();
    host.list(&[source("a", 80), source("b", 80)]);
    host.work().await;
    let mut entry = host.calico().get::<NetworkPolicy>(&key("a")).await.unwrap();
    entry.value.spec.selector = "all()".into();
    host.calico()
        .update(&key("a"), &entry.value, &entry.revision)
        .await
        .unwrap();
    host.calico()
        .delete::<NetworkPolicy>(&key("b"), None)
        .await
        .unwrap();
    host.put_bytes(
        &key("orphan"),
        r#"{"metadata":{"name":"x","namespace":"ns"},"spec":{}}"#,
    )
    .await;
    let foreign = ObjectKey::namespaced("ns", "mine");
    host.put_bytes(
        &foreign,
        r#"{"metadata":{"name":"mine","namespace":"ns"},"spec":{}}"#,
    )
    .await;
    assert_eq!(host.compare_all().await, [""; 0]);
    assert_eq!(
        host.names().await,
        ["knp.default.a", "knp.default.b", "mine"]
    );
    let restored = host
        .calico()
        .get::<NetworkPolicy>(&key("a"))
        .await
        .unwrap()
        .value;
    assert_eq!(
        restored.spec.selector,
        "projectcalico.org/orchestrator == 'k8s'"
    );
}

#[tokio::test]
async fn invalid_stored_bytes_do_not_block_other_objects() {
    let host = Host::new();
    for (name, bytes) in [("a", "{"), ("gone", "{\"spec\": 5}")] {
        host.put_bytes(&key(name), bytes).await;
    }
    host.list(&[source("a", 80), source("b", 80)]);
    assert_eq!(host.work().await, [""; 0]);
    assert_eq!(host.names().await, ["knp.default.a", "knp.default.b"]);
    assert!(
        host.calico()
            .get::<NetworkPolicy>(&key("gone"))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn object_that_still_exists_in_kubernetes_is_not_deleted() {
    let host = Host::new();
    host.list(&[source("a", 80)]);
    host.work().await;
    host.live.lock().unwrap().insert("a".into());
    let gone = ObjectKey::namespaced("ns", "a");
    host.on_event(&Event::Delete(&gone));
    let failures = host.work().await;
    assert_eq!(
        failures,
        [
            "retry ns/knp.default.a: NetworkPolicy ns/a exists, although the watch does not show \
             it yet"
        ]
    );
    assert_eq!(host.names().await, ["knp.default.a"]);
    host.live.lock().unwrap().clear();
    host.controller.queue.add(ResyncKey::One(key("a")));
    assert_eq!(host.work().await, [""; 0]);
    assert_eq!(host.names().await, [""; 0]);
}

#[tokio::test]
async fn unwritable_object_is_reported_once_per_change() {
    let host = Host::new();
    let long = "n".repeat(242);
    host.list(&[source(&long, 80), source("a", 80)]);
    let failures = host.work().await;
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(
        failures[0].starts_with("never ns/knp.default.nnn")
            && failures[0].contains("too long by 1 bytes")
    );
    assert_eq!(host.names().await, ["knp.default.a"]);
    assert_eq!(host.compare_all().await, [""; 0], "no news");
    assert_eq!(host.controller.cache.lock().rejected.len(), 1);
    host.on_event(&Event::Upsert(&source(&long, 81)));
    assert_eq!(host.work().await.len(), 1, "told again when it changed");
    host.on_event(&Event::Delete(&ObjectKey::namespaced("ns", long)));
    assert_eq!(
        (
            host.work().await.len(),
            host.controller.cache.lock().rejected.len()
        ),
        (0, 0)
    );
}

#[tokio::test]
async fn unconvertible_rule_is_dropped_and_the_policy_synced() {
    let host = Host::new();
    let mut policy = source("a", 80);
    let bad = json!({"ports": [{"port": "http", "endPort": 90}]});
    policy
        .spec
        .ingress
        .push(serde_json::from_value(bad).unwrap());
    host.list(&[policy]);
    assert_eq!(host.work().await, [""; 0]);
    assert_eq!(
        host.stored().await[0].1["spec"]["ingress"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn label_that_a_profile_may_not_have_costs_the_label_alone_and_is_reported() {
    let host = Host::new();
    let (client, posted) = posting_kubernetes();
    let context = Context {
        kubernetes: client,
        ..host.context.clone()
    };
    let controller = SyncController::<ServiceAccounts>::unsubscribed();
    let reconciler = SyncReconciler::<ServiceAccounts>::new(&context, &controller);
    let account = |labels: &[&str]| watched::ServiceAccount {
        name: ObjectKey::namespaced("ns", "web"),
        uid: "u1".into(),
        labels: labels
            .iter()
            .map(|key| ((*key).to_owned(), "a".to_owned()))
            .collect(),
    };
    let on_event =
        |event: &Event<'_, watched::ServiceAccount>| _ = controller.cache.lock().apply(event);
    let (profile, long) = (ObjectKey::global("ksa.ns.web"), "n".repeat(61));
    let reconcile = async || {
        _ = reconciler
            .reconcile(&ResyncKey::One(profile.clone()))
            .await
            .unwrap()
    };
    let unmirrored = || reconciler.unmirrored.as_ref().unwrap().get();

    on_event(&Event::ListStart);
    on_event(&Event::Upsert(&account(&["team", &long])));
    on_event(&Event::ListEnd);
    reconcile().await;
    let stored = host
        .calico()
        .get::<Profile>(&profile)
        .await
        .unwrap()
        .value
        .spec
        .labels_to_apply;
    assert_eq!(
        stored.keys().collect::<Vec<_>>(),
        ["pcsa.projectcalico.org/name", "pcsa.team"]
    );
    assert_eq!(unmirrored(), 1);
    reconcile().await;
    let event = match &posted.lock().unwrap()[..] {
        [event] => event.clone(),
        events => panic!("{events:?}"),
    };
    let object = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "namespace": "ns", "name": "web", "uid": "u1",
    });
    assert_eq!(
        (&event["involvedObject"], &event["reason"]),
        (&object, &json!("ConvertedInPart"))
    );
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .contains(&format!("pcsa.{long}=a")),
        "{event}"
    );

    // Another replica has the profile of this one, and counts it.
    let other = SyncReconciler::<ServiceAccounts>::new(
        &Context {
            metrics: Metrics::new(),
            ..context.clone()
        },
        &controller,
    );
    other.reconcile(&ResyncKey::All).await.unwrap();
    assert_eq!(other.unmirrored.as_ref().unwrap().get(), 1);

    on_event(&Event::Upsert(&account(&["team"])));
    reconcile().await;
    assert_eq!((unmirrored(), posted.lock().unwrap().len()), (0, 1));
}

#[tokio::test]
async fn replica_that_is_not_leader_writes_no_policies() {
    let (sender, term) = watch::channel(LeadershipTerm::No);
    let host = Host::led_by(Leadership::new(term));
    host.put_bytes(
        &key("orphan"),
        r#"{"metadata":{"name":"x","namespace":"ns"},"spec":{}}"#,
    )
    .await;
    host.list(&[source("a", 80)]);
    let failures = host.work().await;
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(
        failures
            .iter()
            .all(|failure| failure.contains("this replica is not the leader")),
        "{failures:?}"
    );
    assert_eq!(host.names().await, ["knp.default.orphan"]);
    drop(sender);
}

#[test]
fn synced_names_map_back_to_their_sources() {
    let account = ObjectKey::namespaced("ns", "a.b");
    let profile = ServiceAccounts::target_of(&account);
    assert_eq!(profile, ObjectKey::global("ksa.ns.a.b"));
    assert_eq!(ServiceAccounts::source_of(&profile), Some(account));
    for orphan in ["ksa.", "ksa.ns", "ksa.ns.", "ksa..a"] {
        assert_eq!(
            ServiceAccounts::source_of(&ObjectKey::global(orphan)),
            None,
            "{orphan}"
        );
    }
    assert_eq!(
        Policies::source_of(&ObjectKey::namespaced("ns", "knp.default.")),
        None
    );
    assert_eq!(
        Policies::source_of(&key("a.b")),
        Some(ObjectKey::namespaced("ns", "a.b"))
    );
    assert_eq!(
        Profile::path(&profile),
        "/calico/resources/v3/projectcalico.org/profiles/ksa.ns.a.b"
    );
}

#[test]
fn labels_of_a_terminating_namespace_are_not_applied() {
    use crate::controllers::namespace::Namespaces;
    let namespace = |phase: &str, team: &str| watched::Namespace {
        name: ObjectKey::global("ns"),
        uid: "u1".into(),
        labels: [("team".to_owned(), team.to_owned())].into(),
        phase: phase.into(),
    };
    let kept = Namespaces::cache(&namespace("Active", "a"), None);
    assert_eq!(
        Namespaces::cache(&namespace("Active", "b"), Some(&kept))["team"],
        "b"
    );
    assert_eq!(
        Namespaces::cache(&namespace("Terminating", "b"), Some(&kept))["team"],
        "a"
    );
    assert_eq!(
        Namespaces::cache(&namespace("Terminating", "b"), None)["team"],
        "b"
    );
}
