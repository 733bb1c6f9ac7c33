//! Feeds on real servers: whatever happens on the way, listeners end up with what is there, and never lose sight of an
//! object that stays.

mod etcd;
mod kubernetes;
mod listening;
