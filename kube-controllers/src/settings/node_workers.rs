//! [`note`]: the message about a `NODE_WORKERS` without effect. Upstream reads the variable and uses it for nothing, so
//! no value of it may end the process.

use super::controllers::ControllerName;
use super::environment::NodeWorkers;
use super::{Mode, Settings};

/// Returns a message if the value is invalid, or if no controller that runs with `settings` has work for more workers.
/// Garbage collection is not such a controller.
pub(super) fn note(given: &NodeWorkers, settings: &Settings, mode: Mode) -> Option<String> {
    let NodeWorkers { variable, text, value } = given;
    let text = text.trim();
    if let Err(error) = value {
        return Some(format!("{error}; 1 worker is in force"));
    }
    if !settings.enabled.contains(&ControllerName::Node) {
        return Some(format!("{variable}={text} has no effect: the controller node is not enabled"));
    }
    // The other controllers that use these workers copy labels and delete nodes, which only etcd needs.
    let is_used = mode == Mode::Etcd || settings.host_endpoints.enabled;
    (!is_used).then(|| {
        format!(
            "{variable}={text} has no effect: with the datastore kubernetes only automatic host endpoints use these \
             workers, and they are off; set GC_PARALLELISM for garbage collection"
        )
    })
}

#[cfg(test)]
mod tests {
    use libcalico::kubernetes::ApiGroup;

    use super::*;
    use crate::settings::{Environment, default_configuration, merge};

    /// Returns the number of workers in force, and the notes about them.
    fn merged(variables: &[(&str, &str)], mode: Mode) -> (usize, Vec<String>) {
        let found = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        let merged = merge(&Environment::read(found).unwrap(), &default_configuration(), mode);
        let notes = merged.notes.into_iter().filter(|note| note.starts_with("NODE_WORKERS")).collect();
        (merged.settings.workers_of(ControllerName::Node), notes)
    }

    #[test]
    fn node_workers_with_effect_are_not_noted() {
        assert_eq!(merged(&[("NODE_WORKERS", "4")], Mode::Etcd), (4, Vec::new()));
        let host_endpoints = [("NODE_WORKERS", "4"), ("AUTO_HOST_ENDPOINTS", "enabled")];
        assert_eq!(merged(&host_endpoints, Mode::Kubernetes(ApiGroup::V3)), (4, Vec::new()));
        for mode in [Mode::Etcd, Mode::Kubernetes(ApiGroup::CrdV1)] {
            assert_eq!(merged(&[], mode), (1, Vec::new()));
        }
    }

    #[test]
    fn node_workers_without_effect_are_noted_with_the_reason() {
        let (_, notes) = merged(&[("NODE_WORKERS", "4")], Mode::Kubernetes(ApiGroup::CrdV1));
        assert!(matches!(&notes[..], [note] if note.starts_with("NODE_WORKERS=4 has no effect: with the datastore")));
        let others = [("NODE_WORKERS", "4"), ("ENABLED_CONTROLLERS", "policy")];
        let (_, notes) = merged(&others, Mode::Etcd);
        assert_eq!(notes, ["NODE_WORKERS=4 has no effect: the controller node is not enabled"]);
    }

    #[test]
    fn invalid_node_workers_are_noted_and_count_as_1() {
        for text in ["0", "many", "-1"] {
            let (workers, notes) = merged(&[("NODE_WORKERS", text)], Mode::Etcd);
            let expected = format!("NODE_WORKERS: `{text}` is not a whole number from 1 on; 1 worker is in force");
            assert_eq!((workers, notes), (1, vec![expected]));
        }
    }
}
