//! The connection to the etcd cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions};
use libcalico::store::StoreError;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_rustls::TlsConnector;
use tonic::Status;
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

use super::error::{self, EtcdFailure, EtcdPeer};
use super::login::{Logins, Pauses};
use super::tls;
use crate::config::{ConfigError, EtcdConfig};

/// No limit, because tonic's default of 4 MiB is too small for all handles of a large cluster.
pub(super) const MAX_RESPONSE_BYTES: usize = usize::MAX;
/// Interval and timeout of the pings that detect a dead connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);

const AUTH_DISABLED_MESSAGE: &str = "etcdserver: authentication is not enabled";

/// The endpoints of the cluster, and the connection to one of them.
pub(super) struct Connection {
    config: EtcdConfig,
    endpoints: Vec<Endpoint>,
    /// The certificates and keys as first read; `None` without TLS.
    initial_tls: Option<TlsConnector>,
    /// A description of the certificates and keys, for errors; `None` without TLS.
    tls_description: Option<String>,
    /// True for a connection of watches, which need a member that is in contact with the rest of
    /// the cluster.
    is_for_watches: bool,
    /// Number of authentications with a password.
    pub(super) authentications: AtomicU64,
    /// The logins of all connections of this process.
    logins: Arc<Logins>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The certificates and keys as last read; `None` without TLS.
    tls: Option<TlsConnector>,
    /// Whether to read the certificate files again before the next connection.
    must_reload_tls: bool,
    client: Option<Client>,
    has_answered: bool,
    /// Index of the endpoint to try first.
    next_endpoint: usize,
    /// The number of the current login.
    login: LoginNumber,
    /// etcd's last refusal of a token; `None` before the first.
    refusal: Option<Status>,
    /// The pauses between a refusal of a token and the next login.
    pauses: Pauses,
}

/// The number of a connection's login, by which later refusals of its token are recognized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LoginNumber(u64);

impl Connection {
    /// Prepares a connection without opening it. Reads certificates and keys.
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        let endpoints = config
            .endpoints
            .iter()
            .map(|url| create_endpoint(url))
            .collect::<Result<_, _>>()?;
        Ok(Self::with_endpoints(
            config,
            endpoints,
            load_tls(config)?,
            false,
            Arc::default(),
        ))
    }

    fn with_endpoints(
        config: &EtcdConfig,
        endpoints: Vec<Endpoint>,
        tls: Option<TlsConnector>,
        for_watches: bool,
        logins: Arc<Logins>,
    ) -> Self {
        Connection {
            config: config.clone(),
            endpoints,
            initial_tls: tls.clone(),
            tls_description: config.tls.as_ref().map(tls::describe),
            is_for_watches: for_watches,
            authentications: AtomicU64::new(0),
            logins,
            state: Mutex::new(State {
                tls,
                must_reload_tls: for_watches,
                ..State::default()
            }),
        }
    }

    /// Prepares another connection to the same cluster, for watches, which detects a dead peer by
    /// pings.
    pub(super) fn for_watches(&self) -> Self {
        let (endpoints, tls) = (self.endpoints.clone(), self.initial_tls.clone());
        Self::with_endpoints(&self.config, endpoints, tls, true, Arc::clone(&self.logins))
    }

    pub(super) fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    pub(super) fn has_credentials(&self) -> bool {
        self.config.credentials.is_some()
    }

    /// Returns the connected client and its login. Without a connection, tries each endpoint in
    /// turn until one accepts a connection. After a refusal of the token, waits for the pause
    /// before the next login, if it ends before `deadline`.
    pub(super) async fn get(&self, deadline: Instant) -> Result<(Client, LoginNumber), StoreError> {
        if let Some(end) = self.find_pause(deadline).await? {
            sleep_until(end).await;
        }
        let mut state = self.state.lock().await;
        if let Some(client) = &state.client {
            return Ok((client.clone(), state.login));
        }
        if std::mem::replace(&mut state.must_reload_tls, true) {
            match load_tls(&self.config) {
                Ok(tls) => state.tls = tls,
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "cannot load certificates or key for etcd; keeping the previous ones"
                    );
                }
            }
        }
        let mut failures = Vec::new();
        for untried in (1..=self.endpoints.len()).rev() {
            let now = Instant::now();
            let attempt_deadline = now + deadline.saturating_duration_since(now) / untried as u32;
            let endpoint = &self.endpoints[state.next_endpoint];
            match self
                .connect(endpoint, state.tls.clone(), attempt_deadline)
                .await
            {
                Ok(client) => {
                    state.client = Some(client.clone());
                    state.has_answered = self.has_credentials();
                    state.login = LoginNumber(state.login.0 + 1);
                    return Ok((client, state.login));
                }
                Err(failure) => failures.push((endpoint.uri().to_string(), failure)),
            }
            state.next_endpoint = (state.next_endpoint + 1) % self.endpoints.len();
        }
        Err(error::connect_failures_to_store_error(
            &failures,
            &self.peer(false),
        ))
    }

    /// Returns the end of the pause before the next login, if there is one, or the last refusal of
    /// a token if the pause ends after `deadline`.
    async fn find_pause(&self, deadline: Instant) -> Result<Option<Instant>, StoreError> {
        let state = self.state.lock().await;
        let (None, Some(refusal), Some(end)) = (&state.client, &state.refusal, state.pauses.end)
        else {
            return Ok(None);
        };
        if end > deadline {
            let failure = EtcdFailure::Status(refusal.clone());
            return Err(failure.to_store_error(self.datastore(), &self.peer(true), false));
        }
        Ok(Some(end))
    }

    pub(super) async fn record_response(&self) {
        let mut state = self.state.lock().await;
        state.has_answered = true;
        state.pauses.record_accepted_token();
    }

    /// Converts a failed request into the error for the caller, and drops a broken connection, and
    /// one whose token etcd no longer accepts. `login` is that of the request.
    pub(super) async fn handle_failure(
        &self,
        failure: &EtcdFailure,
        is_write: bool,
        login: LoginNumber,
    ) -> StoreError {
        let mut has_answered = true;
        if failure.breaks_connection() {
            let mut state = self.state.lock().await;
            if state.client.take().is_some() {
                state.next_endpoint = (state.next_endpoint + 1) % self.endpoints.len();
            }
            has_answered = state.has_answered;
        }
        if let Some(refusal) = failure.token_refusal().filter(|_| self.has_credentials()) {
            let mut state = self.state.lock().await;
            // The token of a later login may be valid.
            if state.login == login && state.client.take().is_some() {
                state.refusal = Some(refusal.clone());
                state.pauses.begin_of_stale_login();
            }
        }
        failure.to_store_error(self.datastore(), &self.peer(has_answered), is_write)
    }

    pub(super) fn datastore(&self) -> String {
        self.endpoints
            .iter()
            .map(|e| e.uri().to_string())
            .collect::<Vec<_>>()
            .join(",")
    }

    async fn connect(
        &self,
        endpoint: &Endpoint,
        tls: Option<TlsConnector>,
        until: Instant,
    ) -> Result<Client, EtcdFailure> {
        let started = Instant::now();
        let mut endpoint = endpoint.clone();
        if self.is_for_watches {
            endpoint = endpoint
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_INTERVAL)
                .keep_alive_while_idle(true);
        }
        let connecting = async {
            let open = service_fn(move |server: Uri| tls::open(server, tls.clone()));
            let channel = endpoint
                .connect_with_connector(open)
                .await
                .map_err(EtcdFailure::Connect)?;
            self.authenticate(Channel::Tonic(channel)).await
        };
        timeout_at(until, connecting)
            .await
            .unwrap_or_else(|_| Err(EtcdFailure::Timeout(until - started)))
    }

    async fn authenticate(&self, channel: Channel) -> Result<Client, EtcdFailure> {
        // The library would log in again without a pause, and only for one of the reasons.
        let options = ConnectOptions::new().with_require_leader(self.is_for_watches);
        let mut client = Client::from_channel(channel, Some(options)).await?;
        if self.config.credentials.is_some() {
            let login = async {
                self.authentications.fetch_add(1, Ordering::Relaxed);
                match client
                    .update_user(self.config.credentials.clone())
                    .await
                    .map_err(EtcdFailure::from)
                {
                    // As in etcd's own client, a password for a server without authentication is
                    // not an error.
                    Err(EtcdFailure::Status(status))
                        if status.message() == AUTH_DISABLED_MESSAGE =>
                    {
                        Ok(())
                    }
                    other => other,
                }
            };
            self.logins.run(login).await?;
        }
        Ok(client)
    }

    fn peer(&self, has_answered: bool) -> EtcdPeer<'_> {
        let user = self
            .config
            .credentials
            .as_ref()
            .map(|(user, _)| user.as_str());
        EtcdPeer {
            tls: self.tls_description.as_deref(),
            user,
            has_answered,
        }
    }
}

fn load_tls(config: &EtcdConfig) -> Result<Option<TlsConnector>, ConfigError> {
    config.tls.as_ref().map(tls::load).transpose()
}

fn create_endpoint(url: &str) -> Result<Endpoint, ConfigError> {
    Endpoint::from_shared(url.to_owned()).map_err(|_| ConfigError::InvalidEndpoint(url.into()))
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.endpoints.iter().map(Endpoint::uri))
            .finish()
    }
}
