//! [`Http1Pool`]: HTTP/1.1 connections, each of which carries one request at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response};
use kube::client::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connect::TransportError;

/// The idle connections, and the permits to use one.
pub(super) struct Http1Pool {
    permits: Arc<Semaphore>,
    idle: IdleConnections,
}

/// Connections without a request.
#[derive(Clone)]
struct IdleConnections {
    senders: Arc<Mutex<Vec<SendRequest<Body>>>>,
    capacity: usize,
}

/// The permission of one request to use a connection.
pub(super) struct Http1Permit {
    /// Absent for a watch, which does not count towards the limit.
    permit: Option<OwnedSemaphorePermit>,
    idle: IdleConnections,
}

impl Http1Pool {
    /// Creates the permits for `count` short requests at a time.
    pub(super) fn new(count: usize) -> Self {
        let idle = IdleConnections { senders: Arc::default(), capacity: count };
        Http1Pool { permits: Arc::new(Semaphore::new(count)), idle }
    }

    /// Returns the permission for a request. Waits until a permit is free.
    pub(super) async fn acquire(&self, is_watch: bool) -> Http1Permit {
        // The semaphore is never closed.
        let permit = if is_watch { None } else { Arc::clone(&self.permits).acquire_owned().await.ok() };
        Http1Permit { permit, idle: self.idle.clone() }
    }

    /// Stores an idle connection for later requests.
    pub(super) fn put_back(&self, sender: SendRequest<Body>) {
        self.idle.put(sender);
    }
}

impl Http1Permit {
    /// Returns an idle connection that is still open, if there is one.
    pub(super) async fn idle_connection(&self) -> Option<SendRequest<Body>> {
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
        let Http1Permit { permit, idle } = self;
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                idle.put(sender);
            }
            drop(permit);
        });
        Ok(answer)
    }
}

impl IdleConnections {
    fn put(&self, sender: SendRequest<Body>) {
        let mut senders = self.senders();
        if senders.len() < self.capacity {
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
