//! `calico refresh-token` against a real API server: the rows of upstream's refresher (INST 9.4), and what upstream
//! lacks: probes (INST-51), tokens that end before their time, a kubeconfig that is never seen half.

mod clocks;
mod debts;
mod etcd;
mod files;
mod kubeconfig;
mod probes;
mod refresh;
mod refusals;
mod scene;
mod wrong_files;
