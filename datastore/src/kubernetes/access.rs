//! From the settings to a `kube::Config`: which API server, whom it is to believe, and who we are.

use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::config::{KubernetesConfig, Overrides};
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

/// Reads what the settings name.
pub(super) async fn config(settings: &KubernetesConfig) -> Result<Config, AccessError> {
    let overrides = &settings.overrides;
    let home = settings.home_kubeconfig.as_slice().iter().filter(|file| file.exists()).cloned().collect::<Vec<_>>();
    let files = if settings.kubeconfig.is_empty() { &home } else { &settings.kubeconfig };
    match (read(files)?, &overrides.server) {
        (Some((kubeconfig, place)), _) => of_kubeconfig(kubeconfig, &place, overrides).await,
        // A server that is named is another than the one this pod runs under: its credentials stay here (DS-19).
        (None, Some(server)) => {
            let mut config = Config::new(url(server)?);
            apply(&mut config, overrides)?;
            Ok(config)
        }
        (None, None) => {
            let mut config = Config::incluster_env().map_err(AccessError::Nothing)?;
            apply(&mut config, overrides)?;
            Ok(config)
        }
    }
}

/// The kubeconfig and where it came from; several are merged.
fn read(files: &[PathBuf]) -> Result<Option<(Kubeconfig, String)>, AccessError> {
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
    let user = user_of(&kubeconfig, options.context.as_ref());
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
    apply(&mut config, overrides)?;
    Ok(config)
}

fn user_of(kubeconfig: &Kubeconfig, context: Option<&String>) -> String {
    let current = context.or(kubeconfig.current_context.as_ref());
    let named = kubeconfig.contexts.iter().find(|named| Some(&named.name) == current);
    named.and_then(|named| named.context.as_ref()?.user.clone()).unwrap_or_else(|| "?".into())
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

fn unreadable(place: &str, error: &KubeconfigError) -> AccessError {
    AccessError::Kubeconfig { place: place.into(), reason: chain(error) }
}

fn unusable(what: &'static str, reason: &str) -> AccessError {
    AccessError::Tls { what, reason: reason.into() }
}
