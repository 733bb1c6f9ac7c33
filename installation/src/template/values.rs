//! [`Values`]: the values of the placeholders in a template.

use libcalico::variables::Variables;
use netconf::conf::Secret;
use serde_json::Value;

use crate::environment::unquoted;

/// The placeholder of the pod's token.
pub const TOKEN_PLACEHOLDER: &str = "__SERVICEACCOUNT_TOKEN__";
const CERT: &str = "__ETCD_CERT_FILE__";
const CA: &str = "__ETCD_CA_CERT_FILE__";
const KEY: &str = "__ETCD_KEY_FILE__";

/// The placeholders for places without quotes, with their variables.
const UNQUOTED: [(&str, &str); 5] = [
    ("__LOG_FILE_MAX_SIZE__", "LOG_FILE_MAX_SIZE"),
    ("__LOG_FILE_MAX_AGE__", "LOG_FILE_MAX_AGE"),
    ("__LOG_FILE_MAX_COUNT__", "LOG_FILE_MAX_COUNT"),
    ("__CNI_MTU__", "CNI_MTU"),
    ("__REQUIRE_MTU_FILE__", "REQUIRE_MTU_FILE"),
];

/// The built-in template. It equals upstream's byte for byte, so that both installers produce the
/// same file (INST-100).
pub const BUILT_IN: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "1.0.0",
  "plugins": [
    {
      "type": "calico",
      "log_level": "__LOG_LEVEL__",
      "log_file_path": "__LOG_FILE_PATH__",
      "datastore_type": "__DATASTORE_TYPE__",
      "nodename": "__KUBERNETES_NODE_NAME__",
      "mtu": __CNI_MTU__,
      "ipam": {"type": "calico-ipam"},
      "policy": {"type": "k8s"},
      "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"},
      "require_mtu_file": __REQUIRE_MTU_FILE__,
      "calico_api_group": "__CALICO_API_GROUP__"
    },
    {
      "type": "portmap",
      "snat": true,
      "capabilities": {"portMappings": true}
    }
  ]
}"#;

/// The placeholders and their values, in upstream's order of replacement: a value may contain a
/// placeholder that is replaced later (INST-11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values(Vec<(&'static str, Secret)>);

/// The paths of the TLS files for etcd on the node, each empty if there is no such file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsPaths {
    /// The path of the CA certificates.
    pub ca: String,
    /// The path of the client certificate.
    pub cert: String,
    /// The path of the client certificate's key.
    pub key: String,
}

impl Values {
    /// Reads the values from the environment. `host_name` is the name of this machine in lower
    /// case.
    pub fn new(environment: &Variables<'_>, host_name: &str, net_dir: &str) -> Values {
        let text = |name, default| environment.text(name, default);
        let values = [
            ("__LOG_LEVEL__", text("LOG_LEVEL", "info")),
            (
                "__LOG_FILE_PATH__",
                text("LOG_FILE_PATH", "/var/log/calico/cni/cni.log"),
            ),
            (
                "__LOG_FILE_MAX_SIZE__",
                unquoted(environment, "LOG_FILE_MAX_SIZE", "100"),
            ),
            (
                "__LOG_FILE_MAX_AGE__",
                unquoted(environment, "LOG_FILE_MAX_AGE", "30"),
            ),
            (
                "__LOG_FILE_MAX_COUNT__",
                unquoted(environment, "LOG_FILE_MAX_COUNT", "10"),
            ),
            ("__DATASTORE_TYPE__", text("DATASTORE_TYPE", "kubernetes")),
            (
                "__KUBERNETES_NODE_NAME__",
                text("KUBERNETES_NODE_NAME", host_name),
            ),
            (
                "__KUBECONFIG_FILEPATH__",
                format!("{net_dir}/calico-kubeconfig"),
            ),
            ("__CNI_MTU__", unquoted(environment, "CNI_MTU", "1500")),
            (
                "__KUBERNETES_SERVICE_HOST__",
                text("KUBERNETES_SERVICE_HOST", ""),
            ),
            (
                "__KUBERNETES_SERVICE_PORT__",
                text("KUBERNETES_SERVICE_PORT", ""),
            ),
            (
                "__CALICO_API_GROUP__",
                text("CALICO_API_GROUP", "crd.projectcalico.org/v1"),
            ),
            (TOKEN_PLACEHOLDER, String::new()),
            (CERT, String::new()),
            (CA, String::new()),
            (KEY, String::new()),
            ("__ETCD_ENDPOINTS__", text("ETCD_ENDPOINTS", "")),
            ("__ETCD_DISCOVERY_SRV__", text("ETCD_DISCOVERY_SRV", "")),
            (
                "__REQUIRE_MTU_FILE__",
                unquoted(environment, "REQUIRE_MTU_FILE", "false"),
            ),
        ];
        Values(
            values
                .map(|(name, value)| (name, Secret::new(value)))
                .to_vec(),
        )
    }

    /// Sets the token of the pod.
    #[must_use]
    pub fn with_token(self, token: String) -> Values {
        self.with(TOKEN_PLACEHOLDER, token)
    }

    /// Sets the TLS files for etcd.
    #[must_use]
    pub fn with_tls(self, tls: TlsPaths) -> Values {
        self.with(CERT, tls.cert)
            .with(CA, tls.ca)
            .with(KEY, tls.key)
    }

    /// Returns the environment variable of a placeholder that a template has without quotes, if its
    /// value is not JSON.
    #[must_use]
    pub fn unparsable_variable(&self, template: &str) -> Option<&'static str> {
        let is_unparsable = |placeholder: &str| {
            let value = self
                .0
                .iter()
                .find(|(name, _)| *name == placeholder)
                .map(|(_, value)| value.reveal());
            template.contains(placeholder)
                && value.is_some_and(|text| serde_json::from_str::<Value>(text).is_err())
        };
        UNQUOTED
            .iter()
            .find(|(placeholder, _)| is_unparsable(placeholder))
            .map(|(_, variable)| *variable)
    }

    fn with(mut self, placeholder: &str, value: String) -> Values {
        if let Some((_, secret)) = self.0.iter_mut().find(|(name, _)| *name == placeholder) {
            *secret = Secret::new(value);
        }
        self
    }

    /// Replaces the placeholders in a template and leaves all other bytes as they are.
    #[must_use]
    pub fn fill(&self, template: &str) -> String {
        let mut text = template.to_owned();
        for (name, value) in &self.0 {
            if text.contains(name) {
                text = text.replace(name, &escaped(value.reveal()));
            }
        }
        text
    }
}

/// Escapes a value for a place between quotes in JSON.
fn escaped(value: &str) -> String {
    let quoted = Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
