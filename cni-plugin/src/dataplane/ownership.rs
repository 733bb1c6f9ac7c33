//! Decides whether an ADD may replace the host interface that has the name of its own. Pure.

use std::fmt;
use std::net::IpAddr;

use libcalico::names::InterfaceAlias;

use super::netlink::link::Link;

/// The interface that an ADD is about to make.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Name of the host's end.
    pub host_ifname: &'a str,
    /// CNI_IFNAME.
    pub container_ifname: &'a str,
    /// What is to be noted on the host's end.
    pub alias: &'a InterfaceAlias,
    /// The interface of that name at the beginning of the ADD.
    pub before: Before,
}

/// The host interface that has the name of an ADD's own when the ADD begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Before {
    /// Nobody has looked.
    #[default]
    Unknown,
    /// There is none.
    Nothing,
    /// This one, which the ADD may replace.
    Interface {
        /// Its number.
        index: u32,
        /// IPAM proves it to be this pod's.
        is_proven: bool,
    },
}

/// A host interface that an ADD does not replace, although it has the name of the ADD's own. It stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub ifname: String,
    /// The container that it was made for, as its alias has it.
    pub container: Option<String>,
    /// The addresses that the host has routes to through it.
    pub addresses: Vec<IpAddr>,
    /// Why it stays.
    pub reason: Reason,
}

/// Why a host interface is not replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It was made for another pod.
    OtherPod,
    /// It is no end of an interface pair.
    NoPair,
    /// Its other end is in CNI_NETNS, under this name instead of CNI_IFNAME.
    OtherInterface(String),
    /// It has no alias and can carry packets. IPAM may prove it to be this pod's.
    Unproven,
    /// Another ADD of this pod made it after this ADD began.
    OtherAdd,
}

/// The place of an interface's other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OtherEnd {
    /// CNI_IFNAME in CNI_NETNS.
    Asked,
    /// Another name in CNI_NETNS.
    Named(String),
    /// Another namespace, or none.
    Elsewhere,
}

/// Returns why `found` stays; `None` if it is of an earlier sandbox of the same pod, or of this sandbox.
///
/// An alias does not tell which of two sandboxes is the earlier one. An interface of this pod that was not there when the ADD began
/// is of a later sandbox, whose ADD has overtaken this one.
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
            Reason::NoPair => write!(f, "host interface {ifname} is no interface pair of Calico's"),
            Reason::OtherInterface(name) => {
                write!(
                    f,
                    "host interface {ifname} is the other end of {name} in CNI_NETNS: a pod has one interface of Calico's"
                )
            }
            Reason::OtherAdd => {
                let container = self.container.as_deref().unwrap_or("another");
                write!(f, "host interface {ifname} was made by a later ADD of this pod, for container {container}")
            }
            Reason::Unproven => {
                write!(f, "host interface {ifname} can carry packets, and nothing proves that it is this pod's")
            }
        }
    }
}

#[cfg(test)]
mod tests;
