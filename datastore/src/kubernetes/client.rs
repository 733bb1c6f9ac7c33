//! Sends requests to the API server, with deadlines, retries and renewed tokens.

mod connect;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use hyper::{Request, Response, StatusCode};
use kube::client::Body;
use libcalico::store::StoreError;
use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep, timeout};
use tower::{BoxError, service_fn};

use connect::{Opened, OpenedClient, open};

use super::access_error::AccessError;
use super::error::{
    ApiStatusError, RequestError, advice_about_foreign_answer, describe_answer, retry_after,
};
use super::rate_limit::RateLimiter;
use super::request::ApiRequest;
use super::streaming::ListReader;
use super::transport::{RequestSent, TransportError};
use super::turns::Turns;
use crate::backoff::Backoff;
use crate::config::{ClientPlace, KubernetesConfig};
use crate::deadline::Deadline;

/// Maximum number of HTTP/1.1 connections for short requests in a long-running process. In a
/// short-lived process, more than one connection would take more time for handshakes than it saves.
const LONG_RUNNING_CONNECTIONS: usize = 8;
/// First and longest pause before a retry. A `Retry-After` of the server can be longer.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A process's client of the API server. The first request opens the connection.
pub(super) struct ApiClient {
    config: KubernetesConfig,
    connections: usize,
    requests: AtomicU64,
    opened: Arc<Mutex<Option<Opened>>>,
    rate_limiter: RateLimiter,
    pub(super) turns: Turns,
    pub(super) deadline: Deadline,
}

/// A mark on a request whose sender limits its duration itself.
#[derive(Clone)]
pub(super) struct OwnDeadline;

impl ApiClient {
    /// Creates a client. Neither reads files nor sends a request.
    pub(super) fn new(config: &KubernetesConfig) -> Self {
        ApiClient {
            config: config.clone(),
            connections: 1,
            requests: AtomicU64::new(0),
            opened: Arc::default(),
            rate_limiter: RateLimiter::new(config.rate),
            turns: Turns::default(),
            deadline: Deadline::new(config.deadline),
        }
    }

    /// Creates a client for a long-running process, which reads certificates and kubeconfig again
    /// when they change.
    pub(super) fn long_running(config: &KubernetesConfig) -> Self {
        ApiClient {
            connections: LONG_RUNNING_CONNECTIONS,
            ..Self::new(config)
        }
    }

    /// Returns the number of requests that [`send`](Self::send) and
    /// [`send_streaming`](Self::send_streaming) have sent so far, including retries.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns the API server's URL for errors, or a substitute if the URL is not known yet.
    pub(super) async fn server(&self) -> String {
        match &*self.opened.lock().await {
            Some(opened) => opened.client.server.clone(),
            None => self
                .config
                .kubeconfig
                .first()
                .map(|file| file.display().to_string())
                .unwrap_or_default(),
        }
    }

    /// Returns the API server's URL, and reads the settings first if necessary.
    pub(super) async fn url(&self) -> Result<String, RequestError> {
        self.ensure_open()
            .await
            .map(|opened| opened.server)
            .map_err(|error| RequestError::NoAccess(error.to_string()))
    }

    /// Sends a request and returns the object of the response. Retries temporary failures within
    /// the deadline, if the request only reads or certainly had no effect. Waiting in turn for a
    /// busy server does not count towards the deadline.
    pub(super) async fn send(&self, request: &ApiRequest) -> Result<Value, RequestError> {
        self.send_streaming(request, None).await
    }

    /// Does the same as [`send`](Self::send). If `list` is given, passes each item of the response
    /// to `list` when the item arrives, and returns the list without its items.
    pub(super) async fn send_streaming(
        &self,
        request: &ApiRequest,
        mut list: Option<&mut ListReader<'_>>,
    ) -> Result<Value, RequestError> {
        self.rate_limiter.admit().await;
        let (is_read, mut request) = (request.is_read(), Cow::Borrowed(request));
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut begun, mut is_token_renewed, mut turn) = (Instant::now(), false, None);
        // The failure of the previous attempt.
        let mut previous = None;
        loop {
            if turn.is_none() {
                let waiting = Instant::now();
                turn = self
                    .turns
                    .admit()
                    .await
                    .map_err(|late| RequestError::NotSent(late.to_string()))?;
                if turn.is_some() {
                    // A turn means that the server has responded to another request, perhaps of
                    // another process.
                    self.deadline.record_response();
                    // Only the wait does not count: if the server is lost after it was busy, the
                    // request ends in time.
                    begun += waiting.elapsed();
                }
            }
            let opening = Instant::now();
            let opened = self
                .ensure_open()
                .await
                .map_err(|error| RequestError::NoAccess(error.to_string()))?;
            // The time limit does not include the run of a credential plugin, which may ask a
            // person.
            begun += opening.elapsed();
            let sent = RequestSent::default();
            let until = self.attempt_deadline(&request);
            let attempt = self.try_once(&opened, &request, &sent, list.as_deref_mut());
            let failure = match self.deadline.within(begun, until, attempt).await {
                Some(Ok(object)) => return Ok(object),
                Some(Err(failure)) => Some(failure),
                None if until < self.deadline.expiry(begun) => None,
                None => return Err(self.timeout_error(&sent, previous).await),
            };
            let failure = match failure {
                Some(failure) if !(request.cache.is_some() && failure.is_cache_failure()) => {
                    failure
                }
                failed => {
                    let reason = failed
                        .map_or_else(|| "no answer in time".into(), |failure| failure.to_string());
                    tracing::debug!(
                        request = request.url(),
                        reason,
                        "the API server's cache did not serve the read; reading from storage"
                    );
                    request = Cow::Owned(request.into_owned().with_cache(None));
                    begun = Instant::now();
                    continue;
                }
            };
            let wait = match &failure {
                RequestError::Refused(refusal)
                    if refusal.is_throttling() && self.turns.is_enabled() =>
                {
                    let wait = backoff
                        .next_with_retry_after(refusal.retry_after)
                        .within(Duration::MAX);
                    turn = self.turns.pause(turn.take(), wait).await;
                    if turn.is_none() {
                        return Err(failure);
                    }
                    begun = Instant::now();
                    continue;
                }
                RequestError::Refused(refusal)
                    if refusal.status.code == 401 && !is_token_renewed =>
                {
                    // The token may have been renewed since the file was read.
                    is_token_renewed = true;
                    self.discard(|present| present.is(&opened)).await;
                    continue;
                }
                RequestError::Refused(refusal)
                    if refusal.is_busy() || refusal.may_have_executed() && is_read =>
                {
                    backoff.next_with_retry_after(refusal.retry_after)
                }
                RequestError::NotSent(_) => backoff.next_with_retry_after(None),
                RequestError::NoResponse(_) if is_read => backoff.next_with_retry_after(None),
                _ => return Err(failure),
            };
            let remaining = self
                .deadline
                .expiry(begun)
                .saturating_duration_since(Instant::now());
            if wait.minimum >= remaining {
                return Err(failure);
            }
            turn = None;
            previous = Some(failure);
            sleep(wait.within(remaining)).await;
        }
    }

    pub(super) async fn to_store_error(
        &self,
        failure: RequestError,
        key: &str,
        is_write: bool,
    ) -> StoreError {
        let mut error = failure.into_store_error(key, &self.server().await, is_write);
        if let StoreError::ForeignAnswer { reason, .. } = &mut error {
            let advice =
                advice_about_foreign_answer(reason, self.config.place == ClientPlace::Node);
            *reason = format!("{reason}; {advice}");
        }
        error
    }

    /// Returns the instant at which an attempt that starts now ends at the latest. A read from the
    /// server's cache gets at most half of the time limit.
    fn attempt_deadline(&self, request: &ApiRequest) -> Instant {
        let deadline = self.config.deadline;
        Instant::now()
            + request
                .cache
                .map_or(deadline, |cache| cache.time_limit.min(deadline / 2))
    }

    /// Returns the failure of a request at its deadline. A request that was never written to a
    /// connection had no effect. Its last attempt may have had only a moment, so the failure of the
    /// `previous` attempt is the reason.
    async fn timeout_error(
        &self,
        sent: &RequestSent,
        previous: Option<RequestError>,
    ) -> RequestError {
        let deadline = self.deadline.limit();
        if sent.is_set() {
            return RequestError::NoResponse(format!("no answer within {deadline:?}"));
        }
        if let Some(previous) = previous {
            return previous;
        }
        RequestError::NotSent(format!(
            "cannot send the request to {} within {deadline:?}",
            self.server().await
        ))
    }

    async fn try_once(
        &self,
        opened: &OpenedClient,
        request: &ApiRequest,
        sent: &RequestSent,
        list: Option<&mut ListReader<'_>>,
    ) -> Result<Value, RequestError> {
        let mut built = request.build()?;
        built.extensions_mut().insert(sent.clone());
        self.requests.fetch_add(1, Ordering::Relaxed);
        let answer = opened.client.send(built).await?;
        self.deadline.record_response();
        let (parts, body) = answer.into_parts();
        if let Some(list) = list.filter(|_| parts.status.is_success()) {
            let of_answer = |failure| match failure {
                RequestError::Unreadable(problem) => {
                    let description = describe_answer(parts.status, &parts.headers, &[]);
                    RequestError::Unreadable(format!("{problem} ({description})"))
                }
                failure => failure,
            };
            return list.read(body).await.map_err(of_answer);
        }
        let bytes = body.collect_bytes().await.map_err(RequestError::from)?;
        if !parts.status.is_success() {
            let mut refusal =
                ApiStatusError::parse(parts.status, &bytes, retry_after(&parts.headers));
            if refusal.status.code == 401 {
                refusal.credential = opened.auth.describe_rejected();
            }
            return Err(RequestError::Refused(Box::new(refusal)));
        }
        request.parse(&bytes).map_err(|problem| {
            let description = describe_answer(parts.status, &parts.headers, &bytes);
            RequestError::Unreadable(format!("cannot read the answer ({description}): {problem}"))
        })
    }

    /// Sends a request of any kind once. A request without the mark [`OwnDeadline`] fails at the
    /// configured time limit.
    async fn forward(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let opened = self.ensure_open().await?;
        let has_own_deadline = request.extensions().get::<OwnDeadline>().is_some();
        let deadline = self.config.deadline;
        let answer = async {
            let (parts, body) = opened.client.send(request).await?.into_parts();
            let body = if has_own_deadline {
                body
            } else {
                Body::from(body.collect_bytes().await?)
            };
            Ok(Response::from_parts(parts, body))
        };
        let answer: Result<Response<Body>, BoxError> = if has_own_deadline {
            answer.await
        } else {
            timeout(deadline, answer)
                .await
                .unwrap_or_else(|_| Err(TransportError::Timeout(deadline).into()))
        };
        // As in client-go, the plugin gives other credentials to the next request, and this one
        // fails.
        if opened.has_plugin()
            && answer
                .as_ref()
                .is_ok_and(|answer| answer.status() == StatusCode::UNAUTHORIZED)
        {
            self.discard(OpenedClient::is_renewable).await;
        }
        answer
    }

    /// Returns the client itself, for requests with long-running responses. If `must_renew` is
    /// true, reads the credentials again.
    pub(super) async fn kube_client(&self, must_renew: bool) -> Result<kube::Client, AccessError> {
        if must_renew {
            self.discard(OpenedClient::is_renewable).await;
        }
        self.ensure_open().await.map(|opened| opened.client)
    }

    /// Discards the present client if `is_rejected` returns true, so that the next request reads
    /// the credentials again.
    async fn discard(&self, is_rejected: impl FnOnce(&OpenedClient) -> bool) {
        self.opened
            .lock()
            .await
            .take_if(|opened| is_rejected(&opened.client));
    }

    async fn ensure_open(&self) -> Result<OpenedClient, AccessError> {
        let mut slot = Arc::clone(&self.opened).lock_owned().await;
        if let Some(opened) = &mut *slot
            && !opened.is_outdated()
        {
            return Ok(opened.client.clone());
        }
        if self.config.place == ClientPlace::Node {
            return fill(slot, &self.config, self.connections).await;
        }
        // The caller may have a shorter time limit than a credential plugin. If the caller gives
        // up, the run continues for the next one, which would otherwise start the plugin again
        // beside it.
        let (config, connections) = (self.config.clone(), self.connections);
        let filling = tokio::spawn(async move { fill(slot, &config, connections).await });
        filling.await.unwrap_or_else(|_| {
            let reason = "the task that reads it ended".to_owned();
            Err(AccessError::Kubeconfig {
                place: self.config.to_string(),
                reason,
            })
        })
    }
}

/// Opens the client. If that fails, a present client stays in use.
async fn fill(
    mut slot: OwnedMutexGuard<Option<Opened>>,
    config: &KubernetesConfig,
    connections: usize,
) -> Result<OpenedClient, AccessError> {
    match (open(config, connections).await, &mut *slot) {
        (Err(error), None) => Err(error),
        (Err(error), Some(previous)) => {
            tracing::warn!(
                %error,
                "cannot use the changed kubeconfig or credentials; keeping the old ones",
            );
            previous.stay();
            Ok(previous.client.clone())
        }
        (Ok(opened), _) => Ok(slot.insert(opened).client.clone()),
    }
}

/// Creates a client for the API server that `settings` name. If the server supports HTTP/2, the
/// client uses one connection for all requests. Each request ends within the deadline of
/// `settings`, except for those of an [`ApiSource`](super::ApiSource).
pub async fn client(settings: &KubernetesConfig) -> Result<kube::Client, AccessError> {
    let api = Arc::new(ApiClient::long_running(settings));
    let namespace = api
        .ensure_open()
        .await?
        .client
        .default_namespace()
        .to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move { api.forward(request).await }.boxed()
    });
    Ok(kube::Client::new(service, namespace))
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ApiClient").field(&self.config).finish()
    }
}

#[cfg(test)]
mod tests;
