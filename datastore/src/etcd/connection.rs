//! The connection to the etcd cluster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions};
use hyper_util::rt::TokioIo;
use libcalico::store::StoreError;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tonic::transport::{ClientTlsConfig, Endpoint, Uri};
use tower::service_fn;

use super::error::{self, EtcdFailure, EtcdPeer};
use super::tls;
use crate::config::{ConfigError, EtcdConfig};
use crate::dial::dial;
use crate::error::describe_error_chain;

/// Maximum size of a response. tonic's default of 4 MiB is too small for all handles of a large cluster.
pub(super) const MAX_ANSWER: usize = usize::MAX;
/// Interval and timeout of the pings that detect a dead connection.
const PING: Duration = Duration::from_secs(10);

/// The message of a server that has no users, so that a password is not needed.
const AUTH_DISABLED: &str = "etcdserver: authentication is not enabled";

/// The endpoints of the cluster, and the connection to the one that responded.
pub(super) struct Connection {
    config: EtcdConfig,
    /// The endpoints with the certificates and keys that were read at first.
    first: Vec<Endpoint>,
    /// A description of the certificates and keys, for errors.
    tls: Option<String>,
    /// True for a connection of watches, which need a member that is in contact with the rest of the cluster.
    for_watches: bool,
    /// Number of authentications with a password.
    pub(super) authentications: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// The endpoints with the certificates and keys that were read last.
    endpoints: Vec<Endpoint>,
    /// Whether to read the certificate files again before the next connection.
    used: bool,
    client: Option<Client>,
    /// True if the server has responded on this connection.
    answered: bool,
    /// Index of the endpoint to try first: the one in use, or its successor after a failure.
    next: usize,
}

impl Connection {
    /// Reads certificates and keys.
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        Ok(Self::with(config, create_endpoints(config)?, false))
    }

    fn with(config: &EtcdConfig, endpoints: Vec<Endpoint>, for_watches: bool) -> Self {
        Connection {
            config: config.clone(),
            first: endpoints.clone(),
            tls: config.tls.as_ref().map(tls::describe),
            for_watches,
            authentications: AtomicU64::new(0),
            state: Mutex::new(State { endpoints, used: for_watches, client: None, answered: false, next: 0 }),
        }
    }

    /// Creates another connection to the same cluster for long-running requests. It detects a dead peer by pings, and
    /// etcd ends a watch on a member that has lost contact with the rest of the cluster.
    pub(super) fn for_watches(&self) -> Self {
        Self::with(&self.config, self.first.clone(), true)
    }

    /// Returns the number of endpoints.
    pub(super) fn endpoints(&self) -> usize {
        self.first.len()
    }

    /// Returns the connected client. Without a connection, tries each endpoint in turn, with an equal share of the
    /// remaining time each, until one responds.
    pub(super) async fn get(&self, deadline: Instant) -> Result<Client, StoreError> {
        let mut state = self.state.lock().await;
        if let Some(client) = &state.client {
            return Ok(client.clone());
        }
        if std::mem::replace(&mut state.used, true) {
            match create_endpoints(&self.config) {
                Ok(endpoints) => state.endpoints = endpoints,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the certificates again; the previous certificates stay in use");
                }
            }
        }
        let mut failures = Vec::new();
        for untried in (1..=state.endpoints.len()).rev() {
            let now = Instant::now();
            let share = now + deadline.saturating_duration_since(now) / untried as u32;
            let endpoint = &state.endpoints[state.next];
            match self.connect(endpoint, share).await {
                Ok(client) => {
                    state.client = Some(client.clone());
                    state.answered = self.config.credentials.is_some();
                    return Ok(client);
                }
                Err(failure) => failures.push((endpoint.uri().to_string(), failure)),
            }
            state.next = (state.next + 1) % state.endpoints.len();
        }
        Err(error::explain_connect_failures(&failures, &self.peer(false)))
    }

    /// Records that the server has responded, possibly with an error.
    pub(super) async fn answered(&self) {
        self.state.lock().await.answered = true;
    }

    /// Converts a failed request into the error for the caller. Drops a broken connection, so that the next request
    /// goes to the next endpoint.
    pub(super) async fn fail(&self, failure: &EtcdFailure, writing: bool) -> StoreError {
        let mut answered = true;
        if failure.breaks_connection() {
            let mut state = self.state.lock().await;
            if state.client.take().is_some() {
                state.next = (state.next + 1) % state.endpoints.len();
            }
            answered = state.answered;
        }
        let datastore = self.first.iter().map(|e| e.uri().to_string()).collect::<Vec<_>>().join(",");
        failure.explain(datastore, &self.peer(answered), writing)
    }

    async fn connect(&self, endpoint: &Endpoint, until: Instant) -> Result<Client, EtcdFailure> {
        let begun = Instant::now();
        let mut endpoint = endpoint.clone();
        if self.for_watches {
            endpoint = endpoint.http2_keep_alive_interval(PING).keep_alive_timeout(PING).keep_alive_while_idle(true);
        }
        let connecting = async {
            let dial = service_fn(async |server: Uri| dial(&server).await.map(TokioIo::new));
            let channel = endpoint.connect_with_connector(dial).await.map_err(EtcdFailure::Connect)?;
            self.authenticate(Channel::Tonic(channel)).await
        };
        timeout_at(until, connecting).await.unwrap_or_else(|_| Err(EtcdFailure::Timeout(until - begun)))
    }

    async fn authenticate(&self, channel: Channel) -> Result<Client, EtcdFailure> {
        let options = ConnectOptions::new().with_auto_token_refresh(true).with_require_leader(self.for_watches);
        let mut client = Client::from_channel(channel, Some(options)).await?;
        if self.config.credentials.is_some() {
            self.authentications.fetch_add(1, Ordering::Relaxed);
            match client.update_user(self.config.credentials.clone()).await.map_err(EtcdFailure::from) {
                // As in etcd's own client, a password for a server without users is not an error.
                Err(EtcdFailure::Status(status)) if status.message() == AUTH_DISABLED => {}
                other => other?,
            }
        }
        Ok(client)
    }

    fn peer(&self, answered: bool) -> EtcdPeer<'_> {
        let user = self.config.credentials.as_ref().map(|(user, _)| user.as_str());
        EtcdPeer { tls: self.tls.as_deref(), user, answered }
    }
}

/// Creates the endpoints, with certificates and keys read from the files.
fn create_endpoints(config: &EtcdConfig) -> Result<Vec<Endpoint>, ConfigError> {
    let tls = config.tls.as_ref().map(tls::load).transpose()?;
    config.endpoints.iter().map(|url| create_endpoint(url, tls.as_ref())).collect()
}

fn create_endpoint(url: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint, ConfigError> {
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| ConfigError::Endpoint { found: url.into() })?;
    let Some(tls) = tls else { return Ok(endpoint) };
    endpoint.tls_config(tls.clone()).map_err(|e| ConfigError::Pem {
        setting: "etcd_cert_file, etcd_key_file, etcd_ca_cert_file",
        reason: describe_error_chain(&e),
    })
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.first.iter().map(Endpoint::uri)).finish()
    }
}
