//! Watches on real servers: in spite of the injected faults, subscribers reach the state of the server, and an object
//! that exists throughout is never reported as deleted.

mod etcd;
mod kubernetes;
mod listening;
