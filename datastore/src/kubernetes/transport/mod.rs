//! The connection to the API server for all requests of a process: HTTP/2 if the server supports it, else HTTP/1.1.
//!
//! kube's own transport supports only HTTP/1.1, and thus needs a connection for each parallel request. Over HTTP/1.1,
//! each watch has its own connection here, because a watch would block other requests forever.

mod connect;
mod http1_pool;
mod service;

pub(super) use connect::TransportError;
pub(super) use service::{RequestSent, create_transport};
