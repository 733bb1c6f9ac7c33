//! [`NodeLabelCache`]: the labels of Kubernetes nodes and Calico nodes. [`merge`]: computes the labels of a Calico
//! node.

use std::collections::BTreeMap;

use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::Entry;

use crate::controllers::node_names::NodeNames;
use crate::watched::Node;
use crate::watches::{Cache, Event};

/// Annotation of a Calico node with the labels that were last copied from Kubernetes (KC-477).
pub(super) const RECORD: &str = "projectcalico.org/kube-labels";

type Labels = BTreeMap<String, String>;

/// The labels of a Calico node, and their record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RecordedLabels {
    /// The labels.
    pub(super) labels: Labels,
    /// The annotation [`RECORD`], if there is one.
    pub(super) record: Option<String>,
}

impl RecordedLabels {
    /// Returns the labels of a node.
    pub(super) fn new(node: &CalicoNode) -> Self {
        let metadata = &node.metadata;
        RecordedLabels { labels: metadata.labels.clone(), record: metadata.annotations.get(RECORD).cloned() }
    }
}

/// An unreadable record. Without it, the labels that came from Kubernetes are unknown.
#[derive(Debug, thiserror::Error)]
#[error("the annotation {RECORD} is not a JSON object of labels ({0}); correct it or delete it")]
pub(super) struct InvalidRecord(serde_json::Error);

/// Returns the desired labels of a Calico node if its Kubernetes node has the labels `kubernetes`, or `None` if they
/// are as desired. Labels that never came from Kubernetes stay, unless a label of the Kubernetes node has the same key.
pub(super) fn merge(found: &RecordedLabels, kubernetes: &Labels) -> Result<Option<RecordedLabels>, InvalidRecord> {
    let recorded: Option<Labels> = found
        .record
        .as_deref()
        .map(serde_json::from_str::<Option<Labels>>)
        .transpose()
        .map_err(InvalidRecord)?
        .flatten();
    let mut labels = found.labels.clone();
    labels.retain(|key, _| {
        kubernetes.contains_key(key) || recorded.as_ref().is_none_or(|recorded| !recorded.contains_key(key))
    });
    labels.extend(kubernetes.clone());
    if labels == found.labels {
        return Ok(None);
    }
    // A map of strings can always be serialized.
    let record = serde_json::to_string(kubernetes).map_err(InvalidRecord)?;
    Ok(Some(RecordedLabels { labels, record: Some(record) }))
}

/// The cached labels.
#[derive(Debug, Default)]
pub struct NodeLabelCache {
    kubernetes: Cache<ObjectKey, Labels>,
    calico: Cache<ObjectKey, (ObjectKey, RecordedLabels)>,
    names: NodeNames,
}

impl NodeLabelCache {
    /// Applies an event. Returns the Calico nodes to reconcile. Labels of a deleted Kubernetes node stay on the Calico
    /// node (KC-478).
    pub(super) fn apply_kubernetes_node(&mut self, event: &Event<'_, Node>) -> Vec<ObjectKey> {
        let changed = self.kubernetes.apply(event, |node| Some(node.labels.clone()));
        changed.iter().flat_map(|key| self.names.calico(key)).cloned().collect()
    }

    /// Applies an event. Returns the nodes to reconcile.
    pub(super) fn apply_calico_node(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<ObjectKey> {
        let changed = self.calico.apply(event, |entry| {
            Some((ObjectKey::global(entry.value.spec.kubernetes_name()?), RecordedLabels::new(&entry.value)))
        });
        for key in &changed {
            self.names.set(key, self.calico.get(key).map(|(kubernetes, _)| kubernetes.clone()));
        }
        changed
    }

    /// Returns every Calico node that names a Kubernetes node.
    pub(super) fn nodes(&self) -> Vec<ObjectKey> {
        self.names.all().cloned().collect()
    }

    /// Returns the node's name and labels in Kubernetes, and its labels in Calico. Returns `None` unless both nodes are
    /// cached.
    pub(super) fn labels_of(&self, calico: &ObjectKey) -> Option<(ObjectKey, Labels, RecordedLabels)> {
        let (kubernetes, recorded) = self.calico.get(calico)?;
        Some((kubernetes.clone(), self.kubernetes.get(kubernetes)?.clone(), recorded.clone()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn found(pairs: &[(&str, &str)], record: Option<&str>) -> RecordedLabels {
        RecordedLabels { labels: labels(pairs), record: record.map(str::to_owned) }
    }

    #[test]
    fn labels_come_change_and_go() {
        let first = merge(&found(&[("own", "1")], None), &labels(&[("a", "1"), ("b", "1")])).unwrap().unwrap();
        assert_eq!(first, found(&[("a", "1"), ("b", "1"), ("own", "1")], Some(r#"{"a":"1","b":"1"}"#)));
        let second = merge(&first, &labels(&[("b", "2"), ("c", "3")])).unwrap().unwrap();
        assert_eq!(second, found(&[("b", "2"), ("c", "3"), ("own", "1")], Some(r#"{"b":"2","c":"3"}"#)));
        assert_eq!(merge(&second, &labels(&[("b", "2"), ("c", "3")])).unwrap(), None);
    }

    #[test]
    fn a_users_label_of_that_name_is_overwritten() {
        let merged = merge(&found(&[("a", "mine")], None), &labels(&[("a", "theirs")])).unwrap().unwrap();
        assert_eq!(merged.labels, labels(&[("a", "theirs")]));
    }

    #[test]
    fn without_a_record_nothing_is_taken_away() {
        assert_eq!(merge(&found(&[("a", "1")], None), &labels(&[])).unwrap(), None);
        assert_eq!(merge(&found(&[("a", "1")], Some("null")), &labels(&[])).unwrap(), None);
        for record in ["no JSON", "[]", r#"{"a":1}"#] {
            assert!(merge(&found(&[("a", "1")], Some(record)), &labels(&[])).is_err(), "{record}");
        }
    }

    fn some_labels() -> impl Strategy<Value = Labels> {
        prop::collection::btree_map("[a-d]", "[xy]", 0..4)
    }

    proptest! {
        #[test]
        fn after_one_sync_there_is_nothing_to_do(
            own in some_labels(), rounds in prop::collection::vec(some_labels(), 1..4),
        ) {
            let mut node = RecordedLabels { labels: own.clone(), record: None };
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
