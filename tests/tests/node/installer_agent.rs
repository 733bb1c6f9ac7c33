//! `calico refresh-token` against a real API server, with the cases of upstream's token refresher.

mod api_server_address;
mod clocks;
mod deferred_dels;
mod etcd;
mod files;
mod kubeconfig;
mod logs;
mod mounts;
mod neighbours;
mod pod;
mod probes;
mod refresh;
mod refusals;
mod repair;
mod retries;
mod two_pods;
mod unused_configuration;
mod wrong_files;
