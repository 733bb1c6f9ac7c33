//! Decides whether an ADD may replace the host interface that already has its name. Pure: it makes no system calls.

use std::fmt;
use std::net::IpAddr;

use super::netlink::Link;
use super::plan::{Before, Wanted};

/// A host interface that an ADD does not replace, although it has the name of the ADD's own. It is left unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub ifname: String,
    /// The container in the alias of the interface, if there is an alias.
    pub container: Option<String>,
    /// The addresses to which the host has routes through the interface.
    pub addresses: Vec<IpAddr>,
    /// The reason for not replacing the interface.
    pub reason: Reason,
}

/// The reason for not replacing a host interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Another pod's ADD created it.
    OtherPod,
    /// It is not one end of an interface pair.
    NoPair,
    /// Its other end is in CNI_NETNS, under this name instead of CNI_IFNAME.
    OtherInterface(String),
    /// It has no alias and can carry packets. IPAM may prove that it belongs to this pod.
    Unproven,
    /// Another ADD of this pod created it after this ADD started.
    OtherAdd,
}

/// The location of an interface's other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OtherEnd {
    /// CNI_IFNAME in CNI_NETNS.
    Asked,
    /// Another name in CNI_NETNS.
    Named(String),
    /// Another namespace, or there is no other end.
    Elsewhere,
}

/// Returns the reason to keep `found`; `None` if it belongs to this sandbox or to an earlier sandbox of the same pod.
///
/// An alias does not show which of two sandboxes is the earlier one. If an interface of this pod did not exist when the
/// ADD started, it belongs to a later sandbox, whose ADD overtook this one.
pub(super) fn reason_to_stay(found: &Link, other_end: OtherEnd, wanted: &Wanted<'_>) -> Option<Reason> {
    if !found.paired {
        return Some(Reason::NoPair);
    }
    if let OtherEnd::Named(name) = other_end {
        return Some(Reason::OtherInterface(name));
    }
    let is_this_pods = match &found.alias {
        Some(alias) if !alias.is_of_same_pod(wanted.alias) => return Some(Reason::OtherPod),
        Some(_) => {
            let was_there = match wanted.before {
                Before::Unknown => true,
                Before::Nothing => false,
                Before::Interface { index, .. } => index == found.index,
            };
            return (!was_there).then_some(Reason::OtherAdd);
        }
        None => {
            let is_proven = wanted.before == Before::Interface { index: found.index, is_proven: true };
            !found.running || other_end == OtherEnd::Asked || is_proven
        }
    };
    (!is_this_pods).then_some(Reason::Unproven)
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ifname = &self.ifname;
        match &self.reason {
            Reason::OtherPod => write!(f, "host interface {ifname} belongs to another pod"),
            Reason::NoPair => write!(f, "host interface {ifname} is not one end of an interface pair"),
            Reason::OtherInterface(name) => {
                write!(
                    f,
                    "host interface {ifname} is the other end of {name} in CNI_NETNS: a pod has only one Calico \
                     interface"
                )
            }
            Reason::OtherAdd => {
                let container = self.container.as_deref().unwrap_or("another");
                write!(f, "host interface {ifname} was created by a later ADD of this pod, for container {container}")
            }
            Reason::Unproven => {
                write!(f, "host interface {ifname} has carrier, and no proof shows that the interface is this pod's")
            }
        }
    }
}

#[cfg(test)]
mod tests;
