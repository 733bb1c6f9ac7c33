//! From the settings to a `kube::Config`: which API server, whom it is to believe, and who we are.

use std::path::{Path, PathBuf};

use kube::Config;
use kube::client::ConfigExt;
use kube::config::{AuthInfo, Context, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::config::{KubernetesConfig, Overrides, without_user};
use super::login::Login;
use crate::error_chain::chain;

/// Why the API server cannot be asked anything. Names what to mend; tokens and keys never show.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A kubeconfig that cannot be read or understood.
    #[error("kubeconfig {place}: {reason}")]
    Kubeconfig {
        /// The file.
        place: String,
        /// The reader's words.
        reason: String,
    },
    /// None of several kubeconfig files exists.
    #[error("no kubeconfig: none of {files} exists; name one in kubernetes.kubeconfig")]
    NoKubeconfig {
        /// Their names.
        files: String,
    },
    /// Neither kubeconfig nor cluster.
    #[error(
        "no way to a Kubernetes API server: set kubernetes.kubeconfig (KUBECONFIG), or kubernetes.k8s_api_root with \
         policy.k8s_auth_token; in a pod: {0}"
    )]
    Nothing(#[source] InClusterError),
    /// A way to log in that a plugin cannot go.
    #[error(
        "kubeconfig {place}: user {user} logs in by {method}, which runs another program for each call; give the plugin \
         a token or a client certificate"
    )]
    LoginProgram {
        /// The file.
        place: String,
        /// The user of the context.
        user: String,
        /// `exec COMMAND` or `auth-provider NAME`.
        method: String,
    },
    /// A way to the API server that a plugin cannot go.
    #[error(
        "kubeconfig {place}: proxy-url of cluster {cluster} is not supported; give the plugin a kubeconfig without it, \
         whose server this node reaches by itself"
    )]
    Proxy {
        /// The file.
        place: String,
        /// The cluster of the context.
        cluster: String,
    },
    /// Somebody to act as who cannot be told to the API server.
    #[error("kubeconfig {place}: as, as-uid, as-groups and as-user-extra of user {user}: {reason}")]
    Impersonation {
        /// The file.
        place: String,
        /// The user of the context.
        user: String,
        /// What is wrong.
        reason: String,
    },
    /// A token that cannot be sent.
    #[error("the token in {place} is of no use: {reason}")]
    Token {
        /// Where it is written.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// An override that is no URL.
    #[error("k8s_api_root `{found}` is not a URL: {reason}")]
    Server {
        /// What was given.
        found: String,
        /// The parser's words.
        reason: String,
    },
    /// Certificates or keys.
    #[error("{what} of the Kubernetes API client: {reason}")]
    Tls {
        /// `authorities`, `certificate` or `key`.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// Where the configuration may say who we are when no kubeconfig does.
const NOTHING_NAMED: &str = "the configuration (policy.k8s_auth_token, policy.k8s_client_certificate)";

/// What the settings lead to.
pub(super) struct Access {
    pub(super) config: Config,
    /// In place of what `config` says of it.
    pub(super) login: Login,
}

/// Reads what the settings name.
pub(super) async fn read(settings: &KubernetesConfig) -> Result<Access, AccessError> {
    let overrides = &settings.overrides;
    let home = settings.home_kubeconfig.as_slice().iter().filter(|file| file.exists()).cloned().collect::<Vec<_>>();
    let files = if settings.kubeconfig.is_empty() { &home } else { &settings.kubeconfig };
    let (mut config, place) = match (kubeconfig(files)?, &overrides.server) {
        (Some((kubeconfig, place)), _) => {
            (of_kubeconfig(kubeconfig, &place, overrides).await?, format!("kubeconfig {place}"))
        }
        // A server that is named is another than the one this pod runs under: its credentials stay here (DS-19).
        (None, Some(server)) => (Config::new(url(server)?), NOTHING_NAMED.into()),
        (None, None) => (Config::incluster_env().map_err(AccessError::Nothing)?, "this pod".into()),
    };
    apply(&mut config, overrides)?;
    if config.cluster_url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        config.cluster_url = url(&without_user(&config.cluster_url.to_string()))?;
    }
    let login = Login::of(&config.auth_info, &place, overrides)?;
    Ok(Access { config, login })
}

/// The kubeconfig and where it came from; several are merged.
fn kubeconfig(files: &[PathBuf]) -> Result<Option<(Kubeconfig, String)>, AccessError> {
    let place = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(":");
    let (mut merged, several) = (None::<Kubeconfig>, files.len() > 1);
    for file in files {
        if several && !Path::new(file).exists() {
            continue;
        }
        let next = Kubeconfig::read_from(file).map_err(|e| unreadable(&file.display().to_string(), &e))?;
        merged = Some(match merged {
            Some(earlier) => earlier.merge(next).map_err(|e| unreadable(&place, &e))?,
            None => next,
        });
    }
    match merged {
        None if several => Err(AccessError::NoKubeconfig { files: place }),
        merged => Ok(merged.map(|kubeconfig| (kubeconfig, place))),
    }
}

async fn of_kubeconfig(kubeconfig: Kubeconfig, place: &str, overrides: &Overrides) -> Result<Config, AccessError> {
    let options = KubeConfigOptions { context: overrides.context.clone(), ..KubeConfigOptions::default() };
    let context = context_of(&kubeconfig, options.context.as_ref()).cloned().unwrap_or_default();
    let user = context.user.unwrap_or_else(|| "?".into());
    if has_proxy(&kubeconfig, &context.cluster) {
        return Err(AccessError::Proxy { place: place.into(), cluster: context.cluster });
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|e| unreadable(place, &e))?;
    let login = &config.auth_info;
    let method = match (&login.exec, &login.auth_provider) {
        (Some(exec), _) => Some(format!("exec {}", exec.command.as_deref().unwrap_or("?"))),
        (None, Some(provider)) => Some(format!("auth-provider {}", provider.name)),
        (None, None) => None,
    };
    if let Some(method) = method {
        return Err(AccessError::LoginProgram { place: place.into(), user, method });
    }
    drop_empty(&mut config.auth_info);
    match impersonation(&config) {
        Ok(()) => Ok(config),
        Err(reason) => Err(AccessError::Impersonation { place: place.into(), user, reason }),
    }
}

fn context_of<'k>(kubeconfig: &'k Kubeconfig, context: Option<&String>) -> Option<&'k Context> {
    let current = context.or(kubeconfig.current_context.as_ref());
    kubeconfig.contexts.iter().find(|named| Some(&named.name) == current)?.context.as_ref()
}

/// Of the environment's proxies, which a runtime passes on, none is used.
fn has_proxy(kubeconfig: &Kubeconfig, cluster: &str) -> bool {
    let named = kubeconfig.clusters.iter().find(|named| named.name == cluster);
    let proxy = named.and_then(|named| named.cluster.as_ref()?.proxy_url.as_deref());
    proxy.is_some_and(|proxy| !proxy.is_empty())
}

/// Nobody is the same as not said, as for client-go.
fn drop_empty(login: &mut AuthInfo) {
    login.impersonate.take_if(|user| user.is_empty());
    login.impersonate_uid.take_if(|uid| uid.is_empty());
    login.impersonate_groups.take_if(|groups| groups.is_empty());
    login.impersonate_user_extra.take_if(|extra| extra.is_empty());
}

/// Whether the headers for it can be made. The API server takes those of a group without a user for an error of its own.
fn impersonation(config: &Config) -> Result<(), String> {
    let login = &config.auth_info;
    let others =
        login.impersonate_uid.is_some() || login.impersonate_groups.is_some() || login.impersonate_user_extra.is_some();
    if login.impersonate.is_none() && others {
        return Err("there is no `as`, and without it nobody can be impersonated".into());
    }
    config.extra_headers_layer().map(drop).map_err(|e| chain(&e))
}

fn apply(config: &mut Config, overrides: &Overrides) -> Result<(), AccessError> {
    let path = |file: &PathBuf| Some(file.display().to_string());
    if let Some(server) = &overrides.server {
        config.cluster_url = url(server)?;
    }
    if let Some(file) = &overrides.authorities {
        let pem = std::fs::read(file).map_err(|e| unusable("authorities", &format!("{}: {e}", file.display())))?;
        config.root_cert = Some(super::tls::certificates(&pem).map_err(|e| unusable("authorities", &e))?);
    }
    if let Some(token) = &overrides.token {
        config.auth_info.token = Some(token.clone().into());
        config.auth_info.token_file = None;
    }
    if let Some(file) = &overrides.certificate {
        config.auth_info.client_certificate = path(file);
        config.auth_info.client_certificate_data = None;
    }
    if let Some(file) = &overrides.key {
        config.auth_info.client_key = path(file);
        config.auth_info.client_key_data = None;
    }
    config.accept_invalid_certs |= overrides.insecure;
    Ok(())
}

fn url(server: &str) -> Result<hyper::Uri, AccessError> {
    let refused = |reason: String| AccessError::Server { found: server.into(), reason };
    let url: hyper::Uri = server.parse().map_err(|e: hyper::http::uri::InvalidUri| refused(e.to_string()))?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(_)) => Ok(url),
        _ => Err(refused("write https://HOST:PORT".into())),
    }
}

/// Of what cannot be parsed the place alone is told: the reader quotes the lines before it, and values, tokens and passwords
/// among them.
fn unreadable(place: &str, error: &KubeconfigError) -> AccessError {
    let reason = match error {
        KubeconfigError::Parse(error) => {
            let at = error.location().map(|at| format!("line {}, column {}: ", at.line(), at.column()));
            format!("{}not the YAML of a kubeconfig, or cut short", at.unwrap_or_default())
        }
        other => chain(other),
    };
    AccessError::Kubeconfig { place: place.into(), reason }
}

fn unusable(what: &'static str, reason: &str) -> AccessError {
    AccessError::Tls { what, reason: reason.into() }
}

#[cfg(test)]
mod tests;
