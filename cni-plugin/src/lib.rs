//! The CNI plugin `calico`: connects a container to the network and disconnects it.
//!
//! ```text
//! environment, stdin ─ netconf ─▶ Call ─▶ Context ─▶ add / del / check / status / gc
//!                                            │ 1 one batch of reads
//!                                            │ 2 ipam: in process, or another plugin
//!                                            │ 3 dataplane: plan (pure), then netlink
//!                                            ▼ 4 WorkloadEndpoint
//!                                         CniResult ─▶ stdout
//! ```
//!
//! Only [`dataplane`] uses netlink.
//!
//! A future contains the futures that it awaits. One that a usual call does not run is therefore
//! boxed (`Box::pin`), so that the memory of each call does not contain that of each rare case.

pub mod add;
pub mod agent_replay;
pub mod annotations;
pub mod check;
pub mod cni_error;
pub mod context;
pub mod deferred_del;
pub mod del;
pub mod dispatch;
pub mod endpoint;
pub mod gc;
pub mod interface;
pub mod interface_names;
pub mod ipam;
pub mod mtu;
pub mod pod;
pub mod pod_lookup;
pub mod reads;
pub mod run;
pub mod status;
#[cfg(test)]
mod testing;
pub mod timings;
pub mod vmi;
pub mod world;
