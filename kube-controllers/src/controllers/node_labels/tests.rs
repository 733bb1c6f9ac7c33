use libcalico::api::{NodeSpec, OrchRef};

use super::*;
use crate::controllers::testing::{embedded, settings};

struct Fixture {
    store: Arc<Datastore>,
    reconciler: NodeLabelReconciler,
    _settings: watch::Sender<Arc<Settings>>,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let (dir, store) = embedded();
        let (sender, receiver) = watch::channel(Arc::new(Settings {
            sync_node_labels: true,
            ..settings()
        }));
        let reconciler = NodeLabelReconciler {
            store: store.clone(),
            settings: receiver,
            cache: SharedCache::default(),
        };
        Fixture {
            store,
            reconciler,
            _settings: sender,
            _dir: dir,
        }
    }

    /// Creates a Calico node whose Kubernetes node is named `k-NAME`.
    async fn calico(&self, name: &str, labels: &[(&str, &str)], record: Option<&str>) {
        let reference = OrchRef {
            node_name: format!("k-{name}"),
            orchestrator: "k8s".into(),
            ..OrchRef::default()
        };
        let mut node = CalicoNode::new(
            name,
            NodeSpec {
                orch_refs: vec![reference],
                ..NodeSpec::default()
            },
        );
        node.metadata.labels = pairs(labels);
        node.metadata
            .annotations
            .extend(record.map(|record| (RECORD.to_owned(), record.to_owned())));
        self.store.create(&node.key(), &node).await.unwrap();
        self.apply_stored(name).await;
    }

    async fn apply_stored(&self, name: &str) -> Vec<ObjectKey> {
        let entry = self.get(name).await;
        self.reconciler
            .cache
            .lock()
            .apply_calico_node(&Event::Upsert(&entry))
    }

    fn kubernetes(&self, name: &str, labels: &[(&str, &str)]) -> Vec<ObjectKey> {
        let node = Node {
            name: ObjectKey::global(name),
            uid: "u".into(),
            labels: pairs(labels),
        };
        self.reconciler
            .cache
            .lock()
            .apply_kubernetes_node(&Event::Upsert(&node))
    }

    async fn get(&self, name: &str) -> Entry<CalicoNode> {
        self.store
            .get::<CalicoNode>(&ObjectKey::global(name))
            .await
            .unwrap()
    }

    async fn sync(&self, name: &str) -> Result<NextReconcile, ReconcileError> {
        self.reconciler.reconcile(&ObjectKey::global(name)).await
    }
}

fn pairs(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// The case of upstream's test "should sync labels from k8s -> calico".
#[tokio::test]
async fn calico_node_labels_follow_the_kubernetes_node() {
    let fixture = Fixture::new();
    fixture.calico("n", &[("own", "1")], None).await;
    for (labels, expected) in [
        (vec![("a", "1")], vec![("a", "1"), ("own", "1")]),
        (
            vec![("a", "2"), ("b", "1")],
            vec![("a", "2"), ("b", "1"), ("own", "1")],
        ),
        (vec![("b", "1")], vec![("b", "1"), ("own", "1")]),
    ] {
        assert_eq!(fixture.kubernetes("k-n", &labels), [ObjectKey::global("n")]);
        fixture.sync("n").await.unwrap();
        let node = fixture.get("n").await;
        assert_eq!(node.value.metadata.labels, pairs(&expected));
        let again = fixture.apply_stored("n").await;
        assert_eq!(again, [ObjectKey::global("n")], "our own write comes back");
        fixture.sync("n").await.unwrap();
        assert_eq!(
            fixture.get("n").await.revision,
            node.revision,
            "and is written no second time"
        );
    }
    let gone = ObjectKey::global("k-n");
    assert_eq!(
        fixture
            .reconciler
            .cache
            .lock()
            .apply_kubernetes_node(&Event::Delete(&gone)),
        [ObjectKey::global("n")]
    );
    fixture.sync("n").await.unwrap();
    assert_eq!(
        fixture.get("n").await.value.metadata.labels,
        pairs(&[("b", "1"), ("own", "1")])
    );
}

/// The cache lags behind, and the write must not overwrite another writer's label.
#[tokio::test]
async fn labels_written_concurrently_are_preserved() {
    let fixture = Fixture::new();
    fixture.calico("n", &[], None).await;
    fixture.kubernetes("k-n", &[("a", "1")]);
    let mut node = fixture.get("n").await;
    node.value
        .metadata
        .labels
        .insert("meanwhile".into(), "1".into());
    fixture
        .store
        .update(&node.key, &node.value, &node.revision)
        .await
        .unwrap();
    fixture.sync("n").await.unwrap();
    assert_eq!(
        fixture.get("n").await.value.metadata.labels,
        pairs(&[("a", "1"), ("meanwhile", "1")])
    );
}

#[tokio::test]
async fn invalid_label_record_is_reported_and_not_overwritten() {
    let fixture = Fixture::new();
    fixture.calico("n", &[("a", "1")], Some("{")).await;
    fixture.kubernetes("k-n", &[("a", "2")]);
    let error = fixture.sync("n").await.unwrap_err();
    assert!(
        matches!(
            &error, ReconcileError::Permanent(text) if text.starts_with("Node n: the annotation "),
        ),
        "{error}"
    );
    assert_eq!(
        fixture.get("n").await.value.metadata.labels,
        pairs(&[("a", "1")])
    );
}

#[tokio::test]
async fn sync_of_an_unknown_node_succeeds() {
    let fixture = Fixture::new();
    assert!(fixture.kubernetes("k-n", &[("a", "1")]).is_empty());
    assert_eq!(fixture.sync("n").await.unwrap(), NextReconcile::AwaitChange);
}

mod merging {
    use proptest::prelude::*;

    use super::super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn found(pairs: &[(&str, &str)], record: Option<&str>) -> RecordedLabels {
        RecordedLabels {
            labels: labels(pairs),
            record: record.map(str::to_owned),
        }
    }

    #[test]
    fn node_labels_are_added_changed_and_removed() {
        let first = merge(
            &found(&[("own", "1")], None),
            &labels(&[("a", "1"), ("b", "1")]),
        )
        .unwrap()
        .unwrap();
        assert_eq!(
            first,
            found(
                &[("a", "1"), ("b", "1"), ("own", "1")],
                Some(r#"{"a":"1","b":"1"}"#)
            )
        );
        let second = merge(&first, &labels(&[("b", "2"), ("c", "3")]))
            .unwrap()
            .unwrap();
        assert_eq!(
            second,
            found(
                &[("b", "2"), ("c", "3"), ("own", "1")],
                Some(r#"{"b":"2","c":"3"}"#)
            )
        );
        assert_eq!(
            merge(&second, &labels(&[("b", "2"), ("c", "3")])).unwrap(),
            None
        );
    }

    #[test]
    fn user_label_with_a_kubernetes_label_name_is_overwritten() {
        let merged = merge(&found(&[("a", "mine")], None), &labels(&[("a", "theirs")]))
            .unwrap()
            .unwrap();
        assert_eq!(merged.labels, labels(&[("a", "theirs")]));
    }

    #[test]
    fn labels_without_a_valid_record_are_not_removed() {
        assert_eq!(
            merge(&found(&[("a", "1")], None), &labels(&[])).unwrap(),
            None
        );
        assert_eq!(
            merge(&found(&[("a", "1")], Some("null")), &labels(&[])).unwrap(),
            None
        );
        for record in ["no JSON", "[]", r#"{"a":1}"#] {
            assert!(
                merge(&found(&[("a", "1")], Some(record)), &labels(&[])).is_err(),
                "{record}"
            );
        }
    }

    fn some_labels() -> impl Strategy<Value = Labels> {
        prop::collection::btree_map("[a-d]", "[xy]", 0..4)
    }

    proptest! {
        #[test]
        fn merging_the_same_labels_again_changes_no_node(
            own in some_labels(), rounds in prop::collection::vec(some_labels(), 1..4),
        ) {
            let mut node = RecordedLabels {
                labels: own.clone(),
                record: None,
            };
            let mut ever = Labels::new();
            for kubernetes in &rounds {
                ever.extend(kubernetes.clone());
                node = merge(&node, kubernetes).unwrap().unwrap_or(node);
                prop_assert_eq!(merge(&node, kubernetes).unwrap(), None);
                for (key, value) in kubernetes {
                    prop_assert_eq!(node.labels.get(key), Some(value));
                }
            }
            for (key, value) in own.iter().filter(|(key, _)| !ever.contains_key(*key)) {
                prop_assert_eq!(node.labels.get(key), Some(value), "a user's own");
            }
        }
    }
}
