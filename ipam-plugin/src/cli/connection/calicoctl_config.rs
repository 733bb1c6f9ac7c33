//! The configuration file of calicoctl: a document of kind `CalicoAPIConfig`, in YAML or JSON.
//!
//! As in calicoctl, the file replaces the variables of the datastore. `HOME` still locates the
//! default kubeconfig (DS-9), and the variables of TLS still apply to etcd (DS-7).

use std::path::Path;

use datastore::config::{InlineKubeconfig, Overrides};
use datastore::{DatastoreConfig, DatastoreSettings};
use libcalico::failure::{Failure, OrFail};
use libcalico::variables::Variables;
use libcalico::yaml::documents;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::unlimited;
use crate::cli::input_file::{self, MAX_CONFIGURATION};

/// The document. Unknown and duplicate keys are errors.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct CalicoctlConfig {
    api_version: Option<String>,
    kind: Option<String>,
    #[serde(rename = "metadata")]
    _metadata: IgnoredAny,
    spec: Option<CalicoctlSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct CalicoctlSpec {
    datastore_type: Option<String>,
    etcd_endpoints: Option<String>,
    etcd_discovery_srv: Option<String>,
    etcd_username: Option<String>,
    etcd_password: Option<String>,
    etcd_key_file: Option<String>,
    etcd_cert_file: Option<String>,
    #[serde(rename = "etcdCACertFile")]
    etcd_ca_cert_file: Option<String>,
    etcd_key: Option<String>,
    etcd_cert: Option<String>,
    #[serde(rename = "etcdCACert")]
    etcd_ca_cert: Option<String>,
    kubeconfig: Option<String>,
    kubeconfig_inline: Option<String>,
    #[serde(rename = "k8sAPIEndpoint")]
    k8s_api_endpoint: Option<String>,
    k8s_key_file: Option<String>,
    k8s_cert_file: Option<String>,
    #[serde(rename = "k8sCAFile")]
    k8s_ca_file: Option<String>,
    #[serde(rename = "k8sAPIToken")]
    k8s_api_token: Option<String>,
    #[serde(rename = "k8sInsecureSkipTLSVerify")]
    k8s_insecure_skip_tls_verify: Option<bool>,
    #[serde(rename = "k8sClientQPS")]
    k8s_client_qps: Option<f64>,
    k8s_client_burst: Option<i32>,
    k8s_current_context: Option<String>,
    #[serde(rename = "calicoAPIGroup")]
    calico_api_group: Option<String>,
    /// Read by Felix only.
    #[serde(rename = "k8sDisableNodePoll")]
    _k8s_disable_node_poll: Option<bool>,
    /// Changes the tunnel addresses that upstream's client derives, which no command here reads.
    #[serde(rename = "usePodCIDR")]
    _use_pod_cidr: Option<bool>,
}

/// Reads the datastore from the file at `path`. `context` replaces the file's context. Of the
/// environment, only the variables that no key of the file replaces are read. An error contains no
/// value of a key that may be a secret.
pub(super) fn read(
    path: &Path,
    context: Option<&str>,
    variables: Variables<'_>,
) -> Result<DatastoreConfig, Failure> {
    let file = format!("configuration of calicoctl {}", path.display());
    let text = input_file::text(path, MAX_CONFIGURATION).or_fail(&file)?;
    let config = parse(&text).and_then(|spec| spec.resolve(context, variables));
    config.or_fail(&file)
}

fn parse(text: &str) -> Result<CalicoctlSpec, Failure> {
    let syntax = |message: String| Failure::new(without_value(&message));
    // The YAML parser accepts JSON, but no tabs.
    let config: CalicoctlConfig = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|error| syntax(error.to_string()))?
    } else {
        let document = documents(text).map_err(|error| syntax(error.to_string()))?;
        CalicoctlConfig::deserialize(document).map_err(|error| syntax(error.to_string()))?
    };
    match (
        config.api_version.unwrap_or_default(),
        config.kind.unwrap_or_default(),
    ) {
        (version, _) if version != "projectcalico.org/v3" => Err(unknown(
            "apiVersion",
            &version,
            "write projectcalico.org/v3",
        )),
        (_, kind) if kind != "CalicoAPIConfig" => {
            Err(unknown("kind", &kind, "write CalicoAPIConfig"))
        }
        _ => Ok(config.spec.unwrap_or_default()),
    }
}

fn unknown(key: &str, value: &str, way_out: &'static str) -> Failure {
    Failure::new(format_args!("{key} is `{value}`")).way_out(way_out)
}

/// Removes the value that serde quotes in an error about a value of the wrong type, because the
/// value may be a secret.
fn without_value(message: &str) -> String {
    let is_about_value = ["invalid type: ", "invalid value: "]
        .iter()
        .any(|words| message.contains(words));
    // A text is quoted by ", and a number by `.
    match (message.find(['"', '`']), message.rfind(", expected")) {
        (Some(begin), Some(end)) if is_about_value && begin < end => {
            format!("{}{}", message[..begin].trim_end(), &message[end..])
        }
        _ => message.to_owned(),
    }
}

impl CalicoctlSpec {
    fn resolve(
        self,
        context: Option<&str>,
        variables: Variables<'_>,
    ) -> Result<DatastoreConfig, Failure> {
        let given = |text: Option<String>| text.unwrap_or_default();
        let etcd_endpoints = given(self.etcd_endpoints);
        let datastore_type = match given(self.datastore_type) {
            chosen if ["etcdv3", "kubernetes"].contains(&chosen.as_str()) => chosen,
            chosen if !chosen.is_empty() => {
                let way_out = "write etcdv3 or kubernetes";
                return Err(unknown("datastoreType", &chosen, way_out));
            }
            // A discovery domain alone does not select etcd (DS-8).
            _ if etcd_endpoints.is_empty() => "kubernetes".to_owned(),
            _ => "etcdv3".to_owned(),
        };
        let settings = DatastoreSettings {
            datastore_type,
            etcd_endpoints,
            etcd_discovery_srv: given(self.etcd_discovery_srv),
            etcd_ca_cert_file: given(self.etcd_ca_cert_file),
            etcd_cert_file: given(self.etcd_cert_file),
            etcd_key_file: given(self.etcd_key_file),
            etcd_ca_cert: given(self.etcd_ca_cert),
            etcd_cert: given(self.etcd_cert),
            etcd_key: given(self.etcd_key),
            kubeconfig: given(self.kubeconfig),
            k8s_api_root: given(self.k8s_api_endpoint),
            k8s_auth_token: given(self.k8s_api_token),
            k8s_client_certificate: given(self.k8s_cert_file),
            k8s_client_key: given(self.k8s_key_file),
            k8s_certificate_authority: given(self.k8s_ca_file),
            calico_api_group: given(self.calico_api_group),
            burst: self.k8s_client_burst.unwrap_or_default(),
            ..DatastoreSettings::default()
        };
        let rate = self.k8s_client_qps.filter(|rate| *rate != 0.0);
        // The settings that `DatastoreSettings` lacks. They replace the environment.
        let others = [
            ("ETCD_USERNAME", self.etcd_username),
            ("ETCD_PASSWORD", self.etcd_password),
            (
                "K8S_INSECURE_SKIP_TLS_VERIFY",
                self.k8s_insecure_skip_tls_verify
                    .map(|skip| skip.to_string()),
            ),
            (
                "K8S_CLIENT_QPS",
                rate.map(|rate| rate.to_string())
                    .or_else(|| unlimited("K8S_CLIENT_QPS")),
            ),
            (
                "K8S_CURRENT_CONTEXT",
                context.map(str::to_owned).or(self.k8s_current_context),
            ),
            ("HOME", variables.get("HOME")),
            ("TLS_MIN_VERSION", variables.get("TLS_MIN_VERSION")),
            ("TLS_CIPHER_SUITES", variables.get("TLS_CIPHER_SUITES")),
        ];
        let lookup = |name: &str| others.iter().find(|(known, _)| *known == name)?.1.clone();
        let mut config = DatastoreConfig::new(&settings, Variables::new(&lookup))?;
        let inline = self.kubeconfig_inline.filter(|text| !text.is_empty());
        match &mut config {
            DatastoreConfig::Kubernetes(kubernetes) => {
                if let Some(inline) = inline {
                    // As in calicoctl, no other setting of the file changes an inline kubeconfig.
                    kubernetes.kubeconfig.clear();
                    kubernetes.home_kubeconfig = None;
                    kubernetes.overrides = Overrides {
                        context: context.map(str::to_owned),
                        ..Overrides::default()
                    };
                    kubernetes.inline = Some(InlineKubeconfig::new(inline));
                }
            }
            DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) => {}
        }
        Ok(config)
    }
}
