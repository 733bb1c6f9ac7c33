//! CHECK: every difference between the kernel and an endpoint's plan.

use std::fmt;

use super::DataplaneError;
use super::compare::{self, Ends};
use super::netlink::{NetlinkSocket, nsid};
use super::netns::NetnsFd;
use super::observe::observe;
use super::plan::EndpointPlan;

/// One thing that is not as the plan wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What was compared.
    pub what: Aspect,
    /// What the plan wants.
    pub expected: String,
    /// What the kernel has; `none` when it is missing.
    pub found: String,
}

/// What a [`Difference`] is about; the name is that of the interface, address, route, setting or neighbour. Displays as a
/// noun phrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aspect {
    /// An interface.
    Link(String),
    /// The interface at the other end of one.
    Peer(String),
    /// Whether an interface is up.
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
    /// A neighbour entry.
    Neighbour(String),
}

/// Compares the kernel with the plan and returns all differences; empty means that the endpoint is intact.
///
/// The plan's `container_mac` and `mtu` are to be what prevResult recorded.
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
