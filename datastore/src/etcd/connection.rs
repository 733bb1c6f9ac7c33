//! A connection to the cluster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions};
use hyper_util::rt::TokioIo;
use libcalico::store::StoreError;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

use super::error::{self, Failure, Peer};
use super::tls;
use crate::config::{ConfigError, EtcdConfig};
use crate::dial::dial;
use crate::error_chain::chain;

/// An answer may be larger than tonic's 4 MiB: all handles of a large cluster.
pub(super) const MAX_ANSWER: usize = usize::MAX;
/// A connection on which nothing happens for long is asked this often whether it still is one.
const PING: Duration = Duration::from_secs(10);

/// Where the cluster is, and the connection to the endpoint that answered.
pub(super) struct Connection {
    config: EtcdConfig,
    /// With certificates and keys as they were at first.
    first: Vec<Endpoint>,
    /// The certificates and keys in words.
    tls: Option<String>,
    /// Whether it serves watches: a member that has lost the others is of no use to them.
    for_watches: bool,
    authentications: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// With certificates and keys as they were read last.
    endpoints: Vec<Endpoint>,
    /// Whether a connection was made: the next one is made with the files as they are then.
    used: bool,
    client: Option<Client>,
    /// Whether the server has answered anything on this connection.
    answered: bool,
    /// The endpoint to try first: the one in use, or the one after it when that failed.
    next: usize,
}

impl Connection {
    /// Reads certificates and keys.
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        Ok(Self::with(config, endpoints(config)?, false))
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

    /// Another connection to the same cluster, for what is under way for long: it notices that the other end is gone,
    /// and a member that has lost the others ends what it can no longer know about.
    pub(super) fn for_watches(&self) -> Self {
        Self::with(&self.config, self.first.clone(), true)
    }

    /// How many endpoints there are.
    pub(super) fn endpoints(&self) -> usize {
        self.first.len()
    }

    /// How many times a password was presented.
    pub(super) fn authentications(&self) -> u64 {
        self.authentications.load(Ordering::Relaxed)
    }

    /// The connected client. Connects when there is none: to each endpoint in turn, each with its share of the time
    /// that is left, until one answers.
    pub(super) async fn get(&self, deadline: Instant) -> Result<Client, StoreError> {
        let mut state = self.state.lock().await;
        if let Some(client) = &state.client {
            return Ok(client.clone());
        }
        if std::mem::replace(&mut state.used, true) {
            match endpoints(&self.config) {
                Ok(endpoints) => state.endpoints = endpoints,
                Err(error) => tracing::warn!(%error, "the certificates for etcd that were read before stay in use"),
            }
        }
        let mut failures = Vec::new();
        for left in (1..=state.endpoints.len()).rev() {
            let now = Instant::now();
            let share = now + deadline.saturating_duration_since(now) / left as u32;
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
        Err(error::of_connecting(&failures, &Peer { tls: self.tls.as_deref(), user: self.user(), answered: false }))
    }

    /// The server has answered, if only by a refusal.
    pub(super) async fn answered(&self) {
        self.state.lock().await.answered = true;
    }

    /// Forgets a connection that broke; the next request goes to the next endpoint. Returns whether the server had
    /// answered anything on it.
    pub(super) async fn discard(&self) -> bool {
        let mut state = self.state.lock().await;
        if state.client.take().is_some() {
            state.next = (state.next + 1) % state.endpoints.len();
        }
        state.answered
    }

    /// What a failed request means to the caller.
    pub(super) fn explain(&self, failure: &Failure, writing: bool, answered: bool) -> StoreError {
        let datastore = self.first.iter().map(|e| e.uri().to_string()).collect::<Vec<_>>().join(",");
        let peer = Peer { tls: self.tls.as_deref(), user: self.user(), answered };
        failure.explain(datastore, &peer, writing)
    }

    async fn connect(&self, endpoint: &Endpoint, until: Instant) -> Result<Client, Failure> {
        let begun = Instant::now();
        let endpoint = match self.for_watches {
            true => {
                endpoint.clone().http2_keep_alive_interval(PING).keep_alive_timeout(PING).keep_alive_while_idle(true)
            }
            false => endpoint.clone(),
        };
        let connecting = async {
            let dial = service_fn(async |server: Uri| dial(&server).await.map(TokioIo::new));
            let channel = endpoint.connect_with_connector(dial).await.map_err(Failure::Connect)?;
            self.authenticate(Channel::Tonic(channel)).await
        };
        timeout_at(until, connecting).await.unwrap_or_else(|_| Err(Failure::Timeout(until - begun)))
    }

    async fn authenticate(&self, channel: Channel) -> Result<Client, Failure> {
        let options = ConnectOptions::new().with_auto_token_refresh(true).with_require_leader(self.for_watches);
        let mut client = Client::from_channel(channel, Some(options)).await?;
        if self.config.credentials.is_some() {
            self.authentications.fetch_add(1, Ordering::Relaxed);
            match client.update_user(self.config.credentials.clone()).await.map_err(Failure::from) {
                // As etcd's own client: a password that no one asks for does no harm.
                Err(failure) if failure.is_auth_disabled() => {}
                other => other?,
            }
        }
        Ok(client)
    }

    fn user(&self) -> Option<&str> {
        self.config.credentials.as_ref().map(|(user, _)| user.as_str())
    }
}

/// The endpoints, with certificates and keys as they are now.
fn endpoints(config: &EtcdConfig) -> Result<Vec<Endpoint>, ConfigError> {
    let tls = config.tls.as_ref().map(tls::load).transpose()?;
    let endpoint = |url: &String| {
        let invalid = |_| ConfigError::Endpoint { found: url.clone() };
        let endpoint = Endpoint::from_shared(url.clone()).map_err(invalid)?;
        match &tls {
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(|e| {
                let setting = "etcd_cert_file, etcd_key_file, etcd_ca_cert_file";
                ConfigError::Pem { setting, reason: chain(&e) }
            }),
            None => Ok(endpoint),
        }
    };
    config.endpoints.iter().map(endpoint).collect()
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.first.iter().map(Endpoint::uri)).finish()
    }
}
