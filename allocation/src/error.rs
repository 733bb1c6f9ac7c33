//! [`IpamError`]: the error of an operation on addresses. An error that upstream also has keeps
//! upstream's text, because people search for it.

use std::fmt;
use std::net::IpAddr;

use libcalico::api::AllowedUse;
use libcalico::failure::Failure;
use libcalico::ipam::{
    ANY_OF, AssignError, BlockTooLarge, CorruptBlock, HandleError, HandleId, Holder, NoPool,
    PoolChoiceError, RejectedPool, ReleaseError, Unavailable, list_for_caller,
};
use libcalico::net::{Cidr, CidrParseError, IpVersion};
use libcalico::store::StoreError;
use netconf::{CniError, Code};

/// The reason why an operation failed. The changes of a failed allocation were undone as far as
/// possible, and a failed release may have released some of the addresses.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IpamError {
    /// An error of the datastore.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No pool serves the request.
    #[error(transparent)]
    Pools(#[from] PoolChoiceError),
    /// A requested pool is neither a CIDR nor the name of a pool with a valid CIDR.
    #[error("error parsing pool \"{pool}\": {cause}")]
    PoolName {
        /// The requested pool.
        pool: String,
        /// The error from parsing it, or from parsing the CIDR of the pool with this name.
        cause: CidrParseError,
    },
    /// A requested pool is in the list of the other family.
    #[error("\"{pool}\" isn't a IPv{version} address")]
    PoolFamily {
        /// The name or the CIDR that the request has.
        requested: String,
        /// The pool's network address.
        pool: IpAddr,
        /// The family of the list that contains it.
        version: IpVersion,
    },
    /// Fewer addresses than requested are available.
    #[error(transparent)]
    Shortfall(#[from] Shortfall),
    /// The requested address is already allocated, possibly to the request's own handle, or is
    /// cooling down.
    #[error("resource already exists: {ip} with error: Address already assigned in block")]
    AlreadyAssigned {
        /// The address.
        ip: IpAddr,
        /// The owner; `None` if it is unknown.
        holder: Option<Box<Holder>>,
    },
    /// The requested address is in no usable pool. Upstream's text ends with a newline.
    #[error("The provided IP address is not in a configured pool\n")]
    NotInPool {
        /// The address.
        ip: IpAddr,
        /// The pools that contain the address but cannot be used.
        refused: Vec<RejectedPool>,
    },
    /// The requested address is in a pool for another use.
    #[error(
        "IP address {ip} is in IP pool \"{pool}\", which is not allowed for use \"{wanted:?}\" \
         (allowedUses: [{}])",
        space_separated(allowed)
    )]
    UseNotAllowed {
        /// The address.
        ip: IpAddr,
        /// The pool's name.
        pool: String,
        /// The requested use.
        wanted: AllowedUse,
        /// The uses that the pool allows.
        allowed: Vec<AllowedUse>,
    },
    /// The pool's namespace selector or a reservation withholds the requested address, and
    /// annotations are restricted.
    #[error("IP address {ip} is not for this pod: {reason}")]
    Withheld {
        /// The address.
        ip: IpAddr,
        /// A description of the pool or the reservation that excludes the address.
        reason: String,
    },
    /// The handle has reached its limit of addresses.
    #[error(
        "handle {handle} already has IP(s) allocated, cannot assign additional IP {ip} \
         (maxAllocPerIPVersion={limit})"
    )]
    HandleFull {
        /// The handle.
        handle: String,
        /// The requested address.
        ip: IpAddr,
        /// The limit.
        limit: usize,
    },
    /// A block cannot assign the addresses.
    #[error(transparent)]
    Block(#[from] AssignError),
    /// A block is inconsistent.
    #[error(transparent)]
    Corrupt(#[from] CorruptBlock),
    /// A block cannot be read, is inconsistent or is being deleted. The log may contain the
    /// details.
    #[error("block {0} cannot be read; run `calico-ipam check` for the reason")]
    UnreadableBlock(Cidr),
    /// The block of a requested address overlaps, or would overlap, with a block of another size.
    #[error(
        "cannot assign from block {cidr}: block {other} of another size has some of its addresses; \
         release these and delete block {other}, or request an address of another block"
    )]
    OverlappingBlock {
        /// The block of the address.
        cidr: Cidr,
        /// The existing block.
        other: Cidr,
    },
    /// A pool's block size is out of bounds.
    #[error(transparent)]
    BlockSize(#[from] BlockTooLarge),
    /// A block rejects the release.
    #[error("update conflict: {0}")]
    Release(#[from] ReleaseError),
    /// An endpoint may still list the addresses to be released, so they stay allocated.
    #[error("{endpoint} may still list the addresses: {cause}")]
    StillListed {
        /// The endpoint, as error messages name objects.
        endpoint: String,
        /// The error from reading or writing it.
        cause: StoreError,
    },
    /// A handle rejects the operation.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// The block was to be released only if empty.
    #[error("block '{0}' is not empty")]
    BlockNotEmpty(Cidr),
    /// The operation failed for the pod's VMI.
    #[error(transparent)]
    Vmi(#[from] VmiError),
    /// The operation lost races until its time ended.
    #[error("Max retries hit - excessive concurrent IPAM requests")]
    Contention,
    /// The gate before each write admits no more writes ([`crate::write_gate::WriteGate`]).
    #[error("stopped: writes are no longer allowed")]
    Stopped,
    /// The pod's list of addresses is too long.
    #[error("{0}")]
    List(Failure),
    /// The pod gets no address of its list.
    #[error("no address of the annotation \"{}\" is free", ANY_OF)]
    NoneFree {
        /// The addresses of a family in the list, with the reasons. Those that the pools permit
        /// come first.
        unavailable: Vec<Unavailable>,
    },
}

/// The reason why a pod with a VMI cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VmiError {
    /// The Kubernetes API did not return the pod's VMI.
    #[error("failed to get VMI info: {0}")]
    Unknown(#[from] StoreError),
    /// The VirtualMachineInstance that the pod names does not exist. One of the same name with
    /// another UID may exist.
    #[error(
        "failed to get VMI info: VirtualMachineInstance {namespace}/{name} with uid {uid} does not \
         exist"
    )]
    NoVmi {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
        /// The UID that the pod names.
        uid: String,
    },
    /// The VirtualMachine of the instance is missing.
    #[error("failed to get VMI info: VirtualMachine {namespace}/{name} does not exist")]
    NoVm {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// The pod is the target of a live migration, and VMIs do not keep their addresses.
    #[error(
        "live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled"
    )]
    TargetNotAllowed,
    /// The VMI of a migration target has no address that it could keep.
    #[error("migration target pod but no IP allocated to VM handle {0}")]
    NothingHeld(HandleId),
}

impl VmiError {
    /// Returns true if the Kubernetes API may respond later: see [`StoreError::is_postponable`].
    pub fn is_postponable(&self) -> bool {
        matches!(self, VmiError::Unknown(error) if error.is_postponable())
    }
}

impl From<VmiError> for CniError {
    fn from(error: VmiError) -> Self {
        let (code, advice) = match &error {
            VmiError::TargetNotAllowed => (
                Code::INVALID_CONFIG,
                "IPAMConfiguration default: set kubeVirtVMAddressPersistence to Enabled",
            ),
            VmiError::Unknown(cause) if !cause.is_unavailable() && !cause.is_foreign_answer() => {
                let advice = "if the API server forbids it, let the plugin's role get \
                              virtualmachineinstances and virtualmachines of kubevirt.io";
                (Code::INTERNAL, advice)
            }
            VmiError::NothingHeld(_) => (
                Code::TRY_AGAIN,
                "the other pod of the virtual machine has no address of this network",
            ),
            _ => (Code::TRY_AGAIN, ""),
        };
        CniError::new(code, error.to_string()).with_details(advice)
    }
}

/// The result of an operation on addresses.
pub type Result<T, E = IpamError> = std::result::Result<T, E>;

/// A shortage of addresses of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// The family.
    pub version: IpVersion,
    /// Number of requested addresses.
    pub wanted: usize,
    /// Number of assigned addresses.
    pub assigned: usize,
    /// The reason for the shortage.
    pub cause: Exhaustion,
    /// Every pool of the family, with the reason why it gave no (more) addresses.
    pub refused: Vec<RejectedPool>,
}

/// The reason why no more addresses are available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Exhaustion {
    /// The node has reached its limit of blocks. As in upstream, it does not borrow addresses then
    /// (IPAM-103).
    #[error(
        "Need to allocate an IPAM block but could not - limit of {limit} blocks reached for this \
         node"
    )]
    BlockLimit {
        /// The limit.
        limit: usize,
    },
    /// The node's blocks are full and it may not claim others.
    #[error("failed to find or claim a block")]
    AutoAllocateOff,
    /// The node's blocks are full, no block is free to be claimed, and blocks of others must not be
    /// used.
    #[error("No more free affine blocks and strict affinity enabled")]
    StrictAffinity,
    /// No usable block of the pools has a free address.
    #[error("No IPs available in pools: [{}]", space_separated(pools))]
    PoolsFull {
        /// The pools.
        pools: Vec<Cidr>,
    },
}

impl std::error::Error for Shortfall {}

impl fmt::Display for Shortfall {
    /// Writes upstream's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Exhaustion::BlockLimit { .. } => {
                f.write_str("cannot allocate new block due to per host block limit")
            }
            cause @ Exhaustion::AutoAllocateOff => write!(f, "{cause}"),
            Exhaustion::StrictAffinity | Exhaustion::PoolsFull { .. } => {
                let Shortfall {
                    version,
                    wanted,
                    assigned,
                    cause,
                    ..
                } = self;
                write!(
                    f,
                    "failed to request IPv{version} addresses: Assigned {assigned} out of {wanted} \
                     requested IPv{version} addresses; {cause}"
                )
            }
        }
    }
}

impl IpamError {
    /// Returns true if the datastore serves requests for other objects: see
    /// [`StoreError::is_of_one_object`].
    pub fn is_of_one_object(&self) -> bool {
        match self {
            IpamError::Store(cause)
            | IpamError::StillListed { cause, .. }
            | IpamError::Vmi(VmiError::Unknown(cause)) => cause.is_of_one_object(),
            _ => true,
        }
    }

    /// Returns the pools considered, each with the reason why it gave no address.
    pub fn refused_pools(&self) -> &[RejectedPool] {
        match self {
            IpamError::Pools(error) => &error.refused,
            IpamError::Shortfall(shortfall) => &shortfall.refused,
            IpamError::NotInPool { refused, .. } => refused,
            _ => &[],
        }
    }
}

/// Formats a list as Go prints it between brackets.
fn space_separated(items: &[impl fmt::Debug]) -> String {
    items
        .iter()
        .map(|item| format!("{item:?}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the CNI error with upstream's text. The details contain the facts that an operator
/// needs, such as the reason why each pool gave no address. Logs the owner of a taken address if
/// the details withhold it.
pub fn cni_error(error: &IpamError) -> CniError {
    match error {
        IpamError::Vmi(error) => return error.clone().into(),
        IpamError::AlreadyAssigned {
            ip,
            holder: Some(holder),
        } => log_withheld(*ip, holder),
        _ => {}
    }
    CniError::new(code_of(error), error.to_string()).with_details(details_of(error))
}

/// Logs the owner of an address on the node, unless the caller gets the whole description: kubelet
/// writes the caller's errors into an Event, which each person of the pod's namespace can read.
pub fn log_withheld(ip: IpAddr, holder: &Holder) {
    if holder.is_withheld() {
        tracing::warn!(%ip, holder = holder.whole, "the address is assigned already");
    }
}

fn code_of(error: &IpamError) -> Code {
    match error {
        IpamError::PoolName { .. } | IpamError::PoolFamily { .. } | IpamError::List(_) => {
            Code::INVALID_CONFIG
        }
        IpamError::NoneFree { unavailable } => {
            // Without a permitted address, another attempt is useless until a person changes the
            // list or a pool.
            let is_permitted = unavailable
                .iter()
                .any(|address| address.reason.is_permitted());
            if is_permitted {
                Code::TRY_AGAIN
            } else {
                Code::INVALID_CONFIG
            }
        }
        IpamError::Store(StoreError::DiskFull { .. }) => Code::IO,
        IpamError::Contention | IpamError::StillListed { .. } => Code::TRY_AGAIN,
        IpamError::Store(StoreError::Unavailable { .. } | StoreError::ForeignAnswer { .. }) => {
            Code::TRY_AGAIN
        }
        _ => Code::INTERNAL,
    }
}

fn details_of(error: &IpamError) -> String {
    match error {
        IpamError::AlreadyAssigned { holder: None, .. } => String::new(),
        IpamError::AlreadyAssigned {
            holder: Some(holder),
            ..
        } => format!("it is held by {}", holder.for_caller,),
        IpamError::NotInPool { ip, refused } if refused.is_empty() => {
            format!("no IPPool contains {ip}; `calico-ipam show` lists the pools")
        }
        IpamError::NoneFree { unavailable } => list_for_caller(unavailable),
        IpamError::Withheld { .. } => {
            "feature_control.restrict_annotations limits annotations to addresses that the pod's \
             namespace may have"
                .into()
        }
        IpamError::PoolName { pool, .. } => {
            format!(
                "`{pool}` is neither the CIDR nor the name of an IPPool; `calico-ipam show` lists \
                 them"
            )
        }
        IpamError::PoolFamily {
            requested, version, ..
        } => format!(
            "`{requested}` is not an IPv{version} pool; move it to the list of its family: the \
             annotation cni.projectcalico.org/ipv4pools or ipv6pools of the pod or its namespace, \
             or $.ipam.ipv4_pools or ipv6_pools"
        ),
        IpamError::Store(StoreError::NotFound { key }) if key.starts_with("Node(") => {
            "the Node is missing in the datastore; start calico-node, which creates it, or run \
             `calico-ipam init`"
                .into()
        }
        IpamError::Shortfall(shortfall) => match &shortfall.cause {
            limit @ Exhaustion::BlockLimit { .. } => {
                format!("{limit}; {}", join_refused(&shortfall.refused),)
            }
            _ => join_refused(&shortfall.refused),
        },
        IpamError::Pools(PoolChoiceError {
            cause: NoPool::NoneEnabled,
            refused,
        }) if refused.is_empty() => {
            "there is no IPPool; make one with: calico-ipam apply -f pool.yaml".into()
        }
        _ => join_refused(error.refused_pools()),
    }
}

fn join_refused(refused: &[RejectedPool]) -> String {
    refused
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortfall(assigned: usize, wanted: usize, cause: Exhaustion) -> String {
        Shortfall {
            version: IpVersion::V4,
            wanted,
            assigned,
            cause,
            refused: Vec::new(),
        }
        .to_string()
    }

    #[test]
    fn shortfall_errors_match_upstreams_wording() {
        let pools = vec![
            "10.66.0.0/30".parse().unwrap(),
            "10.67.0.0/24".parse().unwrap(),
        ];
        assert_eq!(
            shortfall(0, 1, Exhaustion::PoolsFull { pools }),
            "failed to request IPv4 addresses: Assigned 0 out of 1 requested IPv4 addresses; No \
             IPs available in pools: [10.66.0.0/30 10.67.0.0/24]"
        );
        assert_eq!(
            shortfall(64, 65, Exhaustion::StrictAffinity),
            "failed to request IPv4 addresses: Assigned 64 out of 65 requested IPv4 addresses; No \
             more free affine blocks and strict affinity enabled"
        );
        assert_eq!(
            shortfall(0, 1, Exhaustion::BlockLimit { limit: 20 }),
            "cannot allocate new block due to per host block limit"
        );
        assert_eq!(
            shortfall(0, 1, Exhaustion::AutoAllocateOff),
            "failed to find or claim a block"
        );
    }

    #[test]
    fn use_not_allowed_error_names_pool_and_allowed_uses() {
        let error = IpamError::UseNotAllowed {
            ip: "10.0.0.1".parse().unwrap(),
            pool: "tunnels".into(),
            wanted: AllowedUse::Workload,
            allowed: vec![AllowedUse::Tunnel, AllowedUse::LoadBalancer],
        };
        assert_eq!(
            error.to_string(),
            "IP address 10.0.0.1 is in IP pool \"tunnels\", which is not allowed for use \
             \"Workload\" (allowedUses: [Tunnel LoadBalancer])"
        );
    }
}
