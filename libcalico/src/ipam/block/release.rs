//! Releases addresses. [`OldHandle`]: the handle that Calico before v3 gave a container (IPAM-23).

use std::collections::BTreeMap;
use std::net::IpAddr;

use time::OffsetDateTime;

use super::{Attribute, Block, CorruptBlock};
use crate::api::seconds_in_utc;
use crate::ipam::HandleId;

/// An address to release, with the conditions for its release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// The address.
    pub ip: IpAddr,
    /// The handle that the allocation must have, if given.
    pub handle: Option<HandleId>,
    /// The sequence number that the allocation must have, if given.
    pub sequence: Option<u64>,
}

/// The result of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Released {
    /// Addresses that were released.
    pub released: Vec<IpAddr>,
    /// Addresses that needed no release.
    pub unallocated: Vec<IpAddr>,
    /// The number of released addresses per handle.
    pub per_handle: BTreeMap<HandleId, usize>,
}

/// The reason why an address was not released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// The given sequence number is not the stored one.
    #[error(
        "the given sequence number ({given}) does not match ({stored}) when attempting to release \
         IP {ip}"
    )]
    Sequence {
        /// The address.
        ip: IpAddr,
        /// The expected sequence number.
        given: u64,
        /// The stored sequence number; 0 if there is none.
        stored: u64,
    },
    /// The address belongs to another handle, or to none.
    #[error(
        "the given handle ({given}) does not match ({stored}) when attempting to release IP {ip}"
    )]
    Handle {
        /// The address.
        ip: IpAddr,
        /// The expected handle.
        given: HandleId,
        /// The stored handle; empty if there is none.
        stored: String,
    },
    /// The block is corrupt.
    #[error(transparent)]
    Corrupt(#[from] CorruptBlock),
}

type Releasable = (usize, Option<HandleId>);

impl Block {
    /// Marks addresses as released and frees every address whose cooldown has elapsed (IPAM-164).
    /// Changes nothing if no address needs a release. A single mismatch refuses the whole list, as
    /// in upstream (IPAM-144).
    pub fn release(
        &mut self,
        requests: &[ReleaseRequest],
        cooldown_seconds: i64,
        now: OffsetDateTime,
    ) -> Result<Released, ReleaseError> {
        self.verify()?;
        let mut outcome = Released::default();
        let mut ordinals = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            if requests[..i].iter().any(|earlier| earlier.ip == request.ip) {
                continue;
            }
            match self.releasable(request)? {
                Some((ordinal, handle)) => {
                    ordinals.push(ordinal);
                    outcome.released.push(request.ip);
                    if let Some(handle) = handle {
                        *outcome.per_handle.entry(handle).or_default() += 1;
                    }
                }
                None => outcome.unallocated.push(request.ip),
            }
        }
        for ordinal in &ordinals {
            self.sequence_number_for_allocation
                .insert(ordinal.to_string(), self.sequence_number);
        }
        self.start_cooldown(&ordinals, cooldown_seconds, now)?;
        Ok(outcome)
    }

    /// Releases the addresses whose allocations still match the requests. An address that is not
    /// allocated is no mismatch, so that a release with an unknown outcome can be repeated.
    pub fn release_unchanged(
        &mut self,
        requests: &[ReleaseRequest],
        cooldown_seconds: i64,
        now: OffsetDateTime,
    ) -> Result<(Released, Vec<ReleaseError>), CorruptBlock> {
        self.verify()?;
        let (mut wanted, mut unallocated, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            if self
                .allocation(request.ip)
                .is_none_or(|held| held.is_cooling())
            {
                unallocated.push(request.ip);
                continue;
            }
            match self.releasable(request) {
                Ok(_) => wanted.push(request.clone()),
                Err(refusal) => refused.push(refusal),
            }
        }
        match self.release(&wanted, cooldown_seconds, now) {
            Ok(mut released) => {
                released.unallocated.append(&mut unallocated);
                Ok((released, refused))
            }
            Err(ReleaseError::Corrupt(problem)) => Err(problem),
            Err(refusal) => {
                refused.push(refusal);
                Ok((
                    Released {
                        unallocated,
                        ..Released::default()
                    },
                    refused,
                ))
            }
        }
    }

    /// Releases every address of `handle`, or only those with the number `sequence`, and returns
    /// their number. As in upstream, the addresses that begin to cool down keep their sequence
    /// numbers (IPAM-170).
    pub fn release_by_handle(
        &mut self,
        handle: &HandleId,
        sequence: Option<u64>,
        cooldown_seconds: i64,
        now: OffsetDateTime,
    ) -> Result<usize, CorruptBlock> {
        self.verify()?;
        let is_wanted = |ordinal| {
            sequence.is_none_or(|wanted| self.sequence_of(ordinal).unwrap_or_default() == wanted)
        };
        let ordinals: Vec<usize> = self
            .ordinals_of(handle)
            .filter(|&ordinal| is_wanted(ordinal))
            .collect();
        self.start_cooldown(&ordinals, cooldown_seconds, now)?;
        Ok(ordinals.len())
    }

    /// Returns a release request, with the present handle and sequence number, for each address of
    /// `handle` whose attribute `is_wanted` accepts.
    pub fn requests_of(
        &self,
        handle: &HandleId,
        is_wanted: impl Fn(&Attribute) -> bool,
    ) -> Vec<ReleaseRequest> {
        let held = self
            .allocated()
            .filter(|held| held.handle().as_ref() == Some(handle));
        let wanted = held.filter(|held| held.attribute.is_some_and(&is_wanted));
        wanted
            .map(|held| ReleaseRequest {
                ip: held.ip,
                handle: held.handle(),
                sequence: held.sequence,
            })
            .collect()
    }

    /// Returns the ordinal to release and its handle. Like upstream, checks the sequence number
    /// even of a free address (IPAM-144).
    pub(super) fn releasable(
        &self,
        request: &ReleaseRequest,
    ) -> Result<Option<Releasable>, ReleaseError> {
        let Some(ordinal) = self.ordinal_of(request.ip) else {
            return Ok(None);
        };
        let stored = self.sequence_of(ordinal).unwrap_or_default();
        if let Some(given) = request.sequence.filter(|&given| given != stored) {
            return Err(ReleaseError::Sequence {
                ip: request.ip,
                given,
                stored,
            });
        }
        let Some(held) = self
            .allocation(request.ip)
            .filter(|held| !held.is_cooling())
        else {
            return Ok(None);
        };
        let handle = held.handle();
        if let Some(given) = request
            .handle
            .clone()
            .filter(|given| Some(given) != handle.as_ref())
        {
            let stored = handle.map(|handle| handle.to_string()).unwrap_or_default();
            return Err(ReleaseError::Handle {
                ip: request.ip,
                given,
                stored,
            });
        }
        Ok(Some((ordinal, handle)))
    }

    /// Marks ordinals as released, then frees every ordinal of the block whose cooldown has
    /// elapsed. Does nothing without ordinals to mark.
    fn start_cooldown(
        &mut self,
        ordinals: &[usize],
        seconds: i64,
        now: OffsetDateTime,
    ) -> Result<(), CorruptBlock> {
        if ordinals.is_empty() {
            return Ok(());
        }
        let index = self.attributes.len();
        self.attributes.push(Attribute {
            released_at: Some(seconds_in_utc(now)),
            ..Attribute::default()
        });
        for &ordinal in ordinals {
            self.allocations[ordinal] = Some(index);
        }
        self.collect_garbage(seconds, now).map(|_| ())
    }
}

/// The handle that Calico before v3 gave a container: `<namespace>.<pod>`, or the ID of a container
/// without a pod.
///
/// A tenant chooses these names, so the text can equal another handle. An allocation therefore
/// belongs to the container only if it has no attributes, as before v3, or names the container's
/// pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldHandle {
    id: HandleId,
    pod: Option<(String, String)>,
}

impl OldHandle {
    /// Returns the old handle of a pod; `None` if it can be that of a VMI, whose address may also
    /// have no attributes.
    pub fn of_pod(namespace: &str, pod: &str) -> Option<Self> {
        let id = HandleId::new(format!("{namespace}.{pod}"));
        (!id.may_be_of_vmi()).then(|| OldHandle {
            id,
            pod: Some((namespace.to_owned(), pod.to_owned())),
        })
    }

    /// Returns the old handle of a container without a pod; `None` as for [`OldHandle::of_pod`].
    pub fn of_container(container_id: &str) -> Option<Self> {
        let id = HandleId::new(container_id);
        (!id.may_be_of_vmi()).then_some(OldHandle { id, pod: None })
    }

    /// Returns the handle's ID.
    pub fn id(&self) -> &HandleId {
        &self.id
    }

    /// Returns a request for each address of `block` that the container has under this handle.
    pub fn requests(&self, block: &Block) -> Vec<ReleaseRequest> {
        block.requests_of(&self.id, |attribute| self.is_owner(attribute))
    }

    fn is_owner(&self, attribute: &Attribute) -> bool {
        let is_named = |(namespace, pod): &(String, String)| attribute.names_pod(namespace, pod);
        attribute.has_no_attributes() || self.pod.as_ref().is_some_and(is_named)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ipam::{AffinityOwner, BlockRequest, Reservations};

    fn block(allocations: &[(&str, &[(&str, &str)])]) -> Block {
        let owner = AffinityOwner::Host("n1".into());
        let mut block = Block::new(
            "10.0.0.0/28".parse().unwrap(),
            &owner,
            time::OffsetDateTime::UNIX_EPOCH,
        )
        .unwrap();
        for (handle, attributes) in allocations {
            let attributes: BTreeMap<_, _> = attributes
                .iter()
                .map(|(k, v)| (k.to_string(), v.to_string()))
                .collect();
            let handle = HandleId::new(handle);
            let request = BlockRequest {
                handle: Some(&handle),
                attributes: &attributes,
                requester: &owner,
                check_affinity: false,
            };
            block.assign(1, &request, &Reservations::default()).unwrap();
        }
        block
    }

    fn named(old: &OldHandle, block: &Block) -> Vec<String> {
        old.requests(block)
            .iter()
            .map(|request| request.ip.to_string())
            .collect()
    }

    #[test]
    fn old_handle_release_of_a_pod_names_its_own_and_unattributed_addresses() {
        let mut block = block(&[
            ("ns.web", &[]),
            (
                "ns.web",
                &[("namespace", "ns"), ("pod", "web"), ("node", "n1")],
            ),
            ("ns.web", &[("node", "n1")]),
            ("ns.web", &[("namespace", "ns"), ("pod", "db")]),
            ("ns.web", &[("namespace", "other"), ("pod", "web")]),
            ("ns.web", &[("type", "vxlanTunnelAddress")]),
            ("ns.db", &[]),
        ]);
        let old = OldHandle::of_pod("ns", "web").unwrap();
        assert_eq!(named(&old, &block), ["10.0.0.0", "10.0.0.1"]);
        block.attributes[0]
            .unknown
            .insert("newer".into(), "1".into());
        assert_eq!(named(&old, &block), ["10.0.0.1"]);
    }

    #[test]
    fn old_handle_release_of_a_container_names_unattributed_addresses_only() {
        let block = block(&[
            ("c1", &[]),
            ("c1", &[("node", "n1")]),
            ("c1", &[("namespace", ""), ("pod", "")]),
        ]);
        assert_eq!(
            named(&OldHandle::of_container("c1").unwrap(), &block),
            ["10.0.0.0"]
        );
    }

    #[test]
    fn vmi_handle_is_never_an_old_handle() {
        assert_eq!(OldHandle::of_pod("k8s-pod-network", "vmi.prod.db"), None);
        assert_eq!(OldHandle::of_pod("k8s", "network.vmi.prod.db"), None);
        assert_eq!(OldHandle::of_container("k8s-pod-network.vmi.prod.db"), None);
        assert!(OldHandle::of_pod("vmi", "web").is_some());
    }
}
