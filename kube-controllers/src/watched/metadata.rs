//! Projections that keep little more than an object's metadata: [`Namespace`], [`Node`],
//! [`ServiceAccount`], and KubeVirt's [`WatchedVm`] and [`WatchedVmi`].

use libcalico::api::ObjectKey;
use serde::Deserialize;

use super::{Labels, Projection, ProjectionOptions};

/// A namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    /// Name of the namespace.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `status.phase`: `Active`, or `Terminating` while the namespace is being deleted.
    pub phase: String,
}

/// A Kubernetes node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Name of the node.
    pub name: ObjectKey,
    /// `metadata.uid`, which distinguishes the node from an earlier node with the same name.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: Labels,
}

/// A service account.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceAccount {
    /// Namespace and name.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: Labels,
}

/// The stored form of an object with the metadata `M`.
#[derive(Deserialize)]
struct Stored<M> {
    metadata: M,
}

#[derive(Deserialize)]
struct StoredNamespace {
    metadata: GlobalMetadata,
    #[serde(default)]
    status: NamespaceStatus,
}

#[derive(Deserialize, Default)]
struct NamespaceStatus {
    #[serde(default)]
    phase: String,
}

#[derive(Deserialize)]
struct GlobalMetadata {
    name: String,
    uid: String,
    #[serde(default)]
    labels: Option<Labels>,
}

#[derive(Deserialize)]
struct ServiceAccountMetadata {
    name: String,
    namespace: String,
    uid: String,
    #[serde(default)]
    labels: Option<Labels>,
}

#[derive(Deserialize)]
struct VmMetadata {
    name: String,
    namespace: String,
}

impl Projection for Namespace {
    const OBJECT: &'static str = "Namespace";
    const COLLECTION: &'static str = "/api/v1/namespaces";

    fn name(&self) -> &ObjectKey {
        &self.name
    }

    fn project(json: &str, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let StoredNamespace {
            metadata: GlobalMetadata { name, uid, labels },
            status,
        } = serde_json::from_str(json)?;
        let (name, labels) = (ObjectKey::global(name), labels.unwrap_or_default());
        Ok(Namespace {
            name,
            uid,
            labels,
            phase: status.phase,
        })
    }
}

impl Projection for Node {
    const OBJECT: &'static str = "Node";
    const COLLECTION: &'static str = "/api/v1/nodes";
    const METADATA_ONLY: bool = true;

    fn name(&self) -> &ObjectKey {
        &self.name
    }

    fn project(json: &str, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let Stored {
            metadata: GlobalMetadata { name, uid, labels },
        } = serde_json::from_str(json)?;
        Ok(Node {
            name: ObjectKey::global(name),
            uid,
            labels: labels.unwrap_or_default(),
        })
    }
}

impl Projection for ServiceAccount {
    const OBJECT: &'static str = "ServiceAccount";
    const COLLECTION: &'static str = "/api/v1/serviceaccounts";
    const METADATA_ONLY: bool = true;

    fn name(&self) -> &ObjectKey {
        &self.name
    }

    fn project(json: &str, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let Stored { metadata } = serde_json::from_str(json)?;
        let ServiceAccountMetadata {
            name,
            namespace,
            uid,
            labels,
        } = metadata;
        Ok(ServiceAccount {
            name: ObjectKey::namespaced(namespace, name),
            uid,
            labels: labels.unwrap_or_default(),
        })
    }
}

/// Defines a projection of KubeVirt's objects of one kind, which keeps only the key.
macro_rules! kubevirt_object {
    ($(#[$doc:meta])* $projection:ident, $object:literal, $collection:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $projection {
            /// Namespace and name.
            pub name: ObjectKey,
        }

        impl Projection for $projection {
            const OBJECT: &'static str = $object;
            const COLLECTION: &'static str = $collection;
            const METADATA_ONLY: bool = true;

            fn name(&self) -> &ObjectKey {
                &self.name
            }

            fn project(
                json: &str,
                _: ProjectionOptions,
            ) -> Result<Self, serde_json::Error> {
                let Stored { metadata } = serde_json::from_str(json)?;
                let VmMetadata { name, namespace } = metadata;
                Ok($projection { name: ObjectKey::namespaced(namespace, name) })
            }
        }
    };
}

kubevirt_object!(
    /// A VirtualMachine, running or not.
    WatchedVm, "VirtualMachine", "/apis/kubevirt.io/v1/virtualmachines"
);
kubevirt_object!(
    /// A VirtualMachineInstance (VMI).
    WatchedVmi, "VirtualMachineInstance", "/apis/kubevirt.io/v1/virtualmachineinstances"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watched::Watched;

    #[test]
    fn vms_and_vmis_are_keyed_by_namespace_and_name() {
        let json = r#"{"metadata":{"name":"vm","namespace":"ns"},"spec":{"a":1}}"#;
        let vmi = WatchedVmi::project(json, ProjectionOptions::default()).unwrap();
        assert_eq!(vmi.key(), ObjectKey::namespaced("ns", "vm"));
        let vm = WatchedVm::project(json, ProjectionOptions::default()).unwrap();
        assert_eq!(vm.key(), ObjectKey::namespaced("ns", "vm"));
    }
}
