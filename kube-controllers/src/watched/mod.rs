//! Projections: the fields of each watched object that a controller reads, selected while the object is decoded.

mod metadata;
mod pod;
mod projection;
mod specs;

pub use metadata::{Namespace, Node, ServiceAccount, WatchedVm, WatchedVmi};
pub use pod::{AddressAnnotations, Pod};
pub(crate) use projection::object_key;
pub use projection::{Labels, Projection, ProjectionOptions, StringInterner, Watched};
pub use specs::{NetworkPolicy, Service};
