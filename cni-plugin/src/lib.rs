//! The CNI plugin `calico`: gives a container its network and takes it back.
//!
//! ```text
//! environment, stdin ─ netconf ─▶ Call ─▶ Session ─▶ add / del / check / status / gc
//!                                            │ 1 one batch of reads
//!                                            │ 2 ipam: in process, or a foreign plugin
//!                                            │ 3 dataplane: plan (pure), then netlink
//!                                            ▼ 4 WorkloadEndpoint
//!                                         CniResult ─▶ stdout
//! ```
//!
//! [`dataplane`] is the only place that knows netlink.

pub mod add;
pub mod agent_debts;
pub mod annotations;
pub mod attach;
pub mod chain;
pub mod check;
pub mod dataplane;
pub mod del;
pub mod endpoint;
pub mod endpoint_plan;
pub mod gc;
pub mod host_interface;
pub mod ipam;
pub mod kubernetes;
pub mod kubevirt;
mod migration;
pub mod mtu;
pub mod owed;
pub mod pod;
pub mod policy_wait;
pub mod readiness;
pub mod run;
pub mod session;
pub mod status;
pub mod test_connection;
#[cfg(test)]
mod testing;
pub mod timings;
