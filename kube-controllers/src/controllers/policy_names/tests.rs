use std::sync::Mutex;

use datastore::ClusterStore as _;
use libcalico::api::{GlobalNetworkPolicy, NetworkPolicy, ObjectKey, StagedNetworkPolicy};
use libcalico::store::{Kind, Write, WriteOp};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::misnamed::StoredPolicy;
use super::*;
use crate::controllers::testing::{embedded, refusing_kubernetes, settings};
use crate::leader::Leadership;
use crate::settings::{Mode, Settings};
use crate::status::Watchdog;
use crate::telemetry::Metrics;
use libcalico::api::Global;
use libcalico::api::InNamespace;
use libcalico::api::ObjectSelect;
use libcalico::api::StagedInNamespace;

struct Host {
    reconciler: PolicyNameReconciler,
    unavailable: Arc<Mutex<u32>>,
    refusal: Arc<Mutex<Option<u16>>>,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new(enabled: bool) -> Self {
        let (dir, calico) = embedded();
        let unavailable = Arc::new(Mutex::new(0));
        let refusal = Arc::new(Mutex::new(None));
        let (answer, refused) = (unavailable.clone(), refusal.clone());
        let kubernetes = refusing_kubernetes(move |uri| {
            assert!(uri.path().ends_with("/daemonsets/calico-node"), "{uri}");
            match *refused.lock().unwrap() {
                Some(code) => Err(code),
                None => Ok(json!({"status": {"numberUnavailable": *answer.lock().unwrap()}})),
            }
        });
        let settings = Settings {
            policy_name_migrator: enabled,
            ..settings()
        };
        let context = Context {
            kubernetes: kubernetes.clone(),
            calico,
            mode: Mode::Etcd,
            settings: watch::channel(Arc::new(settings)).1,
            leadership: Leadership::always(),
            metrics: Metrics::new(),
            same_cluster: Default::default(),
            watchdog: Watchdog::default(),
            stop: tokio_util::sync::CancellationToken::new(),
        };
        let rollout = NodeRollout::from_environment(kubernetes);
        let reconciler = PolicyNameReconciler {
            context,
            rollout,
            has_misnamed: AtomicBool::default(),
            incomplete_checks: AtomicU32::default(),
        };
        Host {
            reconciler,
            unavailable,
            refusal,
            _dir: dir,
        }
    }

    /// Stores an object as an older release did, with a key that may differ from the object's name.
    async fn store<K: Kind>(&self, key: &K::Key, object: Value) {
        let op = WriteOp::Create(object.to_string().into_bytes());
        let write = Write {
            kind: K::KIND,
            path: K::path(key),
            key: key.to_string(),
            op,
        };
        self.reconciler
            .context
            .calico
            .write_one(write)
            .await
            .unwrap();
    }

    async fn names<K: PolicyKind>(&self) -> Vec<String> {
        let all = self
            .reconciler
            .context
            .calico
            .list::<Object<PolicySpec<K>>>(&ObjectSelect::default())
            .await
            .unwrap();
        all.into_iter()
            .map(|policy| policy.key.to_string())
            .collect()
    }

    async fn change<K: PolicyKind>(&self, name: &str, order: u32) {
        let calico = &self.reconciler.context.calico;
        let mut entry = calico
            .get::<Object<PolicySpec<K>>>(&ObjectKey::global(name))
            .await
            .unwrap();
        entry.value.spec.order = Some(order.into());
        calico
            .update(&entry.key, &entry.value, &entry.revision)
            .await
            .unwrap();
    }

    async fn orders(&self) -> Vec<(String, u64)> {
        let calico = &self.reconciler.context.calico;
        let all = calico
            .list::<GlobalNetworkPolicy>(&ObjectSelect::default())
            .await
            .unwrap();
        let order = |policy: &StoredPolicy<Global>| {
            policy
                .value
                .spec
                .order
                .as_ref()
                .and_then(|order| order.as_u64())
        };
        all.into_iter()
            .map(|policy| (policy.key.to_string(), order(&policy).unwrap()))
            .collect()
    }

    async fn pass(&self) -> NextReconcile {
        self.reconciler.reconcile(&ResyncKey::All).await.unwrap()
    }
}

fn policy(name: &str, tier: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": "u"},
        "spec": {"tier": tier, "newer": 1},
    })
}

#[tokio::test]
async fn only_prefixed_names_of_the_default_tier_are_renamed() {
    let host = Host::new(true);
    let key = |name: &str| ObjectKey::namespaced("ns", name);
    host.store::<NetworkPolicy>(&key("default.a"), policy("default.a", ""))
        .await;
    host.store::<NetworkPolicy>(&key("default.b"), policy("default.b", "default"))
        .await;
    host.store::<NetworkPolicy>(&key("b"), policy("b", "default"))
        .await;
    host.store::<NetworkPolicy>(&key("other.c"), policy("other.c", "other"))
        .await;
    host.store::<NetworkPolicy>(&key("knp.default.d"), policy("knp.default.d", "default"))
        .await;
    let noted = json!({"metadata": {"name": "default.e", "namespace": "ns",
        "annotations": {"projectcalico.org/metadata": "{\"name\":\"default.e\"}"}}, "spec": {}});
    host.store::<NetworkPolicy>(&key("default.e"), noted).await;
    host.store::<GlobalNetworkPolicy>(
        &ObjectKey::global("default.g"),
        json!({"metadata": {"name": "default.g"}}),
    )
    .await;
    host.store::<StagedNetworkPolicy>(&key("default.s"), policy("default.s", "default"))
        .await;
    assert_eq!(host.pass().await, NextReconcile::After(PERIOD));
    let expected = [
        "ns/a",
        "ns/b",
        "ns/default.e",
        "ns/knp.default.d",
        "ns/other.c",
    ];
    assert_eq!(
        host.names::<InNamespace>().await,
        expected,
        "the one whose name has a dot keeps it"
    );
    assert_eq!(host.names::<Global>().await, ["g"]);
    assert_eq!(host.names::<StagedInNamespace>().await, ["ns/s"]);
    let renamed = host
        .reconciler
        .context
        .calico
        .get::<NetworkPolicy>(&key("a"))
        .await
        .unwrap()
        .value;
    assert_eq!(
        (
            renamed.metadata.uid.as_str(),
            &renamed.spec.unknown["newer"]
        ),
        ("u", &json!(1))
    );
}

/// A rename was interrupted between its two writes, and another writer changed the policy under the
/// old name.
#[tokio::test]
async fn policy_changed_between_copy_and_deletion_is_copied_again() {
    let host = Host::new(true);
    let key = |name: &str| ObjectKey::global(name);
    let says = |name: &str, order: u32| {
        json!({
            "metadata": {"name": name, "uid": "u"}, "spec": {"order": order},
        })
    };
    host.store::<GlobalNetworkPolicy>(&key("default.old"), says("default.old", 1))
        .await;
    host.store::<GlobalNetworkPolicy>(&key("old"), says("old", 1))
        .await;
    host.change::<Global>("default.old", 2).await;
    host.store::<GlobalNetworkPolicy>(&key("default.new"), says("default.new", 1))
        .await;
    host.store::<GlobalNetworkPolicy>(&key("new"), says("new", 1))
        .await;
    host.change::<Global>("new", 3).await;
    host.pass().await;
    assert_eq!(
        host.orders().await,
        [("new".to_owned(), 3), ("old".to_owned(), 2)]
    );
}

#[tokio::test]
async fn up_to_date_policy_copy_is_not_rewritten() {
    let host = Host::new(true);
    let key = |name: &str| ObjectKey::global(name);
    let says = |name: &str| json!({"metadata": {"name": name, "uid": "u"}, "spec": {"order": 1}});
    host.store::<GlobalNetworkPolicy>(&key("default.g"), says("default.g"))
        .await;
    host.store::<GlobalNetworkPolicy>(&key("g"), says("g"))
        .await;
    let revision = || async {
        host.reconciler
            .context
            .calico
            .get::<GlobalNetworkPolicy>(&key("g"))
            .await
            .unwrap()
            .revision
    };
    let before = revision().await;
    host.pass().await;
    assert_eq!(host.names::<Global>().await, ["g"]);
    assert_eq!(revision().await, before);
}

/// A listed policy may be deleted before its turn, and must not be created again.
#[tokio::test]
async fn policy_deleted_after_the_list_is_not_recreated() {
    let host = Host::new(true);
    host.store::<GlobalNetworkPolicy>(
        &ObjectKey::global("default.g"),
        json!({"metadata": {"name": "default.g"}}),
    )
    .await;
    let going =
        json!({"metadata": {"name": "default.h", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    host.store::<GlobalNetworkPolicy>(&ObjectKey::global("default.h"), going)
        .await;
    let listed = MisnamedPolicies::read(&host.reconciler.context.calico)
        .await
        .unwrap();
    assert_eq!(listed.global.len(), 1);
    host.reconciler
        .context
        .calico
        .delete::<GlobalNetworkPolicy>(&ObjectKey::global("default.g"), None)
        .await
        .unwrap();
    assert!(host.reconciler.rename_all(listed.global).await.is_none());
    assert_eq!(host.names::<Global>().await, ["default.h"]);
}

#[tokio::test]
async fn policies_are_renamed_only_after_all_nodes_run_the_new_version() {
    let host = Host::new(true);
    *host.unavailable.lock().unwrap() = 1;
    host.store::<GlobalNetworkPolicy>(
        &ObjectKey::global("default.g"),
        json!({"metadata": {"name": "default.g"}}),
    )
    .await;
    assert_eq!(host.pass().await, NextReconcile::After(FIRST_PAUSE));
    assert_eq!(host.names::<Global>().await, ["default.g"]);
    *host.unavailable.lock().unwrap() = 0;
    host.pass().await;
    assert_eq!(host.names::<Global>().await, ["g"]);
}

#[tokio::test]
async fn unreadable_rollout_is_a_failure_and_a_missing_rollout_is_awaited() {
    let host = Host::new(true);
    host.store::<GlobalNetworkPolicy>(
        &ObjectKey::global("default.g"),
        json!({"metadata": {"name": "default.g"}}),
    )
    .await;
    for code in [403, 503] {
        *host.refusal.lock().unwrap() = Some(code);
        for _ in 0..2 {
            let failed = host
                .reconciler
                .reconcile(&ResyncKey::All)
                .await
                .unwrap_err()
                .to_string();
            assert!(
                failed.starts_with("cannot read the DaemonSet calico-system/calico-node"),
                "{failed}"
            );
            assert!(failed.contains(&code.to_string()), "{failed}");
        }
    }
    *host.refusal.lock().unwrap() = Some(404);
    assert_eq!(host.pass().await, NextReconcile::After(FIRST_PAUSE));
    assert_eq!(host.names::<Global>().await, ["default.g"]);
}

#[tokio::test]
async fn disabled_policy_renaming_changes_no_policy() {
    let host = Host::new(false);
    host.store::<GlobalNetworkPolicy>(
        &ObjectKey::global("default.g"),
        json!({"metadata": {"name": "default.g"}}),
    )
    .await;
    assert_eq!(host.pass().await, NextReconcile::AwaitChange);
    assert_eq!(host.names::<Global>().await, ["default.g"]);
}

#[tokio::test]
async fn waiting_for_the_rollout_sends_no_datastore_requests() {
    let host = Host::new(true);
    *host.unavailable.lock().unwrap() = 1;
    host.store::<GlobalNetworkPolicy>(
        &ObjectKey::global("default.g"),
        json!({"metadata": {"name": "default.g"}}),
    )
    .await;
    host.pass().await;
    let asked = host.reconciler.context.calico.requests();
    let mut pauses = Vec::new();
    for refusal in [None, None, Some(503), None, None, None, None] {
        *host.refusal.lock().unwrap() = refusal;
        match host.reconciler.reconcile(&ResyncKey::All).await {
            Ok(NextReconcile::After(pause)) => pauses.push(pause.as_secs()),
            outcome => assert!(outcome.is_err() && refusal.is_some(), "{outcome:?}"),
        }
    }
    assert_eq!(host.reconciler.context.calico.requests(), asked);
    assert_eq!(
        pauses,
        [10, 20, 40, 80, 80, 80],
        "the roll-out is looked at less and less often"
    );
}
