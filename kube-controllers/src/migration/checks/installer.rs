//! [`plugin_group_of`]: the API group that a container which installs plugins gives to them.

use libcalico::migration::{PluginGroup, plugin_group};
use serde_json::Value;

use super::environment::{ConfigMaps, Variable, variable};

const NAME: &str = "install-cni";
pub(super) const GROUP: &str = "CALICO_API_GROUP";
const TEMPLATE: &str = "CNI_NETWORK_CONFIG";
/// The variable with a file of the template, which precedes [`TEMPLATE`].
const TEMPLATE_FILE: &str = "CNI_NETWORK_CONFIG_FILE";

/// Returns true if a container installs Calico's plugins and their configuration.
pub(super) fn is_installer(container: &Value, config_maps: &ConfigMaps) -> bool {
    container["name"] == NAME || variable(container, TEMPLATE, config_maps) != Variable::Unset
}

/// Returns the group in the configuration that the container installs.
pub(super) fn plugin_group_of(container: &Value, config_maps: &ConfigMaps) -> PluginGroup {
    let read = |name| match variable(container, name, config_maps) {
        Variable::Unset => Ok(None),
        Variable::Text(text) => Ok(Some(text)),
        Variable::Unknown(reason) => Err(PluginGroup::Unknown(reason)),
    };
    match (read(GROUP), read(TEMPLATE), read(TEMPLATE_FILE)) {
        (_, _, Ok(Some(file))) if !file.is_empty() => {
            PluginGroup::Unknown(format!("the template is in the file {file} ({TEMPLATE_FILE})"))
        }
        (Ok(group), Ok(template), Ok(_)) => plugin_group(group.as_deref(), template.as_deref()),
        (Err(unknown), _, _) | (_, Err(unknown), _) | (_, _, Err(unknown)) => unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(environment: Value) -> PluginGroup {
        plugin_group_of(&json!({ "name": NAME, "env": environment }), &ConfigMaps::new())
    }

    #[test]
    fn group_follows_from_variable_and_template() {
        let template = r#"{"plugins": [{"type": "calico"}]}"#;
        let v1 = r#"{"plugins": [{"type": "calico", "calico_api_group": "crd.projectcalico.org/v1"}]}"#;
        for (environment, expected) in [
            (json!([]), PluginGroup::V1),
            (json!([{ "name": GROUP, "value": "" }]), PluginGroup::Follows),
            (json!([{ "name": GROUP, "value": "projectcalico.org/v3" }]), PluginGroup::V3),
            (json!([{ "name": TEMPLATE, "value": template }]), PluginGroup::Follows),
            (json!([{ "name": GROUP, "value": "" }, { "name": TEMPLATE, "value": v1 }]), PluginGroup::V1),
            (json!([{ "name": GROUP, "value": "" }, { "name": TEMPLATE_FILE, "value": "" }]), PluginGroup::Follows),
        ] {
            assert_eq!(group(environment.clone()), expected, "{environment}");
        }
    }

    #[test]
    fn variable_or_template_that_no_object_shows_is_unknown() {
        let secret = json!({ "secretKeyRef": { "name": "s", "key": "k" } });
        for (environment, reason) in [
            (json!([{ "name": TEMPLATE_FILE, "value": "/t" }]), "the template is in the file /t"),
            (json!([{ "name": GROUP, "valueFrom": secret.clone() }]), "CALICO_API_GROUP is neither"),
            (json!([{ "name": TEMPLATE, "valueFrom": secret.clone() }]), "CNI_NETWORK_CONFIG is neither"),
            (json!([{ "name": TEMPLATE_FILE, "valueFrom": secret }]), "CNI_NETWORK_CONFIG_FILE is neither"),
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
        assert!(is_installer(json!({ "name": "cni-agent", "env": [{ "name": TEMPLATE, "value": "{}" }] })));
        assert!(!is_installer(json!({ "name": "calico-node", "env": [{ "name": GROUP, "value": "" }] })));
    }
}
