//! [`Unavailable`]: an address of a fixed list that the pod does not get, with the reason.

use std::fmt;
use std::net::IpAddr;

use crate::ipam::{Holder, RejectedPool};
use crate::net::Cidr;

/// Maximum number of addresses that a text names.
const NAMED: usize = 8;

/// An address of a list that the pod does not get. `Display` writes the text for the pod's tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// The address.
    pub ip: IpAddr,
    /// The reason.
    pub reason: Obstacle,
}

/// The reason why a pod does not get an address of its list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The address is allocated.
    Held(Holder),
    /// The address was released and is cooling down.
    Cooling,
    /// Another process took the address, or changed its block, during this request.
    Raced,
    /// The block of the address belongs to another node or to none, and affinity is strict.
    ForeignBlock(Cidr),
    /// The block of the address, which may be missing, overlaps with this block of another size.
    OtherSize(Cidr),
    /// The block cannot be read, is inconsistent or is being deleted.
    UnusableBlock(Cidr),
    /// No pool permits the address. The list has the pools that contain it.
    NoPool(Vec<RejectedPool>),
    /// An IPReservation covers the address.
    Reserved,
}

impl Obstacle {
    /// Returns true if the pod may have the address by the rules of the pools.
    pub fn is_permitted(&self) -> bool {
        !matches!(self, Obstacle::NoPool(_) | Obstacle::Reserved)
    }
}

impl Unavailable {
    /// Describes the address for logs of the node.
    pub fn whole(&self) -> String {
        match &self.reason {
            Obstacle::Held(holder) => format!("{} is held by {}", self.ip, holder.whole),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = self.ip;
        match &self.reason {
            Obstacle::Held(holder) => write!(f, "{ip} is held by {}", holder.for_caller),
            Obstacle::Cooling => write!(f, "{ip} is cooling down"),
            Obstacle::Raced => write!(f, "{ip} was taken meanwhile"),
            Obstacle::ForeignBlock(block) => {
                write!(
                    f,
                    "{ip} is in block {block}, which is not this node's, and affinity is strict"
                )
            }
            Obstacle::OtherSize(block) => {
                write!(
                    f,
                    "the block of {ip} overlaps with block {block} of another size"
                )
            }
            Obstacle::UnusableBlock(block) => {
                write!(
                    f,
                    "{ip} is in block {block}, which is unusable (see `calico-ipam check`)"
                )
            }
            Obstacle::NoPool(refused) if refused.is_empty() => write!(f, "{ip} is in no IPPool"),
            Obstacle::NoPool(refused) => {
                let pools = refused
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", ");
                write!(f, "{ip} is in no IPPool for this pod: {pools}")
            }
            Obstacle::Reserved => write!(f, "{ip} is covered by an IPReservation"),
        }
    }
}

/// Describes the addresses for the pod's tenant, and names at most eight of them.
pub fn list_for_caller(unavailable: &[Unavailable]) -> String {
    joined(unavailable, ToString::to_string)
}

/// Describes the addresses for logs of the node, and names at most eight of them.
pub fn list_for_log(unavailable: &[Unavailable]) -> String {
    joined(unavailable, Unavailable::whole)
}

fn joined(unavailable: &[Unavailable], text: impl Fn(&Unavailable) -> String) -> String {
    let mut texts: Vec<String> = unavailable.iter().take(NAMED).map(text).collect();
    if let Some(more) = unavailable
        .len()
        .checked_sub(NAMED)
        .filter(|more| *more > 0)
    {
        texts.push(format!("and {more} more"));
    }
    texts.join("; ")
}
