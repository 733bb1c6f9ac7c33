//! Assigns an address in one pass of the migration: of a pod, or of the node's IPIP device. With
//! host-local the device has the second address of the node's range, so that address must be
//! assigned before others.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use libcalico::api::{AllowedUse, Node, NodeBgp, ObjectKey};
use libcalico::ipam::Tunnel;
use libcalico::kubernetes::{PodCidrError, PodCidrs};
use libcalico::net::IpVersion;
use libcalico::store::{Store, StoreError};

use allocation::alloc::inputs::AllocationInputs;
use allocation::alloc::one_address::assign_address;
use allocation::alloc::request::AssignRequest;
use allocation::cluster_state::NotReadyError;
use allocation::error::IpamError;
use os::clock::Clock;
use os::lock::LockError;

/// Number of attempts of a write that loses races.
const ATTEMPTS: u32 = 5;
pub(super) const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(super) enum UpgradeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    NotReady(#[from] NotReadyError),
    /// A migration to `projectcalico.org/v3` has locked the datastore.
    #[error(
        "a migration to projectcalico.org/v3 has locked the datastore; the addresses of host-local \
         stay until its end"
    )]
    Moving,
    #[error(
        "an import into the datastore is incomplete; the addresses of host-local stay until \
         `calico-ipam migrate import` has ended and `calico-ipam migrate unlock` has run"
    )]
    Importing,
    #[error("cannot assign {ip} in Calico: {cause}")]
    Address { ip: IpAddr, cause: IpamError },
    #[error(transparent)]
    PodCidr(#[from] PodCidrError),
    #[error("cannot access {path}: {cause}")]
    File { path: String, cause: io::Error },
    /// host-local's lock cannot be taken, for example because host-local has it.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Assigns an address, and succeeds if it is assigned already, usually by an earlier pass.
pub(super) async fn assign_unless_assigned<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    ip: IpAddr,
) -> Result<(), UpgradeError> {
    let inputs = AllocationInputs::read(store, &request.inputs_query()).await?;
    match assign_address(store, clock, request, ip, inputs).await {
        Ok(_) => Ok(()),
        Err(IpamError::AlreadyAssigned { holder, .. }) => {
            let holder = holder.map(|holder| holder.whole);
            tracing::warn!(%ip, holder, "the address is assigned already; its allocation stays");
            Ok(())
        }
        Err(cause) => Err(UpgradeError::Address { ip, cause }),
    }
}

/// Assigns the second address of the node's podCIDR for its IPIP device, and stores it in the Node,
/// unless the Node has one. A node with only an IPv6 range has no such device.
pub(super) async fn ensure_tunnel_ip<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    name: &str,
) -> Result<(), UpgradeError> {
    let key = ObjectKey::global(name);
    until_written(clock, async || {
        let mut node = store.get::<Node>(&key).await?;
        if node
            .value
            .spec
            .bgp
            .as_ref()
            .is_some_and(|bgp| !bgp.ipv4_ipip_tunnel_addr.is_empty())
        {
            return Ok(());
        }
        let range = PodCidrs::of(&node.value)?.of_family(IpVersion::V4).ok();
        let Some(ip) = range.and_then(|range| range.nth(1)) else {
            return Ok(());
        };
        let request = AssignRequest {
            attributes: Tunnel::IPIP.attributes_of(name),
            purpose: AllowedUse::Tunnel,
            ..AssignRequest::workload(Tunnel::IPIP.handle_of(name), name)
        };
        assign_unless_assigned(store, clock, &request, ip).await?;
        node.value
            .spec
            .bgp
            .get_or_insert_with(NodeBgp::default)
            .ipv4_ipip_tunnel_addr = ip.to_string();
        // The kubelet writes its Node frequently, so this write may lose a race.
        store.update(&key, &node.value, &node.revision).await?;
        Ok(())
    })
    .await
}

/// Runs `attempt`, which reads an object and writes it, again after a lost race, [`ATTEMPTS`] times
/// at most.
pub(super) async fn until_written<C: Clock>(
    clock: &C,
    attempt: impl AsyncFn() -> Result<(), UpgradeError>,
) -> Result<(), UpgradeError> {
    for _ in 1..ATTEMPTS {
        match attempt().await {
            Err(UpgradeError::Store(StoreError::Conflict { .. })) => clock.sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
    attempt().await
}
