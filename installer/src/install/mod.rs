//! Runs one installation from beginning to end, in upstream's order (INST-6).
//!
//! All checks that can fail run before the first write, and each file is replaced atomically. So a failed run leaves
//! the previous installation working, and the next run can continue.
//!
//! Read `installation`, then `reconcile`, which repeats it for the agent.

mod conflict_backoff;
mod error;
mod installation;
mod pod_mtu;
mod reconcile;

pub use error::InstallError;
pub use installation::Installation;
pub use reconcile::InstallReconciler;
