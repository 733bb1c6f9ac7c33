//! How to reach an API server (DS-19..DS-21): kubeconfig, what overrides it, or the cluster that this process runs in.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use libcalico::kubernetes::ApiGroup;

use crate::config::{ConfigError, DEFAULT_DEADLINE, Settings, Source};

/// Everything that the settings say about the API server. Nothing has been read yet.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// Kubeconfig files. One must exist; of several the missing ones are skipped, and earlier ones win.
    pub kubeconfig: Vec<PathBuf>,
    /// Taken where neither kubeconfig nor server is named, if it exists (DS-9).
    pub home_kubeconfig: Option<PathBuf>,
    /// Overrides the kubeconfig.
    pub overrides: Overrides,
    /// `calico_api_group`; asked from the API server when absent (DS-22).
    pub group: Option<ApiGroup>,
    /// Requests per second, and how many at once above that; no limit when absent (DS-122).
    pub rate: Option<Rate>,
    /// What names of host interfaces begin with, if not `cali` (CNI-88): an endpoint's is computed, not stored.
    pub interface_prefix: Option<String>,
    /// How long one request may take, connecting included.
    pub deadline: Duration,
}

/// Settings that are stronger than the kubeconfig.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The context of the kubeconfig to use.
    pub context: Option<String>,
    /// URL of the API server.
    pub server: Option<String>,
    /// Bearer token.
    pub token: Option<String>,
    /// Authorities for the API server's certificate.
    pub authorities: Option<PathBuf>,
    /// Our certificate.
    pub certificate: Option<PathBuf>,
    /// The key of our certificate.
    pub key: Option<PathBuf>,
    /// Whether any certificate of the API server will do.
    pub insecure: bool,
}

/// A client-side limit of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Requests per second, at least 1.
    pub per_second: u32,
    /// Requests that need not wait.
    pub burst: u32,
}

/// What client-go allows when nothing is said (DS-122).
const DEFAULT_QPS: i32 = 5;
const DEFAULT_BURST: i32 = 100;

impl KubernetesConfig {
    /// The API server as the datastore, whatever else is configured. `env` is as for
    /// [`DatastoreConfig::new`](crate::DatastoreConfig::new).
    pub fn of(settings: &Settings, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Self::new(settings, &Source::new(&env), settings.deadline.unwrap_or(DEFAULT_DEADLINE))
    }

    /// The API server that describes pods, beside a datastore that is another. `env` is as for
    /// [`DatastoreConfig::new`](crate::DatastoreConfig::new).
    pub fn beside(settings: &Settings, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let config = Self::of(settings, env)?;
        // Calico's own kinds are not asked for there, and need not exist: nobody has to find out their group.
        Ok(KubernetesConfig { group: Some(ApiGroup::V3), ..config })
    }

    /// Whether something says where an API server is, though nobody said that it is to be used.
    pub(crate) fn is_hinted_at(settings: &Settings, source: &Source<'_>) -> bool {
        let in_cluster = !source.get("", "KUBERNETES_SERVICE_HOST").is_empty();
        let kubeconfig = source.get(&settings.kubeconfig, "KUBECONFIG");
        let server = source.get(&settings.k8s_api_root, "K8S_API_ENDPOINT");
        in_cluster || !kubeconfig.is_empty() || !server.is_empty()
    }

    /// From the settings and the environment (DS-5, DS-10, DS-12).
    pub(crate) fn new(settings: &Settings, source: &Source<'_>, deadline: Duration) -> Result<Self, ConfigError> {
        let some = |text: String| (!text.is_empty()).then_some(text);
        let file = |configured: &str, variable| some(source.get(configured, variable)).map(PathBuf::from);
        let server = some(source.get(&settings.k8s_api_root, "K8S_API_ENDPOINT"));
        let insecure = source.get("", "K8S_INSECURE_SKIP_TLS_VERIFY");
        let overrides = Overrides {
            context: some(source.get("", "K8S_CURRENT_CONTEXT")),
            // The path below the API's root is of no use here, and upstream cuts it off too (DS-12).
            server: server.map(|url| without_user(url.split_once("/api/").map_or(&*url, |(root, _)| root))),
            token: some(source.get(&settings.k8s_auth_token, "K8SAPITOKEN")),
            authorities: file(&settings.k8s_certificate_authority, "K8S_CA_FILE"),
            certificate: file(&settings.k8s_client_certificate, "K8S_CERT_FILE"),
            key: file(&settings.k8s_client_key, "K8S_KEY_FILE"),
            insecure: truth("K8S_INSECURE_SKIP_TLS_VERIFY", &insecure)?,
        };
        let kubeconfig = source.get(&settings.kubeconfig, "KUBECONFIG");
        let named = !kubeconfig.is_empty() || overrides.server.is_some();
        let home = some(source.get("", "HOME")).filter(|_| !named);
        let prefixes = source.get("", "FELIX_INTERFACEPREFIX");
        Ok(KubernetesConfig {
            kubeconfig: kubeconfig.split(':').filter(|path| !path.is_empty()).map(PathBuf::from).collect(),
            home_kubeconfig: home.map(|home| PathBuf::from(home).join(".kube/config")),
            overrides,
            group: ApiGroup::from_config(&source.get(&settings.calico_api_group, "CALICO_API_GROUP")),
            rate: rate(settings, source)?,
            interface_prefix: prefixes.split(',').next().and_then(|first| some(first.to_owned())),
            deadline,
        })
    }
}

fn rate(settings: &Settings, source: &Source<'_>) -> Result<Option<Rate>, ConfigError> {
    let number = |configured: i32, variable: &'static str, default: i32| {
        let configured = if configured == 0 { String::new() } else { configured.to_string() };
        match source.lookup(&configured, variable) {
            None => Ok(default),
            Some(text) => integer(variable, &text).map(|number| if number == 0 { default } else { number }),
        }
    };
    let per_second = number(settings.qps, "K8S_CLIENT_QPS", DEFAULT_QPS)?;
    let burst = number(settings.burst, "K8S_CLIENT_BURST", DEFAULT_BURST)?;
    // A negative rate is none.
    Ok(u32::try_from(per_second).ok().map(|per_second| Rate { per_second, burst: burst.unsigned_abs().max(1) }))
}

/// Returns the URL without a user and a password in front of its host. This client does not log in by them, and the URL
/// is in errors, logs and the journal.
pub(super) fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    match authority.rsplit_once('@') {
        Some((_, host)) if !scheme.is_empty() => format!("{scheme}://{host}{path}"),
        Some((_, host)) => format!("{host}{path}"),
        None => url.to_owned(),
    }
}

/// As Go reads numbers, which may have a fraction here, and a base in front (DS-4).
fn integer(setting: &'static str, text: &str) -> Result<i32, ConfigError> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = match hexadecimal {
        Some(digits) => i32::from_str_radix(digits, 16).ok(),
        None => text.parse::<f64>().ok().filter(|number| number.is_finite()).map(|number| number.ceil() as i32),
    };
    number.ok_or_else(|| ConfigError::Value { setting, found: text.into(), wanted: "a number" })
}

fn truth(setting: &'static str, text: &str) -> Result<bool, ConfigError> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(ConfigError::Value { setting, found: text.into(), wanted: "true or false" }),
    }
}

/// Where it leads, as far as the settings tell.
impl fmt::Display for KubernetesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = || self.kubeconfig.iter().chain(&self.home_kubeconfig);
        match (&self.overrides.server, files().next()) {
            (Some(server), _) => f.write_str(server),
            (None, Some(_)) => {
                f.write_str(&files().map(|file| file.display().to_string()).collect::<Vec<_>>().join(":"))
            }
            (None, None) => f.write_str("of this pod"),
        }
    }
}

// By hand: a token is a secret.
impl fmt::Debug for KubernetesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesConfig")
            .field("kubeconfig", &self.kubeconfig)
            .field("home_kubeconfig", &self.home_kubeconfig)
            .field("overrides", &self.overrides)
            .field("group", &self.group)
            .field("rate", &self.rate)
            .field("interface_prefix", &self.interface_prefix)
            .field("deadline", &self.deadline)
            .finish()
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overrides")
            .field("context", &self.context)
            .field("server", &self.server)
            .field("token", &self.token.is_some())
            .field("authorities", &self.authorities)
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .field("insecure", &self.insecure)
            .finish()
    }
}
