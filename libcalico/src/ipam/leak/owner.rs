//! [`AllocationOwner`]: the owner that an allocation names.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::ipam::{Attribute, HandleId, Tunnel};

/// The `type` attribute of Services' addresses.
const SERVICE: &str = "LoadBalancer";
/// The prefix of the handles of Services' addresses.
const SERVICE_HANDLE: &str = "lb-";
/// The separator before the namespace and name in a VMI's handle.
const VMI_HANDLE_SEPARATOR: &str = ".vmi.";

/// The owner for which an address was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocationOwner<'a> {
    /// A Windows host, which reserves the address.
    HostReserved,
    /// A tunnel device of the node.
    Tunnel,
    /// A Service of type LoadBalancer.
    Service {
        /// The Service's namespace.
        namespace: &'a str,
        /// The Service's name.
        name: &'a str,
    },
    /// A KubeVirt VirtualMachineInstance (VMI), whose addresses outlive its pods.
    Vmi {
        /// The VMI's namespace.
        namespace: &'a str,
        /// The VMI's name, which is also its VirtualMachine's name.
        name: &'a str,
    },
    /// A pod.
    Pod {
        /// The pod's namespace.
        namespace: &'a str,
        /// The pod's name.
        name: &'a str,
    },
    /// An owner whose `type` attribute is unknown.
    Foreign,
    /// No owner.
    Unnamed,
}

/// An [`AllocationOwner`] without the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnerKind {
    /// [`AllocationOwner::HostReserved`].
    HostReserved,
    /// [`AllocationOwner::Tunnel`].
    Tunnel,
    /// [`AllocationOwner::Service`].
    Service,
    /// [`AllocationOwner::Vmi`].
    Vmi,
    /// [`AllocationOwner::Pod`].
    Pod,
    /// [`AllocationOwner::Foreign`].
    Foreign,
    /// [`AllocationOwner::Unnamed`].
    Unnamed,
}

impl<'a> AllocationOwner<'a> {
    /// Returns the owner that an allocation names in its attributes or else by its handle, and the
    /// Calico node, if it names one. The handle for addresses that Windows reserves takes
    /// precedence over attributes. The alternate owner counts if there is no active one.
    pub fn of(attribute: &'a Attribute) -> (Self, Option<&'a str>) {
        if attribute.is_windows_reserved() {
            return (
                AllocationOwner::HostReserved,
                non_empty(&attribute.active_owner, "node"),
            );
        }
        let Attribute {
            active_owner,
            alternate_owner,
            ..
        } = attribute;
        let owner = if active_owner.is_empty() {
            alternate_owner
        } else {
            active_owner
        };
        let handle = attribute
            .handle_id
            .as_deref()
            .map(HandleId::cut)
            .unwrap_or_default();
        let named = Self::by_type(owner)
            .or_else(|| Self::by_owner(owner))
            .or_else(|| Self::by_handle(handle, owner));
        (
            named.unwrap_or(AllocationOwner::Unnamed),
            non_empty(owner, "node"),
        )
    }

    /// Returns namespace and name of the pods that an allocation names as owners.
    pub fn owners(attribute: &'a Attribute) -> impl Iterator<Item = (&'a str, &'a str)> {
        let owners = [&attribute.active_owner, &attribute.alternate_owner].into_iter();
        owners.filter_map(|owner| Some((non_empty(owner, "namespace")?, non_empty(owner, "pod")?)))
    }

    /// Returns a hash of both owners' attributes. It detects a new owner of a VMI's address, which
    /// keeps its handle and sequence number (KC-422).
    pub fn fingerprint(attribute: &Attribute) -> u32 {
        let mut hasher = DefaultHasher::new();
        (&attribute.active_owner, &attribute.alternate_owner).hash(&mut hasher);
        hasher.finish() as u32
    }

    fn by_type(owner: &'a BTreeMap<String, String>) -> Option<Self> {
        Some(match owner.get("type")?.as_str() {
            tunnel if Tunnel::is_type(tunnel) => AllocationOwner::Tunnel,
            SERVICE => Self::service(owner),
            _ => AllocationOwner::Foreign,
        })
    }

    fn by_owner(owner: &'a BTreeMap<String, String>) -> Option<Self> {
        let namespace = non_empty(owner, "namespace");
        if let Some(name) = owner.get("vmi-name") {
            return Some(AllocationOwner::Vmi {
                namespace: namespace.unwrap_or_default(),
                name,
            });
        }
        Some(AllocationOwner::Pod {
            namespace: namespace?,
            name: non_empty(owner, "pod")?,
        })
    }

    fn by_handle(handle: &'a str, owner: &'a BTreeMap<String, String>) -> Option<Self> {
        if Tunnel::is_handle(handle) {
            return Some(AllocationOwner::Tunnel);
        }
        if handle.starts_with(SERVICE_HANDLE) {
            return Some(Self::service(owner));
        }
        // A namespace contains no dots. Both names are empty if the handle contains a hash of them:
        // the VMI then keeps the address.
        let (_, names) = handle.split_once(VMI_HANDLE_SEPARATOR)?;
        let (namespace, name) = names.split_once('.').unwrap_or_default();
        Some(AllocationOwner::Vmi { namespace, name })
    }

    fn service(owner: &'a BTreeMap<String, String>) -> Self {
        let [namespace, name] =
            ["namespace", "service"].map(|key| non_empty(owner, key).unwrap_or_default());
        AllocationOwner::Service { namespace, name }
    }

    /// Returns the kind of owner.
    pub fn kind(&self) -> OwnerKind {
        match self {
            AllocationOwner::HostReserved => OwnerKind::HostReserved,
            AllocationOwner::Tunnel => OwnerKind::Tunnel,
            AllocationOwner::Service { .. } => OwnerKind::Service,
            AllocationOwner::Vmi { .. } => OwnerKind::Vmi,
            AllocationOwner::Pod { .. } => OwnerKind::Pod,
            AllocationOwner::Foreign => OwnerKind::Foreign,
            AllocationOwner::Unnamed => OwnerKind::Unnamed,
        }
    }

    /// Returns namespace and name, if the owner has both and neither is empty.
    pub fn names(&self) -> Option<(&'a str, &'a str)> {
        match *self {
            Self::Service { namespace, name }
            | Self::Vmi { namespace, name }
            | Self::Pod { namespace, name } => {
                (!namespace.is_empty() && !name.is_empty()).then_some((namespace, name))
            }
            Self::HostReserved | Self::Tunnel | Self::Foreign | Self::Unnamed => None,
        }
    }
}

impl fmt::Display for AllocationOwner<'_> {
    /// Writes the kind of owner and its names, for example `pod shop/web`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            AllocationOwner::Pod { .. } => "pod",
            AllocationOwner::Vmi { .. } => "virtual machine",
            AllocationOwner::Service { .. } => "service",
            AllocationOwner::Tunnel => return f.write_str("the tunnel of a node"),
            AllocationOwner::HostReserved => return f.write_str("the host"),
            AllocationOwner::Foreign => return f.write_str("an owner of an unknown type"),
            AllocationOwner::Unnamed => return f.write_str("an unknown owner"),
        };
        match self.names() {
            Some((namespace, name)) => write!(f, "{kind} {namespace}/{name}"),
            None => write!(f, "a {kind} of unknown name"),
        }
    }
}

fn non_empty<'a>(owner: &'a BTreeMap<String, String>, key: &str) -> Option<&'a str> {
    owner
        .get(key)
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}
