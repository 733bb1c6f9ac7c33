//! Converts the settings into a `kube::Config`: the API server, the CA certificates that verify it, and the client's
//! credentials.

mod kubeconfig_yaml;

use std::error::Error;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::client::ConfigExt;
use kube::config::{AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig};

use super::access_error::AccessError;
use super::auth::AuthHeader;
use super::tls::{parse_certificates, tls_error};
use crate::config::{KubernetesConfig, Overrides, without_credentials};
use crate::error::describe_error_chain;

/// The settings that may contain credentials if there is no kubeconfig. Errors name them.
const CONFIGURATION_PLACE: &str = "the configuration (policy.k8s_auth_token, policy.k8s_client_certificate)";

pub(super) struct ClusterAccess {
    pub(super) config: Config,
    /// The token, or the user name and password, of each request. Those in `config` are not used.
    pub(super) auth: AuthHeader,
    /// The file of the CA certificates; `None` if no file is configured.
    pub(super) ca_file: Option<PathBuf>,
}

const POD_CA_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Determines the API server and the credentials, from the kubeconfig, the settings or the pod.
pub(super) async fn read(settings: &KubernetesConfig) -> Result<ClusterAccess, AccessError> {
    let overrides = &settings.overrides;
    let home = settings.home_kubeconfig.as_slice().iter().filter(|file| file.exists()).cloned().collect::<Vec<_>>();
    let files = if settings.kubeconfig.is_empty() { &home } else { &settings.kubeconfig };
    let (mut config, place, ca_file) = match (read_kubeconfig(files)?, &overrides.server) {
        (Some((merged, place)), _) => {
            let ca_file = find_ca_file(&merged, overrides.context.as_ref());
            (resolve(merged, &place, overrides).await?, format!("kubeconfig {place}"), ca_file)
        }
        // A configured server may not be the API server of this pod's cluster, so the pod's credentials are not sent to
        // it (DS-19).
        (None, Some(server)) => (Config::new(parse_url(server)?), CONFIGURATION_PLACE.into(), None),
        (None, None) => {
            let config = Config::incluster_env().map_err(AccessError::NotConfigured)?;
            (config, "this pod".into(), Some(POD_CA_FILE.into()))
        }
    };
    apply_overrides(&mut config, overrides)?;
    if config.cluster_url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        config.cluster_url = parse_url(&without_credentials(&config.cluster_url.to_string()))?;
    }
    let auth = AuthHeader::new(&config.auth_info, &place, overrides)?;
    let ca_file = overrides.ca_certificates.clone().or(ca_file);
    Ok(ClusterAccess { config, auth, ca_file })
}

/// Returns the merged kubeconfig and its path, or `None` if `files` is empty. Fails if none of the files exists.
fn read_kubeconfig(files: &[PathBuf]) -> Result<Option<(Kubeconfig, String)>, AccessError> {
    let place = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(":");
    let (mut merged, has_several_files) = (None::<Kubeconfig>, files.len() > 1);
    for file in files {
        if has_several_files && !Path::new(file).exists() {
            continue;
        }
        let next = kubeconfig_yaml::read_file(file).map_err(|e| unreadable(&file.display().to_string(), &e))?;
        merged = Some(match merged {
            Some(earlier) => earlier.merge(next).map_err(|e| unreadable(&place, &e))?,
            None => next,
        });
    }
    match merged {
        None if has_several_files => Err(AccessError::NoKubeconfig(place)),
        merged => Ok(merged.map(|kubeconfig| (kubeconfig, place))),
    }
}

async fn resolve(kubeconfig: Kubeconfig, place: &str, overrides: &Overrides) -> Result<Config, AccessError> {
    let options = KubeConfigOptions { context: overrides.context.clone(), ..KubeConfigOptions::default() };
    let context = find_context(&kubeconfig, options.context.as_ref()).cloned().unwrap_or_default();
    let user = context.user.unwrap_or_else(|| "?".into());
    if has_proxy(&kubeconfig, &context.cluster) {
        return Err(AccessError::UnsupportedProxy { place: place.into(), cluster: context.cluster });
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|e| unreadable(place, &e))?;
    let auth_info = &config.auth_info;
    let method = match (&auth_info.exec, &auth_info.auth_provider) {
        (Some(exec), _) => Some(format!("exec {}", exec.command.as_deref().unwrap_or("?"))),
        (None, Some(provider)) => Some(format!("auth-provider {}", provider.name)),
        (None, None) => None,
    };
    if let Some(method) = method {
        return Err(AccessError::UnsupportedAuthentication { place: place.into(), user, method });
    }
    drop_empty_impersonation(&mut config.auth_info);
    match find_impersonation_problem(&config) {
        None => Ok(config),
        Some(reason) => Err(AccessError::Impersonation { place: place.into(), user, reason }),
    }
}

fn find_context<'k>(kubeconfig: &'k Kubeconfig, context: Option<&String>) -> Option<&'k Context> {
    let current = context.or(kubeconfig.current_context.as_ref());
    kubeconfig.contexts.iter().find(|named| Some(&named.name) == current)?.context.as_ref()
}

fn find_cluster<'k>(kubeconfig: &'k Kubeconfig, cluster: &str) -> Option<&'k Cluster> {
    kubeconfig.clusters.iter().find(|named| named.name == cluster)?.cluster.as_ref()
}

/// Returns the file of the CA certificates of the cluster of `context`, or of the current context if `context` is
/// `None`.
fn find_ca_file(kubeconfig: &Kubeconfig, context: Option<&String>) -> Option<PathBuf> {
    let cluster = find_cluster(kubeconfig, &find_context(kubeconfig, context)?.cluster)?;
    cluster.certificate_authority.as_ref().map(PathBuf::from)
}

/// Returns true if the kubeconfig has a proxy for `cluster`.
fn has_proxy(kubeconfig: &Kubeconfig, cluster: &str) -> bool {
    let proxy = find_cluster(kubeconfig, cluster).and_then(|cluster| cluster.proxy_url.as_deref());
    proxy.is_some_and(|proxy| !proxy.is_empty())
}

/// Removes empty impersonation settings, which count as not set in client-go too.
fn drop_empty_impersonation(auth_info: &mut AuthInfo) {
    auth_info.impersonate.take_if(|user| user.is_empty());
    auth_info.impersonate_uid.take_if(|uid| uid.is_empty());
    auth_info.impersonate_groups.take_if(|groups| groups.is_empty());
    auth_info.impersonate_user_extra.take_if(|extra| extra.is_empty());
}

/// Returns the reason why the impersonation settings cannot be sent, if there is one. The API server would report
/// settings without a user as an internal error.
fn find_impersonation_problem(config: &Config) -> Option<String> {
    let auth_info = &config.auth_info;
    let has_other_settings = auth_info.impersonate_uid.is_some()
        || auth_info.impersonate_groups.is_some()
        || auth_info.impersonate_user_extra.is_some();
    if auth_info.impersonate.is_none() && has_other_settings {
        return Some("`as` is missing; name the user to impersonate, or remove the other settings".into());
    }
    config.extra_headers_layer().err().map(|error| describe_error_chain(&error))
}

fn apply_overrides(config: &mut Config, overrides: &Overrides) -> Result<(), AccessError> {
    let path = |file: &PathBuf| Some(file.display().to_string());
    if let Some(server) = &overrides.server {
        config.cluster_url = parse_url(server)?;
    }
    if let Some(file) = &overrides.ca_certificates {
        let pem = std::fs::read(file).map_err(|e| tls_error("CA certificates", &format!("{}: {e}", file.display())))?;
        config.root_cert = Some(parse_certificates("CA certificates", &pem)?);
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

fn parse_url(server: &str) -> Result<hyper::Uri, AccessError> {
    let refused = |reason: String| AccessError::InvalidServerUrl { found: server.into(), reason };
    let url: hyper::Uri = server.parse().map_err(|e: hyper::http::uri::InvalidUri| refused(e.to_string()))?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(_)) => Ok(url),
        _ => Err(refused("the scheme is not http or https, or the host is missing; write https://HOST:PORT".into())),
    }
}

/// Returns the error for a kubeconfig that cannot be used.
fn unreadable(place: &str, error: &(dyn Error + 'static)) -> AccessError {
    AccessError::Kubeconfig { place: place.into(), reason: describe_error_chain(error) }
}

#[cfg(test)]
mod tests;
