//! Sends requests to the API server, with deadlines, retries and renewed tokens.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response};
use kube::client::{Body, ConfigExt};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tower::{BoxError, ServiceBuilder, service_fn};

use super::access::{self, Access, AccessError};
use super::config::KubernetesConfig;
use super::credential_files::CredentialFiles;
use super::failure::{Failure, Refusal};
use super::login::Login;
use super::request::ApiRequest;
use super::streaming::ListReader;
use super::throttle::Throttle;
use super::tls;
use super::transport::{Departure, Transport, TransportError};
use super::turns::{Late, Turns, WhenBusy};
use crate::deadline::Deadline;
use crate::error_chain::chain;

/// The first pause before a retry; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Upper limit of the `Retry-After` header. It exceeds every deadline, so a request that reaches it fails.
const LONGEST_ADVICE: Duration = Duration::from_secs(3600);
/// Number of parallel short requests in a long-running process if the server supports only HTTP/1.1. In a short-lived
/// process, the additional handshakes would cost more time than they save.
const CLIENT_LANES: usize = 8;
/// User agent of each request. The part before the slash is the field manager of each write.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("calico/", env!("CARGO_PKG_VERSION")));

/// A process's client of the API server. The first request opens the connection.
pub(super) struct ApiClient {
    config: KubernetesConfig,
    /// Number of HTTP/1.1 connections for short requests; more than one only in a long-running process.
    lanes: usize,
    requests: AtomicU64,
    opened: Mutex<Option<(Opened, Option<CredentialFiles>)>>,
    throttle: Throttle,
    turns: Turns,
    deadline: Deadline,
}

#[derive(Clone)]
struct Opened {
    client: kube::Client,
    login: Login,
    server: String,
}

/// A mark on a request whose sender limits its duration itself.
#[derive(Clone)]
pub(super) struct OwnDeadline;

impl ApiClient {
    /// Creates a client. Neither reads files nor sends a request.
    pub(super) fn new(config: &KubernetesConfig) -> Self {
        Self::with_lanes(config, 1)
    }

    /// Creates a client for a long-running process. It reads certificates and kubeconfig again when they change, and
    /// has several connections if the server supports only HTTP/1.1.
    pub(super) fn lasting(config: &KubernetesConfig) -> Self {
        Self::with_lanes(config, CLIENT_LANES)
    }

    fn with_lanes(config: &KubernetesConfig, lanes: usize) -> Self {
        ApiClient {
            config: config.clone(),
            lanes,
            requests: AtomicU64::new(0),
            opened: Mutex::default(),
            throttle: Throttle::new(config.rate),
            turns: Turns::default(),
            deadline: Deadline::new(config.deadline),
        }
    }

    /// See [`Datastore::expect_first_answer_within`](crate::Datastore::expect_first_answer_within).
    pub(super) fn expect_first_answer_within(&self, patience: Duration) {
        self.deadline.expect_first_answer_within(patience);
    }

    /// See [`Datastore::wait_while_busy`](crate::Datastore::wait_while_busy).
    pub(super) fn wait_while_busy(&self, rule: WhenBusy) {
        self.turns.wait_by(rule);
    }

    /// See [`Datastore::was_busy`](crate::Datastore::was_busy).
    pub(super) fn was_busy(&self) -> bool {
        self.turns.was_busy()
    }

    /// Returns true if requests no longer wait for a busy server, but fail at once.
    pub(super) fn has_given_up(&self) -> bool {
        self.turns.are_over()
    }

    /// Returns the number of requests sent so far, including retries.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns the API server's URL for errors, or the path of the kubeconfig if the URL has not been read yet.
    pub(super) async fn server(&self) -> String {
        match &*self.opened.lock().await {
            Some((opened, _)) => opened.server.clone(),
            None => self.config.kubeconfig.first().map(|file| file.display().to_string()).unwrap_or_default(),
        }
    }

    /// Returns the API server's URL, and reads it from the settings if necessary.
    pub(super) async fn url(&self) -> Result<String, Failure> {
        self.opened().await.map(|opened| opened.server).map_err(|error| Failure::NoAccess(error.to_string()))
    }

    /// Sends a request and returns the object of the response. Retries the request within the deadline if it certainly
    /// had no effect, or only reads. Waiting in turn for a busy server does not count towards the deadline. A read that
    /// the server's cache cannot serve is sent once more to the server's own storage, with a new deadline.
    pub(super) async fn send(&self, request: &ApiRequest) -> Result<Value, Failure> {
        self.send_for(request, None).await
    }

    /// Does the same as [`send`](Self::send) for a list, and passes each item to `list` as it arrives. Returns the list
    /// without its items.
    pub(super) async fn send_for_list(
        &self,
        request: &ApiRequest,
        list: &mut ListReader<'_>,
    ) -> Result<Value, Failure> {
        self.send_for(request, Some(list)).await
    }

    async fn send_for(&self, request: &ApiRequest, mut list: Option<&mut ListReader<'_>>) -> Result<Value, Failure> {
        self.throttle.admit().await;
        let mut request = Cow::Borrowed(request);
        let (mut begun, mut pause, mut renewed, mut turn) = (Instant::now(), FIRST_PAUSE, false, None);
        loop {
            if turn.is_none() {
                turn = self.turns.admit().await.map_err(|Late| self.never_admitted())?;
                if turn.is_some() {
                    // The server has responded to another process, or to another request of this process.
                    self.deadline.answered();
                    begun = Instant::now();
                }
            }
            let departure = Departure::default();
            let until = self.attempt_ends(&request);
            let attempt = self.try_once(&request, &departure, list.as_deref_mut());
            let failure = match self.deadline.within(begun, until, attempt).await {
                Some(Ok(object)) => return Ok(object),
                Some(Err(failure)) => Some(failure),
                None if until < self.deadline.until(begun) => None,
                None => return Err(self.late(&departure).await),
            };
            let failure = match failure {
                Some(failure) if !(request.cache.is_some() && failure.is_of_cache()) => failure,
                failed => {
                    let reason = failed.map_or_else(|| "it is late".into(), |failure| failure.to_string());
                    tracing::debug!(
                        request = request.url(),
                        reason,
                        "not from the API server's cache, so from its store"
                    );
                    request = Cow::Owned(request.into_owned().or_cached(None));
                    begun = Instant::now();
                    continue;
                }
            };
            let wait = match &failure {
                Failure::Refused(refusal) if refusal.is_throttling() && self.turns.are_taken() => {
                    let wait = Wait::of(pause, refusal.retry_after).within(Duration::MAX);
                    turn = self.turns.pause(turn.take(), wait).await;
                    if turn.is_none() {
                        return Err(failure);
                    }
                    begun = Instant::now();
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
                Failure::Refused(refusal) if refusal.status.code == 401 && !renewed => {
                    // The token may have been renewed since the file was read.
                    renewed = true;
                    *self.opened.lock().await = None;
                    continue;
                }
                Failure::Refused(refusal) if refusal.is_busy() => Wait::of(pause, refusal.retry_after),
                Failure::Refused(refusal) if refusal.is_doubtful() && request.is_reading() => {
                    Wait::of(pause, refusal.retry_after)
                }
                Failure::NotSent(_) => Wait::of(pause, None),
                Failure::NoAnswer(_) if request.is_reading() => Wait::of(pause, None),
                _ => return Err(failure),
            };
            let left = self.deadline.until(begun).saturating_duration_since(Instant::now());
            if wait.least >= left {
                return Err(failure);
            }
            turn = None;
            sleep(wait.within(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn never_admitted(&self) -> Failure {
        Failure::NotSent(
            "the API server is busy (429), and this process's turn to ask did not come: others of this node wait too"
                .into(),
        )
    }

    /// Returns the end of an attempt, unless the deadline is earlier.
    fn attempt_ends(&self, request: &ApiRequest) -> Instant {
        let deadline = self.config.deadline;
        Instant::now() + request.cache.map_or(deadline, |cache| cache.patience.min(deadline / 2))
    }

    /// Returns the failure of a request at its deadline. A request that was never written to a connection had no
    /// effect.
    async fn late(&self, departure: &Departure) -> Failure {
        let deadline = self.deadline.length();
        match departure.happened() {
            true => Failure::NoAnswer(format!("no answer within {deadline:?}")),
            false => Failure::NotSent(format!("nothing could be sent to {} within {deadline:?}", self.server().await)),
        }
    }

    async fn try_once(
        &self,
        request: &ApiRequest,
        departure: &Departure,
        list: Option<&mut ListReader<'_>>,
    ) -> Result<Value, Failure> {
        let opened = self.opened().await.map_err(|error| Failure::NoAccess(error.to_string()))?;
        let mut built = request.build()?;
        built.extensions_mut().insert(departure.clone());
        self.requests.fetch_add(1, Ordering::Relaxed);
        let answer = opened.client.send(built).await?;
        self.deadline.answered();
        let (parts, body) = answer.into_parts();
        if let Some(list) = list.filter(|_| parts.status.is_success()) {
            return list.read(body).await;
        }
        let bytes = body.collect_bytes().await.map_err(Failure::from)?;
        if !parts.status.is_success() {
            let mut refusal = Refusal::parse(parts.status, &bytes, retry_after(&parts.headers));
            if refusal.status.code == 401 {
                refusal.credential = opened.login.refused();
            }
            return Err(Failure::Refused(Box::new(refusal)));
        }
        request.parse(&bytes).map_err(|e| Failure::Unreadable(format!("the answer cannot be read: {e}")))
    }

    /// Sends a request of any kind once, within the deadline unless the request is marked with [`OwnDeadline`].
    async fn pass_on(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let Opened { client, .. } = self.opened().await?;
        if request.extensions().get::<OwnDeadline>().is_some() {
            return Ok(client.send(request).await?);
        }
        let deadline = self.config.deadline;
        let answer = async {
            let (parts, body) = client.send(request).await?.into_parts();
            Ok(Response::from_parts(parts, Body::from(body.collect_bytes().await?)))
        };
        timeout(deadline, answer).await.unwrap_or_else(|_| Err(TransportError::Late(deadline).into()))
    }

    /// Returns the client itself, for requests with long-running responses. `renewed` reads the credentials again.
    pub(super) async fn kube(&self, renewed: bool) -> Result<kube::Client, AccessError> {
        if renewed {
            *self.opened.lock().await = None;
        }
        self.opened().await.map(|opened| opened.client)
    }

    async fn opened(&self) -> Result<Opened, AccessError> {
        let mut slot = self.opened.lock().await;
        if let Some((opened, files)) = &mut *slot
            && !files.as_mut().is_some_and(CredentialFiles::have_changed)
        {
            return Ok(opened.clone());
        }
        match (open(&self.config, self.lanes).await, &*slot) {
            (Err(error), None) => Err(error),
            (Err(error), Some((former, _))) => {
                tracing::warn!(%error, "certificates or kubeconfig changed, and the former ones stay in use");
                Ok(former.clone())
            }
            (Ok(found), _) => Ok(slot.insert(found).0.clone()),
        }
    }
}

/// Creates a client for the API server that `settings` name. If the server supports HTTP/2, the client uses one
/// connection for everything, including watches. It renews the token of a pod, and reads certificates again when they
/// change. Each request ends within the deadline of `settings`, except for those of an [`ApiSource`](super::ApiSource).
pub async fn client(settings: &KubernetesConfig) -> Result<kube::Client, AccessError> {
    let api = Arc::new(ApiClient::lasting(settings));
    let namespace = api.opened().await?.client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move { api.pass_on(request).await }.boxed()
    });
    Ok(kube::Client::new(service, namespace))
}

/// Reads the settings and prepares the client. In a long-running process, also returns the files that were read.
async fn open(settings: &KubernetesConfig, lanes: usize) -> Result<(Opened, Option<CredentialFiles>), AccessError> {
    let Access { config, login } = access::read(settings).await?;
    let files = (lanes > 1).then(|| CredentialFiles::of(settings, &config.auth_info));
    let tls = match config.cluster_url.scheme_str() {
        Some("http") => None,
        _ => Some(tls::client_config(&config)?),
    };
    let refuse = |reason: String| AccessError::Tls { what: "connection", reason };
    let transport = Transport::new(&config.cluster_url, tls, config.tls_server_name.as_deref(), lanes)
        .map_err(|e| refuse(e.to_string()))?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(config.extra_headers_layer().map_err(|e| refuse(chain(&e)))?)
        .map_request({
            let login = login.clone();
            move |request: Request<Body>| {
                let mut request = login.sign(request);
                request.headers_mut().insert(USER_AGENT, AGENT);
                request
            }
        })
        .service(transport);
    let server = config.cluster_url.to_string();
    Ok((Opened { client: kube::Client::new(service, config.default_namespace), login, server }, files))
}

pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let advice = headers.get(RETRY_AFTER)?;
    // A proxy may send a date. A value that is not a number counts as the API server's minimum of one second.
    let seconds = advice.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    Some(Duration::from_secs(seconds).min(LONGEST_ADVICE))
}

/// The pause before a retry. It is random, so that clients that were rejected together do not retry at the same time.
#[derive(Debug)]
struct Wait {
    least: Duration,
    /// Maximum random addition to `least`.
    spread: Duration,
}

impl Wait {
    /// Creates a pause between half of `pause` and all of it. It is never shorter than the time that the server asks
    /// for, and not much longer if that time is the longer one.
    fn of(pause: Duration, advice: Option<Duration>) -> Wait {
        let advice = advice.unwrap_or_default();
        Wait { least: advice.max(pause / 2), spread: (advice / 8).max(pause / 2) }
    }

    /// Returns a random pause that leaves at least half of the remaining time after `least` for the request.
    fn within(&self, left: Duration) -> Duration {
        let random = RandomState::new().hash_one(0) % 1000;
        self.least + self.spread.min(left.saturating_sub(self.least) / 2) * random as u32 / 1000
    }
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ApiClient").field(&self.config).finish()
    }
}

#[cfg(test)]
mod tests;
