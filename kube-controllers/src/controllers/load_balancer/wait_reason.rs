//! [`Wait`]: the reason why a Service of type LoadBalancer waits for an address, with a text for
//! its tenant and a text for the log. The first names the pools that the Service names, and owners
//! in the Service's namespace. The second names all.

use std::net::IpAddr;

use allocation::error::{IpamError, Shortfall};
use libcalico::ipam::{
    AssignError, Holder, NoPool, Obstacle, PoolChoiceError, PoolRejection, RejectedPool,
    Unavailable,
};
use libcalico::kubernetes::{AssignIps, IPV4_POOLS, IPV6_POOLS, LOAD_BALANCER_IPS};
use libcalico::net::{Cidr, IpVersion};

use super::decision::MissingAddress;
use super::pools::LoadBalancerPool;
use super::request::{RequestError, shortened};
use super::service::LoadBalancerService;

/// Maximum number of pools that a text names.
const NAMED: usize = 8;

/// The kind of a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// No pool serves the Service.
    NoPool,
    /// Pools serve the Service, and have no free address.
    PoolFull,
    /// The requested address has another owner, is cooling down, or is in a block that Services
    /// cannot use.
    AddressTaken,
    /// The request of the Service is invalid.
    InvalidRequest,
    /// The Service has annotations of Calico, and belongs to another implementation by its class.
    Class,
    /// kube-controllers gives no addresses to Services.
    NotEnabled,
}

impl WaitReason {
    pub(super) const ALL: [WaitReason; 6] = [
        WaitReason::NoPool,
        WaitReason::PoolFull,
        WaitReason::AddressTaken,
        WaitReason::InvalidRequest,
        WaitReason::Class,
        WaitReason::NotEnabled,
    ];

    /// Returns the value of the metric's label.
    pub(super) fn label(self) -> &'static str {
        match self {
            WaitReason::NoPool => "no_pool",
            WaitReason::PoolFull => "pool_full",
            WaitReason::AddressTaken => "address_taken",
            WaitReason::InvalidRequest => "invalid_request",
            WaitReason::Class => "class",
            WaitReason::NotEnabled => "not_enabled",
        }
    }

    /// Returns the reason of the Event.
    pub(super) fn event(self) -> &'static str {
        match self {
            WaitReason::NoPool => "NoIPPool",
            WaitReason::PoolFull => "IPPoolFull",
            WaitReason::AddressTaken => "AddressTaken",
            WaitReason::InvalidRequest => "InvalidAddressRequest",
            WaitReason::Class => "ClassNotServed",
            WaitReason::NotEnabled => "LoadBalancerNotEnabled",
        }
    }

    /// Returns true if an address that another Service releases may end the wait.
    pub(super) fn may_end_with_a_release(self) -> bool {
        matches!(self, WaitReason::PoolFull | WaitReason::AddressTaken)
    }
}

/// The reason why kube-controllers gives no addresses to Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotServed {
    /// The settings do not enable the controller.
    Disabled,
    /// The API server refuses the rights of the controller.
    RoleMissing,
    /// The value of `assignIPs` is unknown.
    UnknownAssignIps,
}

/// The reason why a Service waits for an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) reason: WaitReason,
    /// The text for the tenant of the Service.
    pub(super) text: String,
    /// The whole text, for the log.
    pub(super) cause: String,
}

impl Wait {
    /// Returns a reason whose whole text the tenant may read.
    fn open(reason: WaitReason, text: String) -> Self {
        Wait {
            reason,
            cause: text.clone(),
            text,
        }
    }

    /// Returns the reason if no pool is for Services.
    pub(super) fn no_pool() -> Self {
        Wait::open(
            WaitReason::NoPool,
            "no address: no IPPool for LoadBalancer serves this Service".into(),
        )
    }

    pub(super) fn invalid_request(error: &RequestError) -> Self {
        Wait::open(WaitReason::InvalidRequest, error.to_string())
    }

    /// Returns the reason if the Service has another class and annotations that only Calico reads.
    /// `spec.loadBalancerIP` is not one of them: other implementations read it too.
    pub(super) fn class(service: &LoadBalancerService) -> Option<Self> {
        let request = &service.request;
        let class = shortened(request.class.as_deref()?);
        let annotations = [
            (IPV4_POOLS, &request.pools4),
            (IPV6_POOLS, &request.pools6),
            (LOAD_BALANCER_IPS, &request.addresses),
        ];
        let present: Vec<_> = annotations
            .iter()
            .filter(|(_, text)| text.is_some())
            .map(|(name, _)| *name)
            .collect();
        let names = present.join(", ");
        let text = format!(
            "loadBalancerClass {class:?} is not calico, so these annotations have no effect: \
             {names}"
        );
        (!present.is_empty()).then(|| Wait::open(WaitReason::Class, text))
    }

    /// Returns the reason if kube-controllers gives no addresses although there is a pool for
    /// Services, and the Service would get one. A Service with an entry in its status has another
    /// implementation.
    pub(super) fn not_enabled(
        cause: NotServed,
        service: &LoadBalancerService,
        pools: &[LoadBalancerPool],
        assign: AssignIps,
    ) -> Option<Self> {
        let waits = service.request.is_managed(assign) && !service.has_entry && !pools.is_empty();
        let what = match cause {
            NotServed::Disabled => {
                "the controller loadbalancer is off; see ENABLED_CONTROLLERS and the \
                 KubeControllersConfiguration"
            }
            NotServed::RoleMissing => "the role calico-kube-controllers-load-balancer is not bound",
            NotServed::UnknownAssignIps => "loadBalancer.assignIPs has an unknown value",
        };
        let text = || format!("kube-controllers gives no addresses: {what}");
        waits.then(|| Wait::open(WaitReason::NotEnabled, text()))
    }

    /// Returns the reason that the error of an assignment shows; `None` if neither the pools nor
    /// the address cause it.
    pub(super) fn of_error(error: &IpamError, missing: &MissingAddress) -> Option<Self> {
        match (error, missing) {
            (IpamError::AlreadyAssigned { ip, holder }, _) => Some(taken(*ip, holder.as_deref())),
            (IpamError::Shortfall(shortfall), _) => Some(Wait::full(shortfall)),
            (IpamError::Pools(choice), MissingAddress::Any { version, pools }) => {
                Some(unserved(*version, pools, choice))
            }
            (
                IpamError::Pools(_)
                | IpamError::NotInPool { .. }
                | IpamError::UseNotAllowed { .. }
                | IpamError::Withheld { .. },
                MissingAddress::Address(ip),
            ) => {
                let text = format!("no address: no IPPool for LoadBalancer serves {ip}");
                Some(Wait {
                    reason: WaitReason::NoPool,
                    text,
                    cause: whole(error, error.refused_pools()),
                })
            }
            (error, MissingAddress::Address(ip)) => in_other_block(*ip, error),
            _ => None,
        }
    }

    /// Returns the reason if the pools that serve the Service have no free address.
    pub(super) fn full(shortfall: &Shortfall) -> Self {
        let version = shortfall.version;
        let serving = shortfall
            .refused
            .iter()
            .filter(|pool| is_exhausted(&pool.refusal))
            .count();
        let text = match serving {
            0 => format!("no IPv{version} address: the IPPools that serve this Service are full"),
            1 => format!("no IPv{version} address: 1 IPPool serves this Service, and it is full"),
            _ => format!(
                "no IPv{version} address: {serving} IPPools serve this Service, and all are full"
            ),
        };
        Wait {
            reason: WaitReason::PoolFull,
            text,
            cause: whole(shortfall, &shortfall.refused),
        }
    }

    /// Combines the reasons of two families. The kind is one that a release may end, or else that
    /// of the first, so that a released address is assigned to the family that waits for it.
    pub(super) fn and(self, other: Wait) -> Self {
        let joined = |one: String, two: &str| {
            if one == two {
                one
            } else {
                format!("{one}; {two}")
            }
        };
        let kinds = [self.reason, other.reason];
        let reason = kinds
            .into_iter()
            .find(|kind| kind.may_end_with_a_release())
            .unwrap_or(self.reason);
        Wait {
            reason,
            text: joined(self.text, &other.text),
            cause: joined(self.cause, &other.cause),
        }
    }
}

fn taken(ip: IpAddr, holder: Option<&Holder>) -> Wait {
    let Some(holder) = holder else {
        return Wait::open(WaitReason::AddressTaken, format!("{ip} is taken"));
    };
    let reason = if holder.is_cooling() {
        Obstacle::Cooling
    } else {
        Obstacle::Held(holder.clone())
    };
    let unavailable = Unavailable { ip, reason };
    Wait {
        reason: WaitReason::AddressTaken,
        text: unavailable.to_string(),
        cause: unavailable.whole(),
    }
}

/// Returns the reason if the block of the requested address is not for Services; `None` for another
/// error.
fn in_other_block(ip: IpAddr, error: &IpamError) -> Option<Wait> {
    let why = match error {
        IpamError::Block(AssignError::AffinityMismatch { .. } | AssignError::NoAffinity(_)) => {
            "is in a block that is not for Services, and affinity is strict"
        }
        IpamError::OverlappingBlock { .. } => {
            "is in no block, and a new one would overlap with one of another size"
        }
        _ => return None,
    };
    let text = format!("{ip} {why}");
    Some(Wait {
        reason: WaitReason::AddressTaken,
        cause: format!("{text}: {error}"),
        text,
    })
}

/// Returns the reason if no pool serves the Service. The text names the pools with the ranges in
/// `named`, which the Service names, and no others.
fn unserved(version: IpVersion, named: &[Cidr], error: &PoolChoiceError) -> Wait {
    let PoolChoiceError { cause, refused } = error;
    let of_request = refused
        .iter()
        .filter(|pool| pool.cidr.is_some_and(|cidr| named.contains(&cidr)));
    let refused_named =
        listed(of_request.filter(|pool| pool.refusal != PoolRejection::NotRequested));
    let unknown = match cause {
        NoPool::NotEnabled(range) if refused.iter().all(|pool| pool.cidr != Some(*range)) => {
            format!("no IPPool has the range {range}")
        }
        _ => String::new(),
    };
    let whys: Vec<String> = [unknown, refused_named]
        .into_iter()
        .filter(|why| !why.is_empty())
        .collect();
    let why = if whys.is_empty() {
        String::new()
    } else {
        format!(": {}", whys.join("; "))
    };
    let text =
        format!("no IPv{version} address: no IPPool for LoadBalancer serves this Service{why}");
    Wait {
        reason: WaitReason::NoPool,
        text,
        cause: whole(error, refused),
    }
}

/// Returns true if the pool serves the request and has no address for it.
fn is_exhausted(refusal: &PoolRejection) -> bool {
    use PoolRejection::{AutoAllocateOff, BlockLimit, Full, Reserved, StrictAffinity};
    matches!(
        refusal,
        Full { .. } | BlockLimit { .. } | StrictAffinity | AutoAllocateOff | Reserved
    )
}

fn whole(error: &impl std::fmt::Display, refused: &[RejectedPool]) -> String {
    let error = error.to_string();
    let (error, why) = (error.trim_end(), listed(refused.iter()));
    if why.is_empty() {
        error.to_owned()
    } else {
        format!("{error}: {why}")
    }
}

/// Lists pools with their reasons.
fn listed<'p>(pools: impl Iterator<Item = &'p RejectedPool>) -> String {
    let pools: Vec<String> = pools.map(RejectedPool::to_string).collect();
    let text = pools[..pools.len().min(NAMED)].join("; ");
    if pools.len() > NAMED {
        format!("{text}; and {} more", pools.len() - NAMED)
    } else {
        text
    }
}
