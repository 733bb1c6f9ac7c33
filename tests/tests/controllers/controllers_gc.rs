//! Garbage collection on real servers.

mod blocks;
mod claims;
mod collected_cluster;
mod flannel;
mod killed;
mod leaks;
mod nodes;
mod pools;
mod reports;
mod requests;
mod reused;
mod unanswered;
mod virtual_machines;
