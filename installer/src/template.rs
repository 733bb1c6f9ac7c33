//! The network configuration as a text with placeholders (INST-11..INST-14).

mod built_in;
mod findings;

pub use self::built_in::BUILT_IN;
pub use self::findings::{Finding, findings};
use crate::settings::read::Environment;
use serde_json::{Map, Value};

/// The placeholder of the pod's token.
pub const TOKEN: &str = "__SERVICEACCOUNT_TOKEN__";

/// Why a text is no network configuration. It may hold a token, so it is never shown (INST-12).
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// No JSON at all.
    #[error(
        "the CNI configuration is not valid JSON (line {line}, column {column}, after the placeholders were filled in)"
    )]
    Syntax {
        /// Where, from 1.
        line: usize,
        /// Where, from 1.
        column: usize,
    },
    /// JSON, but no object.
    #[error("the CNI configuration is not a JSON object")]
    NoObject,
}

/// What stands in the place of the placeholders.
#[derive(Clone, PartialEq, Eq)]
pub struct Values {
    /// In the order of replacement, upstream's: a value may hold placeholders that come after it.
    before: Vec<(&'static str, String)>,
    token: String,
    tls: Tls,
    after: Vec<(&'static str, String)>,
}

/// The paths on the node of the files for TLS with etcd; empty where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities.
    pub ca: String,
    /// Our certificate.
    pub cert: String,
    /// Its key.
    pub key: String,
}

impl Values {
    /// Those that the environment has. `host_name` is the name of this machine, in small letters.
    pub(crate) fn new(environment: &Environment<'_>, host_name: &str, net_dir: &str) -> Values {
        let text = |name, default| environment.text(name, default);
        Values {
            before: vec![
                ("__LOG_LEVEL__", text("LOG_LEVEL", "info")),
                ("__LOG_FILE_PATH__", text("LOG_FILE_PATH", "/var/log/calico/cni/cni.log")),
                ("__LOG_FILE_MAX_SIZE__", environment.bare("LOG_FILE_MAX_SIZE", "100")),
                ("__LOG_FILE_MAX_AGE__", environment.bare("LOG_FILE_MAX_AGE", "30")),
                ("__LOG_FILE_MAX_COUNT__", environment.bare("LOG_FILE_MAX_COUNT", "10")),
                ("__DATASTORE_TYPE__", text("DATASTORE_TYPE", "kubernetes")),
                ("__KUBERNETES_NODE_NAME__", text("KUBERNETES_NODE_NAME", host_name)),
                ("__KUBECONFIG_FILEPATH__", format!("{net_dir}/calico-kubeconfig")),
                ("__CNI_MTU__", environment.bare("CNI_MTU", "1500")),
                ("__KUBERNETES_SERVICE_HOST__", text("KUBERNETES_SERVICE_HOST", "")),
                ("__KUBERNETES_SERVICE_PORT__", text("KUBERNETES_SERVICE_PORT", "")),
                ("__CALICO_API_GROUP__", text("CALICO_API_GROUP", "crd.projectcalico.org/v1")),
            ],
            token: String::new(),
            tls: Tls::default(),
            after: vec![
                ("__ETCD_ENDPOINTS__", text("ETCD_ENDPOINTS", "")),
                ("__ETCD_DISCOVERY_SRV__", text("ETCD_DISCOVERY_SRV", "")),
                ("__REQUIRE_MTU_FILE__", environment.bare("REQUIRE_MTU_FILE", "false")),
            ],
        }
    }

    /// With the token of the pod, verbatim.
    #[must_use]
    pub fn with_token(self, token: String) -> Values {
        Values { token, ..self }
    }

    /// With the files for TLS with etcd.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Values {
        Values { tls, ..self }
    }

    /// Puts the values in the place of their placeholders. Nothing else changes: no blank, no line break, no order.
    #[must_use]
    pub fn fill(&self, template: &str) -> String {
        let middle = [
            (TOKEN, &self.token),
            ("__ETCD_CERT_FILE__", &self.tls.cert),
            ("__ETCD_CA_CERT_FILE__", &self.tls.ca),
            ("__ETCD_KEY_FILE__", &self.tls.key),
        ];
        let (before, after) = (self.before.iter(), self.after.iter());
        let all =
            before.map(|(name, value)| (*name, value)).chain(middle).chain(after.map(|(name, value)| (*name, value)));
        let mut text = template.to_owned();
        for (name, value) in all {
            if text.contains(name) {
                text = text.replace(name, &escaped(value));
            }
        }
        text
    }
}

// By hand: a token is a secret.
impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Values")
            .field("before", &self.before)
            .field("tls", &self.tls)
            .field("after", &self.after)
            .finish()
    }
}

/// As it stands between quotes in JSON. Numbers and truth values stay as they are.
fn escaped(value: &str) -> String {
    let quoted = Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The configuration that a text holds.
///
/// # Errors
/// It is no JSON object.
pub fn parse(text: &str) -> Result<Map<String, Value>, TemplateError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(TemplateError::NoObject),
        Err(error) => Err(TemplateError::Syntax { line: error.line(), column: error.column() }),
    }
}

/// The plugins of a configuration, in order: those of a list, or the one that the configuration itself is.
#[must_use]
pub fn plugins(conf: &Map<String, Value>) -> Vec<&Map<String, Value>> {
    match conf.get("plugins").and_then(Value::as_array) {
        Some(plugins) => plugins.iter().filter_map(Value::as_object).collect(),
        None if conf.contains_key("type") => vec![conf],
        None => Vec::new(),
    }
}

/// The `type` of a plugin: the name of its program.
#[must_use]
pub fn kind(plugin: &Map<String, Value>) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
