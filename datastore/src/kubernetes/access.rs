//! Converts the settings into a `kube::Config`: the API server, the proxy before it, the CA
//! certificates that verify it, and the client's credentials.

mod kubeconfig;
mod kubeconfig_yaml;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use data_encoding::BASE64;
use kube::Config;
use kube::config::AuthInfo;
use os::atomic_file::regular_file;
use secrecy::ExposeSecret;
use time::OffsetDateTime;

use kubeconfig::Resolved;

use super::access_error::AccessError;
use super::auth::AuthHeader;
use super::credential_plugin::{self, Credential};
use super::tls::{parse_certificates, tls_error};
use super::transport::{Proxy, ProxyUrlError, select_proxy, variables_for};
use crate::config::{ClientPlace, KubernetesConfig, Overrides, without_credentials};
use crate::{server_url, tls};

/// The settings that may contain credentials if there is no kubeconfig. Errors name them.
const CONFIGURATION_PLACE: &str =
    "the configuration (policy.k8s_auth_token, policy.k8s_client_certificate)";

const POD_CA_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

pub(super) struct ClusterAccess {
    pub(super) config: Config,
    /// The token, or the user name and password, of each request. Those in `config` are not used.
    pub(super) auth: AuthHeader,
    /// The file of the CA certificates; `None` if no file is configured.
    pub(super) ca_file: Option<PathBuf>,
    /// The proxy of each connection. The one in `config` is not used.
    pub(super) proxy: Option<Proxy>,
    /// The run of the credential plugin; `None` if no plugin has given the credentials.
    pub(super) plugin_run: Option<PluginRun>,
}

/// A run of a credential plugin.
pub(super) struct PluginRun {
    /// Time until the plugin is to be run again; `None` if its credentials do not expire.
    pub(super) usable_for: Option<Duration>,
}

/// Determines the API server and the credentials, from the kubeconfig, the settings or the pod.
/// Runs the credential plugin of the kubeconfig, except on a node.
pub(super) async fn read(settings: &KubernetesConfig) -> Result<ClusterAccess, AccessError> {
    refuse_in_a_call(&settings.place, std::env::var_os("CNI_COMMAND").as_deref())?;
    let context_only = Overrides {
        context: settings.overrides.context.clone(),
        ..Overrides::default()
    };
    let overrides = if settings.inline.is_some() {
        &context_only
    } else {
        &settings.overrides
    };
    let (resolved, place) = match (kubeconfig::read(settings)?, &overrides.server) {
        (Some((merged, place)), _) => {
            let resolved = kubeconfig::resolve(merged, &place, overrides, &settings.place).await?;
            (resolved, format!("kubeconfig {place}"))
        }
        // A configured server may not be the API server of this pod's cluster, so the pod's
        // credentials are not sent to it (DS-19).
        (None, Some(server)) => (
            without_kubeconfig(Config::new(parse_url(server)?), None),
            CONFIGURATION_PLACE.into(),
        ),
        (None, None) => {
            let config = Config::incluster_env().map_err(AccessError::NotConfigured)?;
            (
                without_kubeconfig(config, Some(POD_CA_FILE.into())),
                "this pod".into(),
            )
        }
    };
    let Resolved {
        mut config,
        user,
        proxy_url,
        ca_file,
    } = resolved;
    apply_overrides(&mut config, overrides)?;
    if config
        .cluster_url
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        config.cluster_url = parse_url(&without_credentials(&config.cluster_url.to_string()))?;
    }
    let proxy = find_proxy(
        &settings.place,
        proxy_url.as_deref(),
        &place,
        &config.cluster_url,
    )?;
    let (plugin_run, place) =
        match run_plugin(&mut config.auth_info, &settings.place, &place, &user).await? {
            Some((run, source)) => (Some(run), source),
            None => (None, place),
        };
    let auth = AuthHeader::new(&config.auth_info, &place, overrides)?;
    let ca_file = overrides.ca_certificates.clone().or(ca_file);
    Ok(ClusterAccess {
        config,
        auth,
        ca_file,
        proxy,
        plugin_run,
    })
}

/// Refuses a client with the freedoms of a person's command in a call of a container runtime, whose
/// environment and kubeconfig belong to the node.
fn refuse_in_a_call(place: &ClientPlace, cni_command: Option<&OsStr>) -> Result<(), AccessError> {
    match cni_command {
        Some(command) if !command.is_empty() && *place != ClientPlace::Node => {
            Err(AccessError::InCniCall)
        }
        _ => Ok(()),
    }
}

fn without_kubeconfig(config: Config, ca_file: Option<PathBuf>) -> Resolved {
    Resolved {
        config,
        user: String::new(),
        proxy_url: None,
        ca_file,
    }
}

/// Returns the proxy of the kubeconfig, or else that of the environment. As in client-go,
/// `NO_PROXY` applies to the latter alone.
fn find_proxy(
    client_place: &ClientPlace,
    configured: Option<&str>,
    place: &str,
    server: &hyper::Uri,
) -> Result<Option<Proxy>, AccessError> {
    let invalid = |place: String, error: ProxyUrlError| AccessError::Proxy {
        place,
        reason: error.to_string(),
    };
    let Some(variables) = client_place.proxy_variables() else {
        return Ok(None);
    };
    match configured {
        Some(url) => Proxy::parse(url)
            .map(Some)
            .map_err(|error| invalid(format!("proxy-url of {place}"), error)),
        None => select_proxy(variables, server)
            .map_err(|error| invalid(variables_for(server).into(), error)),
    }
}

/// Runs the credential plugin of `info`, if there is one and no other credentials precede it, and
/// writes its credentials into `info`. Returns also the source of the credentials, for errors.
async fn run_plugin(
    info: &mut AuthInfo,
    client_place: &ClientPlace,
    place: &str,
    user: &str,
) -> Result<Option<(PluginRun, String)>, AccessError> {
    let Some(exec) = info.exec.take().filter(|_| !has_token(info)) else {
        return Ok(None);
    };
    let command = credential_plugin::name(&exec).to_owned();
    let has_person = matches!(client_place, ClientPlace::Workstation(_));
    let credential = match credential_plugin::run(&exec, has_person).await {
        Ok(credential) => credential,
        Err(error) => {
            let (place, user, reason) = (place.to_owned(), user.to_owned(), error.to_string());
            return Err(AccessError::CredentialPlugin {
                place,
                user,
                command,
                reason,
            });
        }
    };
    let usable_for = credential.usable_for(OffsetDateTime::now_utc());
    use_credential(info, credential);
    Ok(Some((
        PluginRun { usable_for },
        format!("the output of {command} (user {user} of {place})"),
    )))
}

/// Returns true if the kubeconfig or an override has a token, or a user name and a password.
fn has_token(info: &AuthInfo) -> bool {
    info.token
        .as_ref()
        .is_some_and(|token| !token.expose_secret().trim().is_empty())
        || info.token_file.is_some()
        || (info.username.is_some() && info.password.is_some())
}

fn use_credential(info: &mut AuthInfo, credential: Credential) {
    info.token = credential.token;
    if let Some(certificate) = credential.certificate {
        info.client_certificate = None;
        info.client_certificate_data = Some(BASE64.encode(certificate.chain.as_bytes()));
        info.client_key = None;
        info.client_key_data = Some(
            BASE64
                .encode(certificate.key.expose_secret().as_bytes())
                .into(),
        );
    }
}

fn apply_overrides(config: &mut Config, overrides: &Overrides) -> Result<(), AccessError> {
    let path = |file: &PathBuf| Some(file.display().to_string());
    if let Some(server) = &overrides.server {
        config.cluster_url = parse_url(server)?;
    }
    if let Some(file) = &overrides.ca_certificates {
        let pem = regular_file::contents_up_to(file, tls::MAX_FILE_BYTES)
            .map_err(|e| tls_error("CA certificates", &format!("{}: {e}", file.display())))?;
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
    let found = || without_credentials(server);
    server_url::parse(server).map_err(|e| AccessError::InvalidServerUrl {
        found: found(),
        reason: e.to_string(),
    })
}

#[cfg(test)]
mod tests;
