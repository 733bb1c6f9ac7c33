//! [`Machine`] and [`MachineInstance`]: KubeVirt's, as far as their addresses depend on them.

use libcalico::api::ObjectKey;
use libcalico::kubernetes::VirtualMachineInstance;
use serde::Deserialize;

use super::{Projection, Wanted, Watched, Words};

/// A VirtualMachine, running or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Namespace and name.
    pub name: ObjectKey,
}

/// A VirtualMachineInstance.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineInstance {
    /// Namespace and name.
    pub name: ObjectKey,
    /// Whether it is a run of a VirtualMachine (KC-436).
    pub owned: bool,
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
        let instance: VirtualMachineInstance = serde_json::from_str(json)?;
        let owned = instance.machine().is_some();
        Ok(MachineInstance { name: ObjectKey::namespaced(instance.metadata.namespace, instance.metadata.name), owned })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_of_a_machine_is_owned() {
        let owner =
            r#","ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","name":"vm","uid":"u"}]"#;
        for (owner, owned) in [("", false), (owner, true)] {
            let json = format!(r#"{{"metadata":{{"name":"vm","namespace":"ns"{owner}}},"spec":{{"a":1}}}}"#);
            let instance = MachineInstance::project(&json, &mut Words::default(), Wanted::default()).unwrap();
            assert_eq!(instance, MachineInstance { name: ObjectKey::namespaced("ns", "vm"), owned });
            let machine = Machine::project(&json, &mut Words::default(), Wanted::default()).unwrap();
            assert_eq!(machine.key(), ObjectKey::namespaced("ns", "vm"));
        }
    }
}
