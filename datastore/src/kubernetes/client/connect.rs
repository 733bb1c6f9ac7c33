//! Reads the settings and the credentials, and prepares the client for the first request.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Request;
use hyper::header::{HeaderValue, USER_AGENT};
use kube::client::{Body, ConfigExt};
use kube::config::AuthInfo;
use tokio::time::Instant;
use tower::ServiceBuilder;

use super::super::access::{self, ClusterAccess};
use super::super::access_error::AccessError;
use super::super::auth::AuthHeader;
use super::super::tls;
use super::super::transport::create_transport;
use crate::config::KubernetesConfig;
use crate::error::describe_error_chain;

/// User agent of each request. The part before the slash is the field manager of each write.
const USER_AGENT_VALUE: HeaderValue = HeaderValue::from_static(concat!("calico/", env!("CARGO_PKG_VERSION")));

#[derive(Clone)]
pub(super) struct OpenedClient {
    pub(super) client: kube::Client,
    pub(super) auth: AuthHeader,
    pub(super) server: String,
}

pub(super) type Opened = (OpenedClient, Option<CredentialFiles>);

/// Reads the files of the settings and prepares the client. In a long-running process, which has more than one of
/// `connections`, also returns the files.
pub(super) async fn open(settings: &KubernetesConfig, connections: usize) -> Result<Opened, AccessError> {
    let ClusterAccess { config, auth, ca_file } = access::read(settings).await?;
    let files = (connections > 1).then(|| CredentialFiles::read(settings, &config.auth_info, ca_file));
    let tls = match config.cluster_url.scheme_str() {
        Some("http") => None,
        _ => Some(tls::client_config(&config)?),
    };
    let tls_error = |reason: String| AccessError::Tls { object: "settings", reason };
    let transport = create_transport(&config.cluster_url, tls, config.tls_server_name.as_deref(), connections)
        .map_err(|e| tls_error(e.to_string()))?;
    let credentials = auth.clone();
    let authenticate = move |request: Request<Body>| {
        let mut request = credentials.authenticate(request);
        request.headers_mut().insert(USER_AGENT, USER_AGENT_VALUE);
        request
    };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(config.extra_headers_layer().map_err(|e| tls_error(describe_error_chain(&e)))?)
        .map_request(authenticate)
        .service(transport);
    let server = config.cluster_url.to_string();
    Ok((OpenedClient { client: kube::Client::new(service, config.default_namespace), auth, server }, files))
}

/// Minimum time between two checks of [`CredentialFiles`].
const CHECK_INTERVAL: Duration = Duration::from_secs(50);

/// The files of the credentials, with their contents. Token files are not included, because a token is renewed without
/// a new connection.
pub(super) struct CredentialFiles {
    paths: Vec<PathBuf>,
    contents: Vec<Option<Vec<u8>>>,
    checked_at: Instant,
}

impl CredentialFiles {
    pub(super) fn read(settings: &KubernetesConfig, info: &AuthInfo, ca_file: Option<PathBuf>) -> CredentialFiles {
        let certificates = [&info.client_certificate, &info.client_key].into_iter().flatten().map(PathBuf::from);
        let configured = settings.kubeconfig.iter().chain(&settings.home_kubeconfig).cloned();
        let paths: Vec<PathBuf> = configured.chain(ca_file).chain(certificates).collect();
        CredentialFiles { contents: read_all(&paths), paths, checked_at: Instant::now() }
    }

    /// Returns true if any of the files has changed since [`read`](Self::read). Reads the files at most once per
    /// [`CHECK_INTERVAL`], and returns false in between.
    pub(super) fn has_changed(&mut self) -> bool {
        if self.checked_at.elapsed() < CHECK_INTERVAL {
            return false;
        }
        self.checked_at = Instant::now();
        read_all(&self.paths) != self.contents
    }
}

fn read_all(paths: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    paths.iter().map(|path| fs::read(path).ok()).collect()
}
