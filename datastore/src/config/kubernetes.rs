//! Settings for reaching an API server.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use libcalico::api::go_bool;
use libcalico::kubernetes::ApiGroup;
use libcalico::variables::{InvalidVariable, Variables};

use super::{ClientPlace, DatastoreSettings, SettingLookup};
use crate::error::ConfigError;
use crate::request_observer::Observer;

/// Settings for reaching an API server. Creating the value reads no file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// Kubeconfig files. A single file must exist. Of several files, missing ones are skipped and
    /// earlier ones take precedence.
    pub kubeconfig: Vec<PathBuf>,
    /// `$HOME/.kube/config`, which is used if it exists. `None` if `HOME` is not set, or if a
    /// kubeconfig or a server is configured (DS-9).
    pub home_kubeconfig: Option<PathBuf>,
    /// `kubeconfigInline` of calicoctl's configuration. It replaces the files, and of `overrides`
    /// only the context applies (DS-20).
    pub inline: Option<InlineKubeconfig>,
    /// The kind of process, which decides if the client follows proxies and runs credential
    /// plugins.
    pub place: ClientPlace,
    /// Overrides of the kubeconfig.
    pub overrides: Overrides,
    /// `calico_api_group`; `None` if the process has to discover the group.
    pub group: Option<ApiGroup>,
    /// Client-side rate limit; no limit if absent (DS-122).
    pub rate: Option<Rate>,
    /// Prefix of host interface names instead of `cali` (CNI-88).
    pub interface_prefix: Option<String>,
    /// Time limit of one request, including the time to connect.
    pub deadline: Duration,
    /// The receiver of the outcome of each request. Not a setting: a process that counts its
    /// requests sets it.
    pub observer: Observer,
}

/// Settings that override the kubeconfig.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The context of the kubeconfig to use.
    pub context: Option<String>,
    /// URL of the API server.
    pub server: Option<String>,
    /// Bearer token.
    pub token: Option<String>,
    /// File with the CA certificates that verify the API server's certificate.
    pub ca_certificates: Option<PathBuf>,
    /// File with the client certificate.
    pub certificate: Option<PathBuf>,
    /// File with the key of the client certificate.
    pub key: Option<PathBuf>,
    /// Whether to accept any certificate of the API server.
    pub insecure: bool,
}

/// The text of a kubeconfig, which may contain credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct InlineKubeconfig(String);

impl InlineKubeconfig {
    /// Returns the kubeconfig with this text. Does not parse the text.
    pub fn new(text: impl Into<String>) -> Self {
        InlineKubeconfig(text.into())
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// A client-side limit of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Requests per second, at least 1.
    pub per_second: u32,
    /// Number of requests that may be sent before the rate delays further ones.
    pub burst: u32,
}

/// Default rate per second and default burst, as in upstream's client (DS-122).
const DEFAULT_QPS: i32 = 5;
const DEFAULT_BURST: i32 = 100;

impl KubernetesConfig {
    /// Returns the settings for the API server as the datastore, even if the configuration selects
    /// another datastore.
    pub fn for_datastore(
        settings: &DatastoreSettings,
        variables: Variables<'_>,
    ) -> Result<Self, ConfigError> {
        Self::new(settings, &SettingLookup { variables })
    }

    /// Returns the settings for the API server that stores the pods, if Calico's objects are in
    /// another datastore.
    pub fn for_pods(
        settings: &DatastoreSettings,
        variables: Variables<'_>,
    ) -> Result<Self, ConfigError> {
        let config = Self::for_datastore(settings, variables)?;
        // This API server need not have Calico's kinds. A fixed group avoids the discovery.
        Ok(KubernetesConfig {
            group: Some(ApiGroup::V3),
            ..config
        })
    }

    /// Returns true if a setting locates an API server.
    pub(crate) fn is_configured(settings: &DatastoreSettings, lookup: &SettingLookup<'_>) -> bool {
        let in_cluster = !lookup.get("", "KUBERNETES_SERVICE_HOST").is_empty();
        let kubeconfig = lookup.get(&settings.kubeconfig, "KUBECONFIG");
        let server = lookup.get(&settings.k8s_api_root, "K8S_API_ENDPOINT");
        in_cluster || !kubeconfig.is_empty() || !server.is_empty()
    }

    pub(super) fn new(
        settings: &DatastoreSettings,
        lookup: &SettingLookup<'_>,
    ) -> Result<Self, ConfigError> {
        let non_empty = |text: String| (!text.is_empty()).then_some(text);
        let file = |configured: &str, variable| {
            non_empty(lookup.get(configured, variable)).map(PathBuf::from)
        };
        let server = non_empty(lookup.get(&settings.k8s_api_root, "K8S_API_ENDPOINT"));
        let insecure = lookup.get("", "K8S_INSECURE_SKIP_TLS_VERIFY");
        let overrides = Overrides {
            context: non_empty(lookup.get("", "K8S_CURRENT_CONTEXT")),
            // Upstream also removes the path from `/api/` on (DS-12).
            server: server.map(|url| {
                without_credentials(url.split_once("/api/").map_or(&*url, |(root, _)| root))
            }),
            token: non_empty(lookup.get(&settings.k8s_auth_token, "K8SAPITOKEN")),
            ca_certificates: file(&settings.k8s_certificate_authority, "K8S_CA_FILE"),
            certificate: file(&settings.k8s_client_certificate, "K8S_CERT_FILE"),
            key: file(&settings.k8s_client_key, "K8S_KEY_FILE"),
            insecure: parse_bool("K8S_INSECURE_SKIP_TLS_VERIFY", &insecure)?,
        };
        let kubeconfig = lookup.get(&settings.kubeconfig, "KUBECONFIG");
        let is_location_set = !kubeconfig.is_empty() || overrides.server.is_some();
        let home = non_empty(lookup.get("", "HOME")).filter(|_| !is_location_set);
        let prefixes = lookup.get("", "FELIX_INTERFACEPREFIX");
        Ok(KubernetesConfig {
            kubeconfig: kubeconfig
                .split(':')
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
                .collect(),
            home_kubeconfig: home.map(|home| PathBuf::from(home).join(".kube/config")),
            inline: None,
            place: ClientPlace::Node,
            overrides,
            group: ApiGroup::from_config(
                &lookup.get(&settings.calico_api_group, "CALICO_API_GROUP"),
            ),
            rate: rate(settings, lookup)?,
            interface_prefix: prefixes
                .split(',')
                .next()
                .and_then(|first| non_empty(first.to_owned())),
            deadline: settings.deadline(),
            observer: Observer::default(),
        })
    }
}

fn rate(
    settings: &DatastoreSettings,
    lookup: &SettingLookup<'_>,
) -> Result<Option<Rate>, ConfigError> {
    let number = |configured: i32, variable: &str, default: i32| {
        let configured = if configured == 0 {
            String::new()
        } else {
            configured.to_string()
        };
        match lookup.find(&configured, variable) {
            None => Ok(default),
            Some(text) => parse_integer(variable, &text)
                .map(|number| if number == 0 { default } else { number }),
        }
    };
    let per_second = number(settings.qps, "K8S_CLIENT_QPS", DEFAULT_QPS)?;
    let burst = number(settings.burst, "K8S_CLIENT_BURST", DEFAULT_BURST)?;
    // A negative rate means no limit.
    Ok(u32::try_from(per_second).ok().map(|per_second| Rate {
        per_second,
        burst: burst.unsigned_abs().max(1),
    }))
}

/// Returns the URL without its user name and password, because the URL appears in errors, logs and
/// the journal.
pub(crate) fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    match authority.rsplit_once('@') {
        Some((_, host)) if !scheme.is_empty() => format!("{scheme}://{host}{path}"),
        Some((_, host)) => format!("{host}{path}"),
        None => url.to_owned(),
    }
}

/// Parses a number. A fraction is rounded up; upstream accepts one only for `K8S_CLIENT_QPS`
/// (DS-4).
fn parse_integer(setting: &str, text: &str) -> Result<i32, InvalidVariable> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = match hexadecimal {
        Some(digits) => i32::from_str_radix(digits, 16).ok(),
        None => text
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite())
            .map(|number| number.ceil() as i32),
    };
    number.ok_or_else(|| InvalidVariable::new(setting, text, "not a number"))
}

fn parse_bool(setting: &str, text: &str) -> Result<bool, InvalidVariable> {
    if text.is_empty() {
        return Ok(false);
    }
    go_bool(text).ok_or_else(|| InvalidVariable::new(setting, text, "not true or false"))
}

impl fmt::Display for KubernetesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.kubeconfig.iter().chain(&self.home_kubeconfig);
        let files: Vec<_> = files.map(|file| file.display().to_string()).collect();
        match &self.overrides.server {
            _ if self.inline.is_some() => f.write_str("of an inline kubeconfig"),
            Some(server) => f.write_str(server),
            None if files.is_empty() => f.write_str("of this pod"),
            None => f.write_str(&files.join(":")),
        }
    }
}

// Implemented by hand, because the text may contain a token.
impl fmt::Debug for InlineKubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InlineKubeconfig")
    }
}

// Implemented by hand, because the token is a secret.
impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overrides")
            .field("context", &self.context)
            .field("server", &self.server)
            .field("token", &self.token.is_some())
            .field("ca_certificates", &self.ca_certificates)
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .field("insecure", &self.insecure)
            .finish()
    }
}
