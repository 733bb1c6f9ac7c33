//! Replays the recordings of upstream's `calicoctl ipam` and `calicoctl datastore migrate` against
//! `calico-ipam` on a real etcd and a real API server. Each step runs by itself on the state that
//! upstream's steps before it left, so that one difference hides no other.

mod datastore;
mod etcd;
mod kubernetes;
mod loaded_course;
mod migrate;
mod reports;
mod split;
mod table;
mod translate;
