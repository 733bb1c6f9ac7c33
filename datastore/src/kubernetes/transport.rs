//! The connections of a client to the API server: one with HTTP/2 if the server selects it, else
//! several with HTTP/1.1.
//!
//! kube's own transport supports only HTTP/1.1, and thus needs a connection for each parallel
//! request. Over HTTP/1.1, each watch has its own connection here, because a watch would block
//! other requests until it ends. A connection may lead through a [`Proxy`].

mod connect;
mod http1_pool;
mod proxy;
mod service;

pub(super) use connect::TransportError;
pub(super) use proxy::{Proxy, ProxyUrlError, select_proxy, variables_for};
pub(super) use service::{RequestSent, create_transport};
