//! On the embedded datastore, and an API server that has one DaemonSet.

use std::sync::Mutex;

use libcalico::api::{GlobalNetworkPolicy, NetworkPolicy, ObjectKey, StagedNetworkPolicy};
use libcalico::store::{Kind, Write, WriteOp};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::context::Mode;
use crate::controllers::testing::{embedded, refusing_kubernetes, settings};
use crate::runtime::Leadership;
use crate::settings::Settings;
use crate::telemetry::Metrics;

struct Host {
    migrator: Migrator,
    /// How many pods of the DaemonSet are not there.
    unavailable: Arc<Mutex<u32>>,
    /// The status with which the DaemonSet is refused.
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
        let settings = Settings { policy_name_migrator: enabled, ..settings() };
        let context = Context {
            kubernetes: kubernetes.clone(),
            calico,
            mode: Mode::Etcd,
            settings: watch::channel(Arc::new(settings)).1,
            leadership: Leadership::always(),
            metrics: Metrics::new(),
            stop: tokio_util::sync::CancellationToken::new(),
        };
        let migrator = Migrator { context, rollout: Rollout::of_environment(kubernetes), told: AtomicBool::new(false) };
        Host { migrator, unavailable, refusal, _dir: dir }
    }

    /// Stores bytes as an older Calico did, where the key and the object need not agree.
    async fn store<K: Kind>(&self, key: &K::Key, object: Value) {
        let op = WriteOp::Create(object.to_string().into_bytes());
        let write = Write { kind: K::KIND, path: K::path(key), key: key.to_string(), op };
        self.migrator.context.calico.write_one(write).await.unwrap();
    }

    async fn names<K: PolicyKind>(&self) -> Vec<String> {
        let all = self.migrator.context.calico.list::<Object<PolicySpec<K>>>(&ObjectSelect::default()).await.unwrap();
        all.into_iter().map(|policy| policy.key.to_string()).collect()
    }

    async fn pass(&self) -> Next {
        self.migrator.reconcile(&Work::All).await.unwrap()
    }
}

fn policy(name: &str, tier: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": "u"}, "spec": {"tier": tier, "newer": 1}})
}

#[tokio::test]
async fn only_old_names_of_the_default_tier_are_replaced() {
    let host = Host::new(true);
    let key = |name: &str| ObjectKey::namespaced("ns", name);
    host.store::<NetworkPolicy>(&key("default.a"), policy("default.a", "")).await;
    host.store::<NetworkPolicy>(&key("default.b"), policy("default.b", "default")).await;
    host.store::<NetworkPolicy>(&key("b"), policy("b", "default")).await;
    host.store::<NetworkPolicy>(&key("other.c"), policy("other.c", "other")).await;
    host.store::<NetworkPolicy>(&key("knp.default.d"), policy("knp.default.d", "default")).await;
    let noted = json!({"metadata": {"name": "default.e", "namespace": "ns",
        "annotations": {"projectcalico.org/metadata": "{\"name\":\"default.e\"}"}}, "spec": {}});
    host.store::<NetworkPolicy>(&key("default.e"), noted).await;
    host.store::<GlobalNetworkPolicy>(&ObjectKey::global("default.g"), json!({"metadata": {"name": "default.g"}}))
        .await;
    host.store::<StagedNetworkPolicy>(&key("default.s"), policy("default.s", "default")).await;
    assert_eq!(host.pass().await, Next::After(PERIOD));
    let expected = ["ns/a", "ns/b", "ns/default.e", "ns/knp.default.d", "ns/other.c"];
    assert_eq!(host.names::<InNamespace>().await, expected, "the one whose name has a dot keeps it");
    assert_eq!(host.names::<Global>().await, ["g"]);
    assert_eq!(host.names::<StagedInNamespace>().await, ["ns/s"]);
    let renamed = host.migrator.context.calico.get::<NetworkPolicy>(&key("a")).await.unwrap().value;
    assert_eq!((renamed.metadata.uid.as_str(), &renamed.spec.unknown["newer"]), ("u", &json!(1)));
}

#[tokio::test]
async fn nothing_is_renamed_before_every_node_has_the_new_version() {
    let host = Host::new(true);
    *host.unavailable.lock().unwrap() = 1;
    host.store::<GlobalNetworkPolicy>(&ObjectKey::global("default.g"), json!({"metadata": {"name": "default.g"}}))
        .await;
    assert_eq!(host.pass().await, Next::After(ROLLOUT_PERIOD));
    assert_eq!(host.names::<Global>().await, ["default.g"]);
    *host.unavailable.lock().unwrap() = 0;
    host.pass().await;
    assert_eq!(host.names::<Global>().await, ["g"]);
}

#[tokio::test]
async fn a_roll_out_that_may_not_be_looked_at_is_a_failure_and_one_that_is_none_is_waited_for() {
    let host = Host::new(true);
    host.store::<GlobalNetworkPolicy>(&ObjectKey::global("default.g"), json!({"metadata": {"name": "default.g"}}))
        .await;
    for code in [403, 503] {
        *host.refusal.lock().unwrap() = Some(code);
        for _ in 0..2 {
            let failed = host.migrator.reconcile(&Work::All).await.unwrap_err().to_string();
            assert!(failed.starts_with("reading the DaemonSet calico-system/calico-node"), "{failed}");
            assert!(failed.contains(&code.to_string()), "{failed}");
        }
    }
    *host.refusal.lock().unwrap() = Some(404);
    assert_eq!(host.pass().await, Next::After(ROLLOUT_PERIOD));
    assert_eq!(host.names::<Global>().await, ["default.g"]);
}

#[tokio::test]
async fn one_that_is_switched_off_does_nothing() {
    let host = Host::new(false);
    host.store::<GlobalNetworkPolicy>(&ObjectKey::global("default.g"), json!({"metadata": {"name": "default.g"}}))
        .await;
    assert_eq!(host.pass().await, Next::Done);
    assert_eq!(host.names::<Global>().await, ["default.g"]);
}
