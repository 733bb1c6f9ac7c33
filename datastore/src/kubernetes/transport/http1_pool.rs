//! [`Http1Pool`]: HTTP/1.1 connections, each of which carries one request at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response};
use kube::client::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connect::TransportError;

/// The idle connections, and the permits that limit the number of concurrent short requests.
pub(super) struct Http1Pool {
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<SendRequest<Body>>>,
    capacity: usize,
}

pub(super) struct Http1Permit {
    /// `None` for a watch, which does not count towards the limit.
    permit: Option<OwnedSemaphorePermit>,
    pool: Arc<Http1Pool>,
}

impl Http1Pool {
    /// `capacity` short requests can be sent at a time.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Http1Pool {
            permits: Arc::new(Semaphore::new(capacity)),
            idle: Mutex::default(),
            capacity,
        })
    }

    /// A short request waits until a permit is free; a watch does not wait.
    pub(super) async fn acquire(self: &Arc<Self>, is_watch: bool) -> Http1Permit {
        // Acquiring a permit never fails, because the semaphore is never closed.
        let permit = if is_watch {
            None
        } else {
            Arc::clone(&self.permits).acquire_owned().await.ok()
        };
        Http1Permit {
            permit,
            pool: Arc::clone(self),
        }
    }

    /// Stores an idle connection for later requests, or drops it if enough connections are stored.
    pub(super) fn store_idle(&self, sender: SendRequest<Body>) {
        let mut idle = self.idle();
        if idle.len() < self.capacity {
            idle.push(sender);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SendRequest<Body>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Http1Permit {
    pub(super) async fn idle_connection(&self) -> Option<SendRequest<Body>> {
        loop {
            let mut sender = self.pool.idle().pop()?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    /// Sends a request on `sender`, and stores the connection for later requests when the response
    /// has been read.
    pub(super) async fn send(
        self,
        mut sender: SendRequest<Body>,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TransportError> {
        let answer = sender.send_request(request).await?;
        let Http1Permit { permit, pool } = self;
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                pool.store_idle(sender);
            }
            drop(permit);
        });
        Ok(answer)
    }
}
