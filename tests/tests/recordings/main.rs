//! Recordings of upstream, replayed.

mod golden;
mod golden_calicoctl;
mod golden_kubernetes;
