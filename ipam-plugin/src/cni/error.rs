//! Conversion of errors into CNI errors.

use libcalico::ipam::RefusedPool;
use libcalico::store::StoreError;
use netconf::{CniError, Code};

use crate::error::{Exhaustion, IpamError};

/// Returns the error with the CNI code that fits and upstream's text. The details contain the facts that an operator
/// needs, such as the reason why each pool gave no address.
pub fn cni_error(error: &IpamError) -> CniError {
    if let IpamError::Vmi(error) = error {
        return error.clone().into();
    }
    CniError::new(code(error), error.to_string()).with_details(details(error))
}

fn code(error: &IpamError) -> Code {
    match error {
        IpamError::Contention => Code::TRY_AGAIN,
        IpamError::PoolName { .. } | IpamError::PoolFamily { .. } => Code::INVALID_CONFIG,
        IpamError::Store(StoreError::Unavailable { .. }) => Code::TRY_AGAIN,
        IpamError::Store(StoreError::DiskFull { .. }) => Code::IO,
        IpamError::StillListed { .. } => Code::TRY_AGAIN,
        _ => Code::INTERNAL,
    }
}

fn details(error: &IpamError) -> String {
    match error {
        IpamError::AlreadyAssigned { holder, .. } => held_by(holder),
        IpamError::NotInPool { ip, refused } if refused.is_empty() => {
            format!("no IPPool contains {ip}; `calico-ipam show` lists the pools")
        }
        IpamError::Withheld { .. } => {
            "feature_control.restrict_annotations keeps the pod's annotations to what its namespace may have".into()
        }
        IpamError::PoolName { pool, .. } => {
            format!("`{pool}` is neither the CIDR nor the name of an IPPool; `calico-ipam show` lists them")
        }
        IpamError::Store(StoreError::NotFound { key }) if key.starts_with("Node(") => {
            "the node is not in the datastore: calico-node creates it at its first start; by hand: calico-ipam init"
                .into()
        }
        IpamError::Shortfall(shortfall) => match &shortfall.cause {
            limit @ Exhaustion::BlockLimit { .. } => format!("{limit}; {}", pools(&shortfall.refused)),
            _ => pools(&shortfall.refused),
        },
        IpamError::Pools(_) if error.refused_pools().is_empty() => {
            "there is no IPPool; make one with: calico-ipam apply -f pool.yaml".into()
        }
        _ => pools(error.refused_pools()),
    }
}

fn held_by(holder: &str) -> String {
    if holder.is_empty() { String::new() } else { format!("it is held by {holder}") }
}

fn pools(refused: &[RefusedPool]) -> String {
    refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
