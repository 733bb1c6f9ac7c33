//! Decides whether an ADD may replace the host interface that already has its name.

use std::fmt;
use std::net::IpAddr;

use libcalico::names::InterfaceAlias;

use super::mac::MacAddr;
use super::netlink::Link;
use super::plan::{DesiredInterface, PriorInterface};

/// A host interface that the call neither replaces nor deletes, unless IPAM proves its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConflictingInterface {
    /// Index of the interface.
    pub index: u32,
    /// Name of the interface.
    pub ifname: String,
    /// The container in the alias of the interface, if there is an alias.
    pub container: Option<String>,
    /// The alias of the interface, if there is one.
    pub alias: Option<InterfaceAlias>,
    /// The MAC address of the other end, if that end is in CNI_NETNS.
    pub peer_mac: Option<MacAddr>,
    /// The addresses to which the host has routes through the interface.
    pub addresses: Vec<IpAddr>,
    /// The reason for not replacing the interface.
    pub reason: ConflictReason,
}

/// The reason for not replacing a host interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConflictReason {
    /// Another pod's ADD created the interface.
    OtherPod,
    /// The interface is not one end of an interface pair.
    NotAPair,
    /// The other end of the interface is in CNI_NETNS, under this name instead of CNI_IFNAME.
    OtherInterface(String),
    /// The interface has no alias and can carry packets. IPAM may prove that it belongs to this
    /// pod.
    Unproven,
    /// Another ADD of this pod created the interface after this ADD started.
    OtherAdd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PeerLocation {
    /// CNI_IFNAME in CNI_NETNS.
    RequestedName,
    /// Another name in CNI_NETNS.
    OtherName(String),
    /// Another namespace, or there is no other end.
    Elsewhere,
}

/// Returns the reason to keep `link`; `None` if the ADD may replace it.
///
/// An alias does not show which of two sandboxes is the earlier one. If an interface of this pod
/// did not exist when the ADD started, it belongs to a later sandbox, whose ADD overtook this one.
pub(super) fn conflict_reason(
    link: &Link,
    peer_location: PeerLocation,
    desired: &DesiredInterface<'_>,
) -> Option<ConflictReason> {
    if !link.is_paired {
        return Some(ConflictReason::NotAPair);
    }
    if let PeerLocation::OtherName(name) = peer_location {
        return Some(ConflictReason::OtherInterface(name));
    }
    let is_own = match &link.alias {
        Some(alias) if !alias.is_of_same_pod(desired.alias) => {
            return Some(ConflictReason::OtherPod);
        }
        Some(_) => {
            let existed_before = match desired.prior {
                PriorInterface::Unknown => true,
                PriorInterface::Missing => false,
                PriorInterface::Present { index, .. } => index == link.index,
            };
            return (!existed_before).then_some(ConflictReason::OtherAdd);
        }
        None => {
            let is_proven = desired.prior
                == PriorInterface::Present {
                    index: link.index,
                    is_proven: true,
                };
            !link.has_carrier || peer_location == PeerLocation::RequestedName || is_proven
        }
    };
    (!is_own).then_some(ConflictReason::Unproven)
}

impl fmt::Display for ConflictingInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ifname = &self.ifname;
        match &self.reason {
            ConflictReason::OtherPod => write!(f, "host interface {ifname} belongs to another pod"),
            ConflictReason::NotAPair => write!(
                f,
                "host interface {ifname} is not one end of an interface pair"
            ),
            ConflictReason::OtherInterface(name) => {
                write!(
                    f,
                    "host interface {ifname} is the other end of {name} in CNI_NETNS: a pod has \
                     only one Calico interface"
                )
            }
            ConflictReason::OtherAdd => {
                let container = self.container.as_deref().unwrap_or("another");
                write!(
                    f,
                    "host interface {ifname} was created by a later ADD of this pod, for container \
                     {container}"
                )
            }
            ConflictReason::Unproven => {
                write!(
                    f,
                    "host interface {ifname} has carrier, and no proof shows that the interface is \
                     this pod's"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
