//! CHECK: compares the kernel with the plan of an endpoint.

use std::fmt;

use super::DataplaneError;
use super::compare::{self, Ends};
use super::netlink::{NetlinkSocket, nsid};
use super::netns::NetnsFd;
use super::observe::observe;
use super::plan::EndpointPlan;

/// A difference between the kernel and the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The item that was compared.
    pub what: Aspect,
    /// The value in the plan.
    pub expected: String,
    /// The value in the kernel; `none` if the item is missing.
    pub found: String,
}

/// The item that a [`Difference`] is about, with the name of the interface, address, route, setting or neighbor. It is
/// displayed as a noun phrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aspect {
    /// An interface.
    Link(String),
    /// The interface at the other end of a pair.
    Peer(String),
    /// The state of an interface: up or down.
    State(String),
    /// The MAC address of an interface.
    Mac(String),
    /// The MTU of an interface.
    Mtu(String),
    /// An address of an interface.
    Address(String),
    /// A route.
    Route(String),
    /// A kernel setting.
    Sysctl(String),
    /// A static neighbor entry.
    Neighbour(String),
}

/// Compares the kernel with the plan and returns all differences. An empty list means that the endpoint is intact.
///
/// The plan's `container_mac` and `mtu` must be the values that prevResult recorded.
pub fn verify(plan: &EndpointPlan, netns: &NetnsFd) -> Result<Vec<Difference>, DataplaneError> {
    plan.validate()?;
    let (host_end, container_end) = (plan.host_end(), plan.container_end());
    let mut socket = NetlinkSocket::open()?;
    let host = observe(&mut socket, &host_end)?;
    let container = netns.run_in(|| observe(&mut NetlinkSocket::open()?, &container_end))?;
    let netns_id = nsid::of(&mut socket, netns)?;
    Ok(compare::compare(
        &Ends { plan: &host_end, found: host },
        &Ends { plan: &container_end, found: container },
        netns_id,
    ))
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.what, self.expected, self.found)
    }
}

impl fmt::Display for Aspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (noun, name) = match self {
            Aspect::Link(name) => ("interface", name),
            Aspect::Peer(name) => ("peer of interface", name),
            Aspect::State(name) => ("state of interface", name),
            Aspect::Mac(name) => ("MAC address of interface", name),
            Aspect::Mtu(name) => ("MTU of interface", name),
            Aspect::Address(name) => ("address", name),
            Aspect::Route(name) => ("route", name),
            Aspect::Sysctl(name) => ("sysctl", name),
            Aspect::Neighbour(name) => ("neighbour", name),
        };
        write!(f, "{noun} {name}")
    }
}

#[cfg(test)]
mod tests;
