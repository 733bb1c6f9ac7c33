//! A migration to `projectcalico.org/v3` by kube-controllers, on real servers.

mod aggregated;
mod collector;
mod course;
mod dry_run;
mod killed_leaders;
mod kubelet;
mod late_writes;
mod migrated_cluster;
mod objects;
mod pods;
mod tenant;
mod workloads;
