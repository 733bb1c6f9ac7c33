//! [`Workload`]: a DaemonSet or a Deployment whose programs use Calico's objects.

use std::collections::BTreeSet;

use kube_controllers::rollout::{DAEMON_SETS, DEPLOYMENTS, Rollout, RolloutState};
use libcalico::kubernetes::{ApiGroup, Location, PODS, Resource};
use libcalico::migration::{PluginGroup, plugin_group};
use serde_json::Value;

use super::super::report::CONFIG_MAPS;
use super::super::requests::{Problem, Requests};
use super::Checked;
use super::environment::{ConfigMaps, Variable, config_maps_of, variable};

pub(super) const PLUGINS: Program = Program {
    resource: DAEMON_SETS,
    name: "calico-cni",
};
pub(super) const NODE: Program = Program {
    resource: DAEMON_SETS,
    name: "calico-node",
};
pub(super) const CANAL: Program = Program {
    resource: DAEMON_SETS,
    name: "canal",
};
pub(super) const TYPHA: Program = Program {
    resource: DEPLOYMENTS,
    name: "calico-typha",
};

/// The name of the container that installs the plugins.
const INSTALLER: &str = "install-cni";
const GROUP: &str = "CALICO_API_GROUP";
const TEMPLATE: &str = "CNI_NETWORK_CONFIG";
/// The variable with a file of the template, which precedes [`TEMPLATE`].
const TEMPLATE_FILE: &str = "CNI_NETWORK_CONFIG_FILE";

/// A name under which a workload of Calico may exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Program {
    resource: Resource,
    pub(super) name: &'static str,
}

/// An existing workload, with the ConfigMaps from which its containers get variables.
pub(super) struct Workload {
    pub(super) program: Program,
    object: Value,
    state: RolloutState,
    config_maps: ConfigMaps,
}

impl Workload {
    /// Reads the workload in the namespace of Calico. Returns `None` if it is missing.
    pub(super) async fn read(
        context: &Checked<'_>,
        program: Program,
    ) -> Result<Option<Self>, Problem> {
        let rollout = Rollout::of(context.namespace, program.resource, program.name);
        let Some(object) = context.requests.get(rollout.location()).await? else {
            return Ok(None);
        };
        let state = rollout.state_of(&object);
        let mut workload = Workload {
            program,
            object,
            state,
            config_maps: ConfigMaps::new(),
        };
        let names: BTreeSet<String> = workload.containers().flat_map(config_maps_of).collect();
        for name in names {
            let at = Location::namespaced(CONFIG_MAPS, context.namespace, &name);
            if let Some(found) = context.requests.get(&at).await? {
                workload.config_maps.insert(name, found);
            }
        }
        Ok(Some(workload))
    }

    /// Returns the group that the workload gives to plugins; `None` if it does not install plugins.
    pub(super) fn plugin_group(&self) -> Option<PluginGroup> {
        PluginGroup::worst(
            self.installers()
                .map(|container| plugin_group_of(container, &self.config_maps)),
        )
    }

    /// Returns true if a container other than an init container is configured to use v3 (MIG-63).
    pub(super) fn is_set_to_v3(&self) -> bool {
        containers_in(&self.object, "containers").any(|container| {
            match variable(container, GROUP, &self.config_maps) {
                Variable::Text(text) => ApiGroup::from_config(&text) == Some(ApiGroup::V3),
                Variable::Unset | Variable::Unknown(_) => false,
            }
        })
    }

    /// Returns the missing part of the roll-out. A pod on a wrong node is no reason to wait.
    pub(super) fn missing_rollout(&self) -> Option<String> {
        let name = self.program.name;
        // Upstream's texts, without their first words.
        match self.state {
            RolloutState::NotBegun => Some(format!("{name} rollout to begin")),
            RolloutState::Updating { updated, desired } => {
                Some(format!("{name} rollout ({updated}/{desired} updated)"))
            }
            RolloutState::Unavailable(count) => {
                Some(format!("{name} pods to be available ({count} unavailable)"))
            }
            RolloutState::Misplaced(_) | RolloutState::Complete => None,
        }
    }

    /// Returns the reason to wait if a pod was created before the last change of a ConfigMap from
    /// which it installs the plugins' configuration: the pod has installed the former content.
    pub(super) async fn outdated_pods(
        &self,
        requests: &Requests,
    ) -> Result<Option<String>, Problem> {
        let names: BTreeSet<String> = self.installers().flat_map(config_maps_of).collect();
        let config_maps: Vec<_> = self
            .config_maps
            .iter()
            .filter(|(name, _)| names.contains(*name))
            .collect();
        if config_maps.is_empty() {
            return Ok(None);
        }
        let metadata = &self.object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let creation = |pod: &Value| creation_of_pod(pod, &metadata["uid"]).map(str::to_owned);
        let created = requests
            .selected(&PODS, namespace, &self.selector(), creation)
            .await?;
        let outdated = config_maps.into_iter().find_map(|(name, config_map)| {
            let changed = time_of_change(&config_map["metadata"]);
            let count = created
                .iter()
                .filter(|created| created.as_str() < changed)
                .count();
            (count > 0).then_some((name, count))
        });
        Ok(outdated.map(|(config_map, count)| {
            let Program { name, resource } = self.program;
            let kind = resource.kind.to_ascii_lowercase();
            format!(
                "{count} pods of {name} are older than ConfigMap {config_map}; \
                 kubectl -n {namespace} rollout restart {kind}/{name}"
            )
        }))
    }

    fn containers(&self) -> impl Iterator<Item = &Value> {
        ["initContainers", "containers"]
            .into_iter()
            .flat_map(move |field| containers_in(&self.object, field))
    }

    fn installers(&self) -> impl Iterator<Item = &Value> {
        self.containers()
            .filter(move |container| is_installer(container, &self.config_maps))
    }

    /// Returns the labels of the workload's pods.
    fn selector(&self) -> String {
        let labels = self.object["spec"]["selector"]["matchLabels"]
            .as_object()
            .into_iter()
            .flatten();
        let labels = labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
        labels.collect::<Vec<String>>().join(",")
    }
}

fn containers_in<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object["spec"]["template"]["spec"][field]
        .as_array()
        .into_iter()
        .flatten()
}

/// Returns the creation time of a pod of the workload with this uid; `None` for a pod that is being
/// deleted, or of another owner.
fn creation_of_pod<'a>(metadata: &'a Value, uid: &Value) -> Option<&'a str> {
    let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    let counts =
        owners.any(|owner| owner["uid"] == *uid) && metadata["deletionTimestamp"].is_null();
    metadata["creationTimestamp"].as_str().filter(|_| counts)
}

/// Returns the time of the last change. Times of the API server are in UTC and whole seconds, so
/// their texts have the order of the times.
fn time_of_change(metadata: &Value) -> &str {
    let written = metadata["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry["time"].as_str());
    let created = metadata["creationTimestamp"].as_str();
    written.chain(created).max().unwrap_or_default()
}

/// Returns true if a container installs Calico's plugins and their configuration.
fn is_installer(container: &Value, config_maps: &ConfigMaps) -> bool {
    container["name"] == INSTALLER || variable(container, TEMPLATE, config_maps) != Variable::Unset
}

/// Returns the group in the configuration that the container installs.
fn plugin_group_of(container: &Value, config_maps: &ConfigMaps) -> PluginGroup {
    let read = |name| match variable(container, name, config_maps) {
        Variable::Unset => Ok(None),
        Variable::Text(text) => Ok(Some(text)),
        Variable::Unknown(reason) => Err(PluginGroup::Unknown(reason)),
    };
    match (read(GROUP), read(TEMPLATE), read(TEMPLATE_FILE)) {
        (_, _, Ok(Some(file))) if !file.is_empty() => PluginGroup::Unknown(format!(
            "the template is in the file {file} ({TEMPLATE_FILE})"
        )),
        (Ok(group), Ok(template), Ok(_)) => plugin_group(group.as_deref(), template.as_deref()),
        (Err(unknown), _, _) | (_, Err(unknown), _) | (_, _, Err(unknown)) => unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(environment: Value) -> PluginGroup {
        plugin_group_of(
            &json!({ "name": INSTALLER, "env": environment }),
            &ConfigMaps::new(),
        )
    }

    #[test]
    fn group_follows_from_variable_and_template() {
        let template = r#"{"plugins": [{"type": "calico"}]}"#;
        let v1 =
            r#"{"plugins": [{"type": "calico", "calico_api_group": "crd.projectcalico.org/v1"}]}"#;
        for (environment, expected) in [
            (json!([]), PluginGroup::V1),
            (
                json!([{ "name": GROUP, "value": "" }]),
                PluginGroup::Follows,
            ),
            (
                json!([{ "name": GROUP, "value": "projectcalico.org/v3" }]),
                PluginGroup::V3,
            ),
            (
                json!([{ "name": TEMPLATE, "value": template }]),
                PluginGroup::Follows,
            ),
            (
                json!([{ "name": GROUP, "value": "" }, { "name": TEMPLATE, "value": v1 }]),
                PluginGroup::V1,
            ),
            (
                json!([{ "name": GROUP, "value": "" }, { "name": TEMPLATE_FILE, "value": "" }]),
                PluginGroup::Follows,
            ),
        ] {
            assert_eq!(group(environment.clone()), expected, "{environment}");
        }
    }

    #[test]
    fn variable_or_template_that_no_object_shows_is_unknown() {
        let secret = json!({ "secretKeyRef": { "name": "s", "key": "k" } });
        for (environment, reason) in [
            (
                json!([{ "name": TEMPLATE_FILE, "value": "/t" }]),
                "the template is in the file /t",
            ),
            (
                json!([{ "name": GROUP, "valueFrom": secret.clone() }]),
                "CALICO_API_GROUP is neither",
            ),
            (
                json!([{ "name": TEMPLATE, "valueFrom": secret.clone() }]),
                "CNI_NETWORK_CONFIG is neither",
            ),
            (
                json!([{ "name": TEMPLATE_FILE, "valueFrom": secret }]),
                "CNI_NETWORK_CONFIG_FILE is neither",
            ),
        ] {
            match group(environment.clone()) {
                PluginGroup::Unknown(found) => assert!(found.starts_with(reason), "{found}"),
                other => panic!("{environment}: {other:?}"),
            }
        }
    }

    #[test]
    fn installers_are_known_by_name_or_template() {
        let is_installer = |container: Value| is_installer(&container, &ConfigMaps::new());
        assert!(is_installer(json!({ "name": "install-cni" })));
        assert!(is_installer(
            json!({ "name": "cni-agent", "env": [{ "name": TEMPLATE, "value": "{}" }] })
        ));
        assert!(!is_installer(
            json!({ "name": "calico-node", "env": [{ "name": GROUP, "value": "" }] })
        ));
    }
}
