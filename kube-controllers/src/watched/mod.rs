//! Projections: the fields of each watched object that a controller reads, selected while the object is decoded.

mod namespace;
mod network_policy;
mod node;
mod pod;
mod projection;
mod service;
mod service_account;
mod vmi;

pub use namespace::Namespace;
pub use network_policy::NetworkPolicy;
pub use node::Node;
pub use pod::{AddressAnnotations, Pod};
pub use projection::{Labels, Projection, ProjectionOptions, StringInterner, Watched};
pub use service::Service;
pub use service_account::ServiceAccount;
pub use vmi::{WatchedVm, WatchedVmi};
