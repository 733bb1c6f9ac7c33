//! [`WatchedVm`] and [`WatchedVmi`]: identity of KubeVirt's objects, which decides if their addresses are in use.

use libcalico::api::ObjectKey;
use serde::Deserialize;

use super::projection::{Projection, ProjectionOptions, StringInterner, Watched};

/// A VirtualMachine, running or not.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchedVm {
    /// Namespace and name.
    pub name: ObjectKey,
}

/// A VirtualMachineInstance (VMI).
#[derive(Debug, Clone, PartialEq)]
pub struct WatchedVmi {
    /// Namespace and name.
    pub name: ObjectKey,
}

impl Watched for WatchedVm {
    type Key = ObjectKey;
    const KIND: &'static str = "VirtualMachine";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}

impl Watched for WatchedVmi {
    type Key = ObjectKey;
    const KIND: &'static str = "VirtualMachineInstance";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}

#[derive(Deserialize)]
struct Stored {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
}

impl Projection for WatchedVm {
    const COLLECTION: &'static str = "/apis/kubevirt.io/v1/virtualmachines";

    fn project(json: &str, _: &mut StringInterner, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let Stored { metadata } = serde_json::from_str(json)?;
        Ok(WatchedVm { name: ObjectKey::namespaced(metadata.namespace, metadata.name) })
    }
}

impl Projection for WatchedVmi {
    const COLLECTION: &'static str = "/apis/kubevirt.io/v1/virtualmachineinstances";

    fn project(json: &str, _: &mut StringInterner, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let Stored { metadata } = serde_json::from_str(json)?;
        Ok(WatchedVmi { name: ObjectKey::namespaced(metadata.namespace, metadata.name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_and_instances_are_known_by_name() {
        let json = r#"{"metadata":{"name":"vm","namespace":"ns"},"spec":{"a":1}}"#;
        let instance = WatchedVmi::project(json, &mut StringInterner::default(), ProjectionOptions::default()).unwrap();
        assert_eq!(instance.key(), ObjectKey::namespaced("ns", "vm"));
        let machine = WatchedVm::project(json, &mut StringInterner::default(), ProjectionOptions::default()).unwrap();
        assert_eq!(machine.key(), ObjectKey::namespaced("ns", "vm"));
    }
}
