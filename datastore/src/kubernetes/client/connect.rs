//! Reads the settings and the credentials, and prepares the client for the first request.
//! [`Opened`] has the reasons to do so again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::header::{HeaderValue, USER_AGENT};
use kube::client::{Body, ConfigExt};
use kube::config::AuthInfo;
use os::atomic_file::regular_file;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use super::super::access::{self, ClusterAccess};
use super::super::access_error::AccessError;
use super::super::auth::AuthHeader;
use super::super::tls;
use super::super::transport::create_transport;
use crate::config::KubernetesConfig;
use crate::error::describe_error_chain;

/// User agent of each request. The part before the slash is the field manager of each write.
const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("calico/", env!("CARGO_PKG_VERSION")));

#[derive(Clone)]
pub(super) struct OpenedClient {
    pub(super) client: kube::Client,
    pub(super) auth: AuthHeader,
    pub(super) server: String,
    opened_at: Instant,
    /// True if a credential plugin has given the credentials.
    has_plugin: bool,
}

/// A client, and the reasons to open it again.
pub(super) struct Opened {
    pub(super) client: OpenedClient,
    /// `None` in a short-lived process.
    files: Option<CredentialFiles>,
    /// Time at which the credential plugin is to be run again.
    renew_at: Option<Instant>,
}

impl Opened {
    /// Returns true if files have changed, or if the credentials of a plugin expire.
    pub(super) fn is_outdated(&mut self) -> bool {
        self.files
            .as_mut()
            .is_some_and(CredentialFiles::has_changed)
            || self
                .renew_at
                .is_some_and(|renew_at| renew_at <= Instant::now())
    }

    /// Records a failed attempt to open the client again. The next attempt for expiring credentials
    /// waits for [`PLUGIN_PAUSE`].
    pub(super) fn stay(&mut self) {
        self.renew_at = self
            .renew_at
            .map(|renew_at| renew_at.max(Instant::now() + PLUGIN_PAUSE));
    }
}

impl OpenedClient {
    /// Returns true if both are clones of the same client.
    pub(super) fn is(&self, other: &OpenedClient) -> bool {
        self.opened_at == other.opened_at
    }

    /// Returns true if the server's refusal of the credentials is a reason to read them again. Many
    /// requests may be refused at once, and the plugin is to be run only once for them.
    pub(super) fn is_renewable(&self) -> bool {
        !self.has_plugin || self.opened_at.elapsed() >= PLUGIN_PAUSE
    }

    pub(super) fn has_plugin(&self) -> bool {
        self.has_plugin
    }
}

/// Reads the files of the settings, runs the credential plugin if there is one, and prepares the
/// client. A long-running process, which has more than one of `connections`, watches the files.
pub(super) async fn open(
    settings: &KubernetesConfig,
    connections: usize,
) -> Result<Opened, AccessError> {
    let ClusterAccess {
        config,
        auth,
        ca_file,
        proxy,
        plugin_run,
    } = access::read(settings).await?;
    let files =
        (connections > 1).then(|| CredentialFiles::read(settings, &config.auth_info, ca_file));
    let tls = match config.cluster_url.scheme_str() {
        Some("http") => None,
        _ => Some(tls::client_config(&config)?),
    };
    let tls_error = |reason: String| AccessError::Tls {
        object: "settings",
        reason,
    };
    let transport = create_transport(
        &config.cluster_url,
        tls,
        config.tls_server_name.as_deref(),
        proxy,
        connections,
    )
    .map_err(|e| tls_error(e.to_string()))?;
    let (observer, root) = (
        settings.observer.clone(),
        Arc::<str>::from(config.cluster_url.path().trim_end_matches('/')),
    );
    let observed = service_fn(move |request: Request<Body>| {
        let (observer, root, transport) = (observer.clone(), Arc::clone(&root), transport.clone());
        async move {
            let mut observed = observer.begin(&request, &root);
            let answer = transport.oneshot(request).await;
            if let (Some(observed), Ok(answer)) = (&mut observed, &answer) {
                observed.answered(answer.status());
            }
            answer
        }
    });
    let credentials = auth.clone();
    let authenticate = move |request: Request<Body>| {
        let mut request = credentials.authenticate(request);
        request.headers_mut().insert(USER_AGENT, USER_AGENT_VALUE);
        request
    };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(
            config
                .extra_headers_layer()
                .map_err(|e| tls_error(describe_error_chain(&e)))?,
        )
        .map_request(authenticate)
        .service(observed);
    let opened_at = Instant::now();
    let client = OpenedClient {
        client: kube::Client::new(service, config.default_namespace),
        auth,
        server: config.cluster_url.to_string(),
        opened_at,
        has_plugin: plugin_run.is_some(),
    };
    let renew_at = plugin_run
        .and_then(|run| run.usable_for)
        .map(|usable_for| opened_at + usable_for);
    Ok(Opened {
        client,
        files,
        renew_at,
    })
}

/// Minimum time between two runs of a credential plugin, after a failed renewal, and after a
/// refusal of the credentials of a watch or of a request that is not repeated. A request that is
/// repeated runs the plugin at once.
const PLUGIN_PAUSE: Duration = Duration::from_secs(10);

/// Minimum time between two checks of [`CredentialFiles`].
const CHECK_INTERVAL: Duration = Duration::from_secs(50);

/// Maximum size in bytes of a file whose changes are seen: that of a kubeconfig.
const MAX_FILE_BYTES: usize = 16 << 20;

/// The files of the credentials, with their contents. Token files are not included, because a token
/// is renewed without a new connection.
struct CredentialFiles {
    paths: Vec<PathBuf>,
    contents: Vec<Option<Vec<u8>>>,
    checked_at: Instant,
}

impl CredentialFiles {
    fn read(
        settings: &KubernetesConfig,
        info: &AuthInfo,
        ca_file: Option<PathBuf>,
    ) -> CredentialFiles {
        let certificates = [&info.client_certificate, &info.client_key]
            .into_iter()
            .flatten()
            .map(PathBuf::from);
        let configured = settings
            .kubeconfig
            .iter()
            .chain(&settings.home_kubeconfig)
            .cloned();
        let paths: Vec<PathBuf> = configured.chain(ca_file).chain(certificates).collect();
        CredentialFiles {
            contents: read_all(&paths),
            paths,
            checked_at: Instant::now(),
        }
    }

    /// Returns true if any of the files has changed since [`read`](Self::read). Reads the files at
    /// most once per [`CHECK_INTERVAL`], and returns false in between.
    fn has_changed(&mut self) -> bool {
        if self.checked_at.elapsed() < CHECK_INTERVAL {
            return false;
        }
        self.checked_at = Instant::now();
        read_all(&self.paths) != self.contents
    }
}

fn read_all(paths: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    paths
        .iter()
        .map(|path| regular_file::contents_up_to(path, MAX_FILE_BYTES).ok())
        .collect()
}
