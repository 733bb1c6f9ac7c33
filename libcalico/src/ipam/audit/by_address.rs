//! [`ByAddress`]: endpoints, or blocks, by the addresses that they have.

use std::net::IpAddr;

use super::{PackedBlock, PackedEndpoint};

/// Values by address, in order. A map with a list for each address would take several times the
/// memory.
pub(in crate::ipam) struct ByAddress<'a, T>(Vec<(IpAddr, &'a T)>);

pub(in crate::ipam) type EndpointsByAddress<'a> = ByAddress<'a, PackedEndpoint>;
/// The blocks in which an address is allocated. Only overlapping blocks have the same address.
pub(super) type AllocationsByAddress<'a> = ByAddress<'a, PackedBlock>;

impl<'a, T> ByAddress<'a, T> {
    pub(super) fn of(mut pairs: Vec<(IpAddr, &'a T)>) -> Self {
        // Values of the same address stay in their order.
        pairs.sort_by_key(|(address, _)| *address);
        ByAddress(pairs)
    }

    /// Returns all pairs, in the order of addresses.
    pub(super) fn pairs(&self) -> impl Iterator<Item = &(IpAddr, &'a T)> {
        self.0.iter()
    }

    /// Returns the pairs of each address, in the order of addresses.
    pub(super) fn groups(&self) -> impl Iterator<Item = (IpAddr, &[(IpAddr, &'a T)])> {
        self.0
            .chunk_by(|(a, _), (b, _)| a == b)
            .filter_map(|group| Some((group.first()?.0, group)))
    }

    /// Returns the pairs of `address`.
    pub(super) fn get(&self, address: IpAddr) -> &[(IpAddr, &'a T)] {
        let from = self.0.partition_point(|(other, _)| *other < address);
        let count = self.0[from..]
            .iter()
            .take_while(|(other, _)| *other == address)
            .count();
        &self.0[from..from + count]
    }
}

impl<'a> EndpointsByAddress<'a> {
    pub(in crate::ipam) fn of_endpoints(endpoints: &'a [PackedEndpoint]) -> Self {
        let addresses = |endpoint: &'a PackedEndpoint| {
            endpoint
                .addresses()
                .iter()
                .map(move |address| (*address, endpoint))
        };
        let mut pairs = Vec::with_capacity(endpoints.len());
        pairs.extend(endpoints.iter().flat_map(addresses));
        Self::of(pairs)
    }

    /// Returns the endpoints that have `address`.
    pub(in crate::ipam) fn having(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = &'a PackedEndpoint> {
        self.get(address).iter().map(|(_, endpoint)| *endpoint)
    }
}
