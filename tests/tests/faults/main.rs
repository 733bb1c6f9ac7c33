//! Calls while servers, nodes and disks fail.

mod concurrency;
mod deferred_dels_definitions;
mod deferred_dels_doctor;
mod deferred_dels_unread;
mod faults_etcd;
mod faults_kubernetes;
mod faults_local;
mod fuzz_faults;
mod journal;
