//! [`Machine`] and [`MachineInstance`]: identity of KubeVirt's objects, which decides if their addresses are in use.

use libcalico::api::ObjectKey;
use serde::Deserialize;

use super::projection::{Projection, Wanted, Watched, Words};

/// A VirtualMachine, running or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Namespace and name.
    pub name: ObjectKey,
}

/// A VirtualMachineInstance (VMI).
#[derive(Debug, Clone, PartialEq)]
pub struct MachineInstance {
    /// Namespace and name.
    pub name: ObjectKey,
}

impl Watched for Machine {
    type Key = ObjectKey;
    const KIND: &'static str = "VirtualMachine";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}

impl Watched for MachineInstance {
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

impl Projection for Machine {
    const COLLECTION: &'static str = "/apis/kubevirt.io/v1/virtualmachines";

    fn project(json: &str, _: &mut Words, _: Wanted) -> Result<Self, serde_json::Error> {
        let Stored { metadata } = serde_json::from_str(json)?;
        Ok(Machine { name: ObjectKey::namespaced(metadata.namespace, metadata.name) })
    }
}

impl Projection for MachineInstance {
    const COLLECTION: &'static str = "/apis/kubevirt.io/v1/virtualmachineinstances";

    fn project(json: &str, _: &mut Words, _: Wanted) -> Result<Self, serde_json::Error> {
        let Stored { metadata } = serde_json::from_str(json)?;
        Ok(MachineInstance { name: ObjectKey::namespaced(metadata.namespace, metadata.name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_and_instances_are_known_by_name() {
        let json = r#"{"metadata":{"name":"vm","namespace":"ns"},"spec":{"a":1}}"#;
        let instance = MachineInstance::project(json, &mut Words::default(), Wanted::default()).unwrap();
        assert_eq!(instance.key(), ObjectKey::namespaced("ns", "vm"));
        let machine = Machine::project(json, &mut Words::default(), Wanted::default()).unwrap();
        assert_eq!(machine.key(), ObjectKey::namespaced("ns", "vm"));
    }
}
