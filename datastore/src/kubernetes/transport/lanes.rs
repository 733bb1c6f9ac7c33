//! [`Lanes`]: connections over HTTP/1.1, of which each carries one request at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response};
use kube::client::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::TransportError;

/// The connections, and the right to use one.
pub(super) struct Lanes {
    permits: Arc<Semaphore>,
    idle: Idle,
}

/// Connections that carry nothing.
#[derive(Clone)]
struct Idle {
    senders: Arc<Mutex<Vec<SendRequest<Body>>>>,
    most: usize,
}

/// The way of one request.
pub(super) struct Lane {
    /// None for a watch, which takes nobody's turn.
    permit: Option<OwnedSemaphorePermit>,
    idle: Idle,
}

impl Lanes {
    /// So many for requests that end soon.
    pub(super) fn new(count: usize) -> Self {
        let idle = Idle { senders: Arc::default(), most: count };
        Lanes { permits: Arc::new(Semaphore::new(count)), idle }
    }

    /// A way for a request. Waits until there is one.
    pub(super) async fn take_turn(&self, is_watch: bool) -> Lane {
        let permit = match is_watch {
            true => None,
            // It is never closed.
            false => Arc::clone(&self.permits).acquire_owned().await.ok(),
        };
        Lane { permit, idle: self.idle.clone() }
    }

    /// Keeps a connection that carries nothing.
    pub(super) fn put_back(&self, sender: SendRequest<Body>) {
        self.idle.put(sender);
    }
}

impl Lane {
    /// A connection that is open and carries nothing, if there is one.
    pub(super) async fn waiting(&self) -> Option<SendRequest<Body>> {
        loop {
            let mut sender = self.idle.take()?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    /// Sends on `sender`, which is kept for the next when the answer has been read to its end.
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

/// Whether the answer to `request` goes on until someone ends it.
pub(super) fn is_watch(request: &Request<Body>) -> bool {
    let parameters = request.uri().query().unwrap_or_default();
    parameters.split('&').any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}
