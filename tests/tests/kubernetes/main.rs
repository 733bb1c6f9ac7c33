//! The plugins with an API server.

mod kubernetes_annotations;
mod kubernetes_api;
mod kubernetes_args;
mod kubernetes_crds;
mod kubernetes_credential_plugins;
mod kubernetes_host_local;
mod kubernetes_kubevirt;
mod kubernetes_old_affinities;
mod kubernetes_on_etcd;
mod kubernetes_pods;
mod kubernetes_proxies;
mod kubernetes_rbac;
mod kubernetes_requests;
mod kubernetes_simulation;
mod kubernetes_store;
mod kubernetes_upgrade;
