//! [`Lanes`]: HTTP/1.1 connections, each of which carries one request at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response};
use kube::client::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::TransportError;

/// The idle connections, and the permits to use one.
pub(super) struct Lanes {
    permits: Arc<Semaphore>,
    idle: Idle,
}

/// Connections without a request.
#[derive(Clone)]
struct Idle {
    senders: Arc<Mutex<Vec<SendRequest<Body>>>>,
    most: usize,
}

/// The permission of one request to use a connection.
pub(super) struct Lane {
    /// Absent for a watch, which does not count towards the limit.
    permit: Option<OwnedSemaphorePermit>,
    idle: Idle,
}

impl Lanes {
    /// Creates the permits for `count` short requests at a time.
    pub(super) fn new(count: usize) -> Self {
        let idle = Idle { senders: Arc::default(), most: count };
        Lanes { permits: Arc::new(Semaphore::new(count)), idle }
    }

    /// Returns the permission for a request. Waits until a permit is free.
    pub(super) async fn take_turn(&self, is_watch: bool) -> Lane {
        let permit = match is_watch {
            true => None,
            // The semaphore is never closed.
            false => Arc::clone(&self.permits).acquire_owned().await.ok(),
        };
        Lane { permit, idle: self.idle.clone() }
    }

    /// Stores an idle connection for later requests.
    pub(super) fn put_back(&self, sender: SendRequest<Body>) {
        self.idle.put(sender);
    }
}

impl Lane {
    /// Returns an idle connection that is still open, if there is one.
    pub(super) async fn waiting(&self) -> Option<SendRequest<Body>> {
        loop {
            let mut sender = self.idle.take()?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    /// Sends a request on `sender`. Stores the connection for later requests when the response has been read to its
    /// end.
    pub(super) async fn send(
        self,
        mut sender: SendRequest<Body>,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TransportError> {
        let answer = sender.send_request(request).await?;
        let Lane { permit, idle } = self;
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                idle.put(sender);
            }
            drop(permit);
        });
        Ok(answer)
    }
}

impl Idle {
    fn put(&self, sender: SendRequest<Body>) {
        let mut senders = self.senders();
        if senders.len() < self.most {
            senders.push(sender);
        }
    }

    fn take(&self) -> Option<SendRequest<Body>> {
        self.senders().pop()
    }

    fn senders(&self) -> MutexGuard<'_, Vec<SendRequest<Body>>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the response to `request` continues until either end closes it.
pub(super) fn is_watch(request: &Request<Body>) -> bool {
    let parameters = request.uri().query().unwrap_or_default();
    parameters.split('&').any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}
