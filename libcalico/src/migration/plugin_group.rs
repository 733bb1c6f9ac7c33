//! [`plugin_group`]: the API group that the network configuration of an installer makes Calico's
//! plugins use.

use serde_json::{Map, Value};

use crate::kubernetes::ApiGroup;

/// The API group that Calico's plugins use on the nodes of an installer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginGroup {
    /// The plugins determine the group in each call. They follow a migration, if they are this
    /// project's.
    Follows,
    /// `projectcalico.org/v3`.
    V3,
    /// `crd.projectcalico.org/v1`.
    V1,
    /// The group cannot be determined. The text says why.
    Unknown(String),
}

/// The variable of the installer with the template of the network configuration.
const TEMPLATE: &str = "CNI_NETWORK_CONFIG";
/// The placeholder in a template for the variable `CALICO_API_GROUP`.
const PLACEHOLDER: &str = "__CALICO_API_GROUP__";
/// The key of the group in the configuration of a plugin.
const KEY: &str = "calico_api_group";

/// Returns the group that an installer gives Calico's plugins. `variable` is its
/// `CALICO_API_GROUP`, or `None` if that is not set: then the installer uses v1 (MIG-74).
/// `template` is its `CNI_NETWORK_CONFIG`, or `None` if that is not set: then the installer uses
/// the built-in template, which contains the placeholder.
pub fn plugin_group(variable: Option<&str>, template: Option<&str>) -> PluginGroup {
    let variable = variable.unwrap_or(ApiGroup::CrdV1.api_version());
    let Some(template) = template.filter(|template| !template.is_empty()) else {
        return group_of(variable);
    };
    let Ok(configuration) = serde_json::from_str::<Value>(&filled(template, variable)) else {
        return unknown("is not JSON with its placeholders replaced");
    };
    let mut groups = Vec::new();
    collect(&configuration, &mut groups);
    PluginGroup::worst(groups).unwrap_or_else(|| unknown("names neither calico nor calico-ipam"))
}

impl PluginGroup {
    /// Returns the group of a node with several plugins: a node follows only if each of its plugins
    /// does. Returns `None` without any plugin.
    pub fn worst(groups: impl IntoIterator<Item = PluginGroup>) -> Option<PluginGroup> {
        groups.into_iter().max_by_key(|group| match group {
            PluginGroup::Follows => 0,
            PluginGroup::V3 => 1,
            PluginGroup::Unknown(_) => 2,
            PluginGroup::V1 => 3,
        })
    }
}

fn unknown(problem: &str) -> PluginGroup {
    PluginGroup::Unknown(format!("{TEMPLATE} {problem}"))
}

fn group_of(text: &str) -> PluginGroup {
    match ApiGroup::from_config(text) {
        None => PluginGroup::Follows,
        Some(ApiGroup::V3) => PluginGroup::V3,
        Some(ApiGroup::CrdV1) => PluginGroup::V1,
    }
}

/// Replaces the placeholders of a template. Those of numbers and Booleans are not quoted, so each
/// but that of the group becomes a number.
fn filled(template: &str, variable: &str) -> String {
    let quoted = Value::from(variable).to_string();
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("__") {
        text.push_str(&rest[..start]);
        rest = &rest[start..];
        let length = rest
            .find(|c: char| !matches!(c, 'A'..='Z' | '0'..='9' | '_'))
            .unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        if word == PLACEHOLDER {
            text.push_str(&quoted[1..quoted.len() - 1]);
        } else if word.len() > 4 && word.ends_with("__") {
            text.push('0');
        } else {
            text.push_str(word);
        }
        rest = after;
    }
    text + rest
}

/// Adds the groups of all plugins in a configuration that use Calico's datastore.
fn collect(value: &Value, groups: &mut Vec<PluginGroup>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, groups)),
        Value::Object(fields) => {
            let mut ipam = values(fields, "ipam").filter_map(Value::as_object);
            let is_calico =
                has_type(fields, "calico") || ipam.any(|ipam| has_type(ipam, "calico-ipam"));
            if is_calico {
                // A missing key is an empty one.
                groups.push(
                    PluginGroup::worst(values(fields, KEY).map(group_in))
                        .unwrap_or(PluginGroup::Follows),
                );
            }
            fields.values().for_each(|value| collect(value, groups));
        }
        _ => {}
    }
}

fn group_in(value: &Value) -> PluginGroup {
    match value {
        Value::Null => PluginGroup::Follows,
        Value::String(text) => group_of(text),
        _ => unknown("has a calico_api_group that is not a text"),
    }
}

fn has_type(plugin: &Map<String, Value>, program: &str) -> bool {
    values(plugin, "type").any(|kind| kind == program)
}

/// Returns the values under a key in any letter case, because Go ignores the case.
fn values<'f>(fields: &'f Map<String, Value>, name: &'f str) -> impl Iterator<Item = &'f Value> {
    fields
        .iter()
        .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's built-in template, shortened.
    const BUILT_IN: &str = r#"{"name": "k8s-pod-network", "plugins": [
        {"type": "calico", "mtu": __CNI_MTU__, "nodename": "__KUBERNETES_NODE_NAME__", "ipam": {"type": "calico-ipam"},
         "require_mtu_file": __REQUIRE_MTU_FILE__, "calico_api_group": "__CALICO_API_GROUP__"},
        {"type": "portmap", "snat": true}]}"#;

    fn plugin(more: &str) -> String {
        format!(
            r#"{{"plugins": [{{"type": "calico", "mtu": __CNI_MTU__{more}}}, {{"type": "portmap"}}]}}"#
        )
    }

    #[test]
    fn placeholder_means_the_variable() {
        for template in [None, Some(""), Some(BUILT_IN)] {
            for (variable, group) in [
                (None, PluginGroup::V1),
                (Some(""), PluginGroup::Follows),
                (Some("projectcalico.org/V3"), PluginGroup::V3),
                (Some("crd.projectcalico.org/v1"), PluginGroup::V1),
                (Some("nonsense \" \\"), PluginGroup::V1),
            ] {
                assert_eq!(
                    plugin_group(variable, template),
                    group,
                    "{variable:?} {template:?}"
                );
            }
        }
    }

    #[test]
    fn written_group_overrides_the_variable() {
        for (more, group) in [
            ("", PluginGroup::Follows),
            (r#", "calico_api_group": """#, PluginGroup::Follows),
            (r#", "calico_api_group": null"#, PluginGroup::Follows),
            (
                r#", "Calico_API_Group": "projectcalico.org/v3""#,
                PluginGroup::V3,
            ),
            (
                r#", "calico_api_group": "crd.projectcalico.org/v1""#,
                PluginGroup::V1,
            ),
            (
                r#", "calico_api_group": "", "CALICO_API_GROUP": "v1""#,
                PluginGroup::V1,
            ),
        ] {
            for variable in [None, Some(""), Some("projectcalico.org/v3")] {
                assert_eq!(
                    plugin_group(variable, Some(&plugin(more))),
                    group,
                    "{more} {variable:?}"
                );
            }
        }
    }

    #[test]
    fn each_plugin_that_uses_the_datastore_counts() {
        let v1 = r#""calico_api_group": "crd.projectcalico.org/v1""#;
        for template in [
            format!(r#"{{"type": "macvlan", "ipam": {{"type": "calico-ipam"}}, {v1}}}"#),
            format!(
                r#"{{"plugins": [{{"type": "flannel", "delegate": {{"type": "calico", {v1}}}}}]}}"#
            ),
            format!(r#"{{"plugins": [{{"type": "calico"}}, {{"type": "calico", {v1}}}]}}"#),
        ] {
            assert_eq!(
                plugin_group(Some(""), Some(&template)),
                PluginGroup::V1,
                "{template}"
            );
        }
        let other =
            format!(r#"{{"plugins": [{{"type": "calico"}}, {{"type": "portmap", {v1}}}]}}"#);
        assert_eq!(plugin_group(None, Some(&other)), PluginGroup::Follows);
    }

    #[test]
    fn unreadable_template_is_unknown() {
        for (template, problem) in [
            ("{", "is not JSON"),
            (
                r#"{"plugins": [{"type": "flannel"}]}"#,
                "names neither calico nor calico-ipam",
            ),
            (plugin(r#", "calico_api_group": 3"#).as_str(), "not a text"),
        ] {
            match plugin_group(Some(""), Some(template)) {
                PluginGroup::Unknown(reason) => assert!(reason.contains(problem), "{reason}"),
                other => panic!("{template}: {other:?}"),
            }
        }
    }
}
