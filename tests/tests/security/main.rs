//! Attacks by tenants, with stolen tokens and by untrusted servers.

mod node_restriction;
mod stolen_tokens;
mod tenant;
mod tls_etcd;
