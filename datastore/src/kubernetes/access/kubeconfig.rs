//! Reads kubeconfigs, and resolves the cluster and the user of a context.

use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::client::ConfigExt;
use kube::config::{AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError};
use os::atomic_file::regular_file;

use super::kubeconfig_yaml;
use crate::config::{ClientPlace, KubernetesConfig, Overrides, without_credentials};
use crate::error::describe_error_chain;
use crate::kubernetes::access_error::AccessError;
use crate::kubernetes::credential_plugin;
use crate::{server_url, tls};

/// A proxy in place of the kubeconfig's. Without one, kube reads `HTTPS_PROXY`, and fails if the
/// value is invalid. The transport here does not read kube's setting.
const IGNORED_PROXY: &str = "http://ignored";

/// The cluster and the user of a context.
pub(super) struct Resolved {
    pub(super) config: Config,
    /// The name of the user, for errors.
    pub(super) user: String,
    /// `proxy-url` of the cluster.
    pub(super) proxy_url: Option<String>,
    /// The file of the CA certificates; `None` if no file is configured.
    pub(super) ca_file: Option<PathBuf>,
}

/// Returns the merged kubeconfig and its path, or `None` if no kubeconfig is configured. Fails if
/// none of the configured files exists.
pub(super) fn read(
    settings: &KubernetesConfig,
) -> Result<Option<(Kubeconfig, String)>, AccessError> {
    if let Some(inline) = &settings.inline {
        let place = "kubeconfigInline".to_owned();
        let kubeconfig =
            kubeconfig_yaml::parse(inline.text()).map_err(|error| unreadable(&place, &error))?;
        return Ok(Some((kubeconfig, place)));
    }
    let home = settings
        .home_kubeconfig
        .as_slice()
        .iter()
        .filter(|file| file.exists())
        .cloned()
        .collect::<Vec<_>>();
    read_files(
        if settings.kubeconfig.is_empty() {
            &home
        } else {
            &settings.kubeconfig
        },
        &settings.place,
    )
}

fn read_files(
    files: &[PathBuf],
    client_place: &ClientPlace,
) -> Result<Option<(Kubeconfig, String)>, AccessError> {
    let place = files
        .iter()
        .map(|file| file.display().to_string())
        .collect::<Vec<_>>()
        .join(":");
    let (mut merged, has_several_files) = (None::<Kubeconfig>, files.len() > 1);
    for file in files {
        if has_several_files && !Path::new(file).exists() {
            continue;
        }
        let next = kubeconfig_yaml::read_file(file, client_place)
            .map_err(|e| unreadable(&file.display().to_string(), &e))?;
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

/// Resolves the context of `overrides`, or else the current context. On a node, refuses a proxy and
/// a credential plugin.
pub(super) async fn resolve(
    mut kubeconfig: Kubeconfig,
    place: &str,
    overrides: &Overrides,
    client_place: &ClientPlace,
) -> Result<Resolved, AccessError> {
    let context = overrides.context.as_ref();
    let is_node = *client_place == ClientPlace::Node;
    let ca_file = find_ca_file(&kubeconfig, context);
    let options = KubeConfigOptions {
        context: context.cloned(),
        ..KubeConfigOptions::default()
    };
    let context = find_context(&kubeconfig, context)
        .cloned()
        .unwrap_or_default();
    let user = context.user.unwrap_or_else(|| "?".into());
    let proxy_url = take_proxy_url(&mut kubeconfig, &context.cluster);
    if is_node && proxy_url.is_some() {
        return Err(AccessError::UnsupportedProxy {
            place: place.into(),
            cluster: context.cluster,
        });
    }
    if overrides.server.is_none() {
        complete_server(&mut kubeconfig, place, &context.cluster, &user, overrides)?;
    }
    // kube reads this file without a limit.
    let read = ca_file
        .as_deref()
        .map(|file| regular_file::contents_up_to(file, tls::MAX_FILE_BYTES));
    if let Some(Err(error)) = read
        && matches!(
            error.kind(),
            ErrorKind::InvalidInput | ErrorKind::FileTooLarge
        )
    {
        let file = ca_file.as_deref().unwrap_or(Path::new("")).display();
        return Err(AccessError::Kubeconfig {
            place: place.into(),
            reason: format!("cannot read {file}: {error}"),
        });
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(|e| unresolved(place, &e))?;
    let auth_info = &mut config.auth_info;
    if let Some(cluster) = auth_info
        .exec
        .as_mut()
        .and_then(|exec| exec.cluster.as_mut())
    {
        cluster.proxy_url.clone_from(&proxy_url);
    }
    match (&auth_info.exec, &auth_info.auth_provider) {
        (Some(exec), _) if is_node => {
            let command = credential_plugin::name(exec).into();
            return Err(AccessError::UnsupportedAuthentication {
                place: place.into(),
                user,
                command,
            });
        }
        (None, Some(provider)) => {
            let provider = provider.name.clone();
            return Err(AccessError::AuthProvider {
                place: place.into(),
                user,
                provider,
            });
        }
        _ => {}
    }
    drop_empty_impersonation(auth_info);
    match find_impersonation_problem(&config) {
        None => Ok(Resolved {
            config,
            user,
            proxy_url,
            ca_file,
        }),
        Some(reason) => Err(AccessError::Impersonation {
            place: place.into(),
            user,
            reason,
        }),
    }
}

fn find_context<'k>(kubeconfig: &'k Kubeconfig, context: Option<&String>) -> Option<&'k Context> {
    let current = context.or(kubeconfig.current_context.as_ref());
    kubeconfig
        .contexts
        .iter()
        .find(|named| Some(&named.name) == current)?
        .context
        .as_ref()
}

/// Returns the file of the CA certificates of the cluster of `context`, or of the current context
/// if `context` is `None`.
fn find_ca_file(kubeconfig: &Kubeconfig, context: Option<&String>) -> Option<PathBuf> {
    let name = &find_context(kubeconfig, context)?.cluster;
    let cluster = kubeconfig
        .clusters
        .iter()
        .find(|named| named.name == *name)?
        .cluster
        .as_ref()?;
    cluster.certificate_authority.as_ref().map(PathBuf::from)
}

/// Returns the proxy of `cluster`, if the kubeconfig has one, and puts [`IGNORED_PROXY`] in its
/// place.
fn take_proxy_url(kubeconfig: &mut Kubeconfig, cluster: &str) -> Option<String> {
    let named = kubeconfig
        .clusters
        .iter_mut()
        .find(|named| named.name == cluster)?;
    let Cluster { proxy_url, .. } = named.cluster.as_mut()?;
    proxy_url
        .replace(IGNORED_PROXY.into())
        .filter(|url| !url.is_empty())
}

/// Writes the scheme into the server of `cluster` if the scheme is missing. As in kubectl, the
/// scheme is `https` if a CA certificate, a client certificate or the insecure mode is configured,
/// else `http`.
fn complete_server(
    kubeconfig: &mut Kubeconfig,
    place: &str,
    cluster: &str,
    user: &str,
    overrides: &Overrides,
) -> Result<(), AccessError> {
    let users = kubeconfig
        .auth_infos
        .iter()
        .filter(|named| named.name == user);
    let has_certificate = users
        .filter_map(|named| named.auth_info.as_ref())
        .any(|info| {
            [&info.client_certificate, &info.client_certificate_data]
                .into_iter()
                .any(|setting| is_set(setting.as_ref()))
        });
    let is_overridden = overrides.ca_certificates.is_some()
        || overrides.certificate.is_some()
        || overrides.insecure;
    let mut named = kubeconfig
        .clusters
        .iter_mut()
        .filter(|named| named.name == cluster);
    let Some(settings) = named.find_map(|named| named.cluster.as_mut()) else {
        return Ok(());
    };
    let has_ca = is_set(settings.certificate_authority.as_ref())
        || is_set(settings.certificate_authority_data.as_ref());
    let is_insecure = settings.insecure_skip_tls_verify == Some(true);
    let Some(server) = &mut settings.server else {
        return Ok(());
    };
    let is_encrypted = has_ca || is_insecure || has_certificate || is_overridden;
    match server_url::parse_with_default_scheme(server, is_encrypted) {
        Ok(url) if !server.contains("://") => *server = url.to_string(),
        Ok(_) => {}
        Err(error) => {
            let reason = format!(
                "server `{}` of cluster {cluster}: {error}",
                without_credentials(server)
            );
            return Err(AccessError::Kubeconfig {
                place: place.into(),
                reason,
            });
        }
    }
    Ok(())
}

fn is_set(setting: Option<&String>) -> bool {
    setting.is_some_and(|text| !text.is_empty())
}

/// Removes empty impersonation settings, which count as not set in client-go too.
fn drop_empty_impersonation(auth_info: &mut AuthInfo) {
    auth_info.impersonate.take_if(|user| user.is_empty());
    auth_info.impersonate_uid.take_if(|uid| uid.is_empty());
    auth_info
        .impersonate_groups
        .take_if(|groups| groups.is_empty());
    auth_info
        .impersonate_user_extra
        .take_if(|extra| extra.is_empty());
}

/// Returns the reason why the impersonation settings cannot be sent, if there is one. The API
/// server would report settings without a user as an internal error.
fn find_impersonation_problem(config: &Config) -> Option<String> {
    let auth_info = &config.auth_info;
    let has_other_settings = auth_info.impersonate_uid.is_some()
        || auth_info.impersonate_groups.is_some()
        || auth_info.impersonate_user_extra.is_some();
    if auth_info.impersonate.is_none() && has_other_settings {
        return Some(
            "`as` is missing; name the user to impersonate, or remove the other settings".into(),
        );
    }
    config
        .extra_headers_layer()
        .err()
        .map(|error| describe_error_chain(&error))
}

/// Returns the error for a kubeconfig that cannot be used.
fn unreadable(place: &str, error: &(dyn Error + 'static)) -> AccessError {
    AccessError::Kubeconfig {
        place: place.into(),
        reason: describe_error_chain(error),
    }
}

/// Returns the error for a kubeconfig whose settings do not lead to a server, with the way out.
fn unresolved(place: &str, error: &KubeconfigError) -> AccessError {
    let advice = match error {
        KubeconfigError::CurrentContextNotSet => {
            "write `current-context: NAME` with the name of a context"
        }
        KubeconfigError::LoadContext(_) => {
            "write the name of one of its contexts, or add the context"
        }
        KubeconfigError::LoadClusterOfContext(_) => {
            "write the name of one of its clusters, or add the cluster"
        }
        KubeconfigError::MissingClusterUrl => {
            "write `server: https://HOST:PORT` into the cluster of the context"
        }
        _ => return unreadable(place, error),
    };
    AccessError::Kubeconfig {
        place: place.into(),
        reason: format!("{error}; {advice}"),
    }
}
