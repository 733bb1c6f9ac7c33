//! [`PlannedIpam`]: the IPAM plugin of the network configuration that `install-cni` is about to
//! write.
//!
//! The migration runs before `install-cni` (INST-78), so the configuration on the node's disk is
//! the former one and does not count.

use std::path::Path;

use libcalico::variables::Variables;
use netconf::{CniError, Code};
use os::atomic_file::regular_file;
use serde_json::{Map, Value};

/// The variable of `install-cni` with the template of the network configuration.
const TEXT: &str = "CNI_NETWORK_CONFIG";
/// The variable of `install-cni` with the path of the template in the container. It takes
/// precedence.
const FILE: &str = "CNI_NETWORK_CONFIG_FILE";

/// The IPAM plugin of the configuration that `install-cni` is about to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PlannedIpam {
    /// host-local, which keeps its addresses.
    HostLocal,
    /// Another plugin, usually `calico-ipam`.
    Other,
    /// An unknown plugin, for this reason.
    Unknown(String),
}

impl PlannedIpam {
    /// Reads the template as `install-cni` does, from a variable or from the file that a variable
    /// names.
    pub(super) fn read(variables: Variables<'_>) -> Self {
        match (variables.non_empty(FILE), variables.non_empty(TEXT)) {
            (Some(path), _) => match regular_file::utf8(Path::new(&path)) {
                Ok(template) => Self::of_template(&template, FILE),
                Err(error) => Self::Unknown(format!("{FILE}: {path}: {error}")),
            },
            (None, Some(template)) => Self::of_template(&template, TEXT),
            (None, None) => Self::Unknown(format!("{TEXT} is not set in this container")),
        }
    }

    /// Finds the plugin in a template that the variable `source` gives.
    fn of_template(template: &str, source: &str) -> Self {
        match serde_json::from_str(&without_placeholders(template)) {
            Ok(Value::Object(configuration)) if names_host_local(&configuration) => Self::HostLocal,
            Ok(Value::Object(_)) => Self::Other,
            Ok(_) => Self::Unknown(format!("the template in {source} is not a JSON object")),
            // The template may contain a token, so the parser's message is left out.
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                Self::Unknown(format!(
                    "the template in {source} is not valid JSON (line {line}, column {column})"
                ))
            }
        }
    }

    /// Refuses the migration if the addresses are to stay with host-local. Logs a warning if the
    /// plugin is unknown.
    pub(super) fn verify(&self) -> Result<(), CniError> {
        match self {
            Self::Other => Ok(()),
            Self::Unknown(reason) => {
                tracing::warn!(
                    reason,
                    "cannot verify that the next configuration uses calico-ipam; migrating anyway"
                );
                Ok(())
            }
            Self::HostLocal => {
                let problem = "the configuration that install-cni is about to write uses the IPAM \
                               plugin host-local";
                let advice = "nothing was changed; remove the component upgrade-ipam \
                              (cni.upgradeIpam), or write calico-ipam as the type of ipam in \
                              cni_network_config";
                Err(CniError::new(Code::INVALID_CONFIG, problem).with_details(advice))
            }
        }
    }
}

/// Returns true if Calico's plugin in a list, or a single plugin, has host-local as its IPAM
/// plugin.
fn names_host_local(configuration: &Map<String, Value>) -> bool {
    let uses_host_local = |plugin: &Map<String, Value>| {
        let ipam = field(plugin, "ipam").and_then(Value::as_object);
        ipam.and_then(|ipam| field(ipam, "type"))
            .is_some_and(|kind| kind == "host-local")
    };
    let Some(plugins) = field(configuration, "plugins") else {
        return uses_host_local(configuration);
    };
    let mut plugins = plugins
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object);
    plugins.any(|plugin| {
        field(plugin, "type").is_some_and(|kind| kind == "calico") && uses_host_local(plugin)
    })
}

/// Returns the value of a key, whose letters match in any case (CNI-63).
fn field<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(key))
        .map(|(_, value)| value)
}

/// Replaces each placeholder, such as `__CNI_MTU__`, by 0, because a template with bare
/// placeholders is not JSON.
fn without_placeholders(template: &str) -> String {
    let is_inside = |letter: char| matches!(letter, 'A'..='Z' | '0'..='9' | '_');
    let (mut text, mut rest) = (String::new(), template);
    while let Some(start) = rest.find("__") {
        let (before, word) = rest.split_at(start);
        let (word, after) = word.split_at(
            word.find(|letter: char| !is_inside(letter))
                .unwrap_or(word.len()),
        );
        let is_placeholder = word.len() > "____".len() && word.ends_with("__");
        text.extend([before, if is_placeholder { "0" } else { word }]);
        rest = after;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn planned(variables: &[(&str, &str)]) -> PlannedIpam {
        let lookup = |name: &str| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, text)| (*text).to_owned())
        };
        PlannedIpam::read(Variables::new(&lookup))
    }

    #[test]
    fn template_with_placeholders_is_understood() {
        let template = |ipam: &str| {
            format!(
                r#"{{ "name": "n", "plugins": [
                    {{ "type": "calico", "mtu": __CNI_MTU__, "nodename": "__KUBERNETES_NODE_NAME__", "ipam": {ipam},
                       "require_mtu_file": __REQUIRE_MTU_FILE__, "note": "a__b and __" }},
                    {{ "type": "portmap", "snat": true }} ] }}"#
            )
        };
        let host_local = template(r#"{ "type": "host-local", "subnet": "usePodCidr" }"#);
        assert_eq!(planned(&[(TEXT, &host_local)]), PlannedIpam::HostLocal);
        assert_eq!(
            planned(&[(TEXT, &template(r#"{ "type": "calico-ipam" }"#))]),
            PlannedIpam::Other
        );
        assert_eq!(
            without_placeholders("[__CNI_MTU__,a__b,__,____]__X__"),
            "[0,a__b,__,____]0"
        );
    }

    #[test]
    fn host_local_of_calicos_plugin_alone_counts() {
        for (template, expected) in [
            (
                r#"{ "Type": "calico", "IPAM": { "TYPE": "host-local" } }"#,
                PlannedIpam::HostLocal,
            ),
            (
                r#"{ "plugins": [{ "type": "calico" }] }"#,
                PlannedIpam::Other,
            ),
            (
                r#"{ "plugins": [{ "type": "bridge", "ipam": { "type": "host-local" } }] }"#,
                PlannedIpam::Other,
            ),
            (
                r#"{ "plugins": 7, "ipam": { "type": "host-local" } }"#,
                PlannedIpam::Other,
            ),
        ] {
            assert_eq!(planned(&[(TEXT, template)]), expected, "{template}");
        }
    }

    #[test]
    fn template_file_takes_precedence_over_the_variable() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(
            file.path(),
            r#"{ "type": "calico", "ipam": { "type": "host-local" } }"#,
        )
        .unwrap();
        let variables = [(TEXT, "{}"), (FILE, file.path().to_str().unwrap())];
        assert_eq!(planned(&variables), PlannedIpam::HostLocal);
    }

    #[test]
    fn unknown_configuration_has_a_reason_without_its_text() {
        for (variables, expected) in [
            (
                &[(TEXT, ""), (FILE, "")][..],
                "CNI_NETWORK_CONFIG is not set in this container",
            ),
            (&[], "CNI_NETWORK_CONFIG is not set in this container"),
            (
                &[(TEXT, "[1]")],
                "the template in CNI_NETWORK_CONFIG is not a JSON object",
            ),
            (
                &[(TEXT, "{ secret")],
                "the template in CNI_NETWORK_CONFIG is not valid JSON (line 1, column 3)",
            ),
            (
                &[(FILE, "/no/such")],
                "CNI_NETWORK_CONFIG_FILE: /no/such: No such file or directory (os error 2)",
            ),
        ] {
            let found = planned(variables);
            assert_eq!(found, PlannedIpam::Unknown(expected.to_owned()));
            assert_eq!(found.verify(), Ok(()));
        }
        let refused = PlannedIpam::HostLocal.verify().unwrap_err();
        assert_eq!(
            (
                refused.code,
                refused.details.starts_with("nothing was changed; remove")
            ),
            (Code::INVALID_CONFIG, true)
        );
    }
}
