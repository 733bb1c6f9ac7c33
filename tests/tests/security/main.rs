//! What tenants, stolen tokens and untrusted servers can do.

mod node_restriction;
mod stolen_tokens;
mod tenant;
mod tls_etcd;
