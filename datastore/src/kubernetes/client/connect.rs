//! Reads the settings and the credentials, and prepares the client for the first request.

use hyper::Request;
use hyper::header::{HeaderValue, USER_AGENT};
use kube::client::{Body, ConfigExt};
use tower::ServiceBuilder;

use super::super::access::{self, ClusterAccess};
use super::super::access_error::AccessError;
use super::super::auth::AuthHeader;
use super::super::credential_files::CredentialFiles;
use super::super::tls;
use super::super::transport::Transport;
use crate::config::KubernetesConfig;
use crate::ranges_and_errors::describe_error_chain;

/// User agent of each request. The part before the slash is the field manager of each write.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("calico/", env!("CARGO_PKG_VERSION")));

/// A client that is ready to send requests.
#[derive(Clone)]
pub(super) struct OpenedClient {
    pub(super) client: kube::Client,
    pub(super) auth: AuthHeader,
    /// The URL of the API server.
    pub(super) server: String,
}

/// Reads the settings and prepares the client. In a long-running process, also returns the files that were read.
pub(super) async fn open(
    settings: &KubernetesConfig,
    connections: usize,
) -> Result<(OpenedClient, Option<CredentialFiles>), AccessError> {
    let ClusterAccess { config, auth } = access::read(settings).await?;
    let files = (connections > 1).then(|| CredentialFiles::read(settings, &config.auth_info));
    let tls = match config.cluster_url.scheme_str() {
        Some("http") => None,
        _ => Some(tls::client_config(&config)?),
    };
    let refuse = |reason: String| AccessError::Tls { what: "connection", reason };
    let transport = Transport::new(&config.cluster_url, tls, config.tls_server_name.as_deref(), connections)
        .map_err(|e| refuse(e.to_string()))?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(config.extra_headers_layer().map_err(|e| refuse(describe_error_chain(&e)))?)
        .map_request({
            let auth = auth.clone();
            move |request: Request<Body>| {
                let mut request = auth.sign(request);
                request.headers_mut().insert(USER_AGENT, AGENT);
                request
            }
        })
        .service(transport);
    let server = config.cluster_url.to_string();
    Ok((OpenedClient { client: kube::Client::new(service, config.default_namespace), auth, server }, files))
}
