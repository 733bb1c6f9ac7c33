//! Chooses the pools that serve a request, and records why the others do not.

mod stale;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::pool::{Pool, PoolRejection, RejectedPool, enabled_pool};
use crate::api::{AllowedUse, IpPool};
use crate::net::{Cidr, IpVersion};
use crate::selector::{Selector, SelectorError};

pub use self::stale::stale_blocks;

/// Labels of a node or namespace.
pub type Labels = BTreeMap<String, String>;

/// The criteria for the choice of pools.
#[derive(Debug, Clone)]
pub struct PoolRequest<'a> {
    /// The address family.
    pub version: IpVersion,
    /// Ranges of the pools that the request names, in its order.
    pub requested: &'a [Cidr],
    /// The purpose of the addresses.
    pub purpose: AllowedUse,
    /// The node's name, for messages.
    pub node: &'a str,
    /// The node's labels.
    pub node_labels: &'a Labels,
    /// The namespace's name and labels. Without a namespace, namespace selectors see no labels
    /// (IPAM-96).
    pub namespace: Option<(&'a str, &'a Labels)>,
    /// The selectors of named pools that count.
    pub named: NamedPools,
}

/// The selectors that count for pools that a request names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NamedPools {
    /// Whether to require that the namespace selector matches.
    pub by_namespace: bool,
    /// Whether to require that the node selector matches.
    pub by_node: bool,
}

/// The result of the choice of pools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolChoice {
    /// The pools to use, in this order.
    pub chosen: Vec<Pool>,
    /// The chosen pools and those that only the intended use excluded. The node keeps its blocks in
    /// them (IPAM-99), except empty ones of a former size.
    pub selected: Vec<Pool>,
    /// Every pool of the family that is in service.
    pub enabled: Vec<Pool>,
    /// The pools that were not chosen, with the reasons.
    pub refused: Vec<RejectedPool>,
}

/// The reason why no pool was chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPool {
    /// A requested range is not that of a pool in service with a valid block size.
    #[error("the given pool ({0}) does not exist, or is not enabled")]
    NotEnabled(Cidr),
    /// No pool of the family is in service and has a valid block size.
    #[error("cannot find a qualified ippool")]
    NoneEnabled,
    /// Selectors or assignment modes exclude every pool.
    #[error("no configured Calico pools for node {0}")]
    NoneSelected(String),
    /// The selected pools are for other uses.
    #[error("cannot find a qualified ippool, no pools match the required use ({0:?})")]
    NoneForUse(AllowedUse),
    /// A selector is malformed. As in upstream, the whole request fails.
    #[error("IPPool {pool}: {field} `{selector}` is invalid: {reason}")]
    Selector {
        /// The pool.
        pool: String,
        /// `nodeSelector` or `namespaceSelector`.
        field: &'static str,
        /// The selector.
        selector: String,
        /// The syntax error.
        reason: Box<SelectorError>,
    },
}

/// The error for a request that no pool serves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct PoolChoiceError {
    /// The reason.
    pub cause: NoPool,
    /// The pools that were not used, with the reasons.
    pub refused: Vec<RejectedPool>,
}

/// Chooses the pools of a request. As in upstream, selectors and assignment modes of named pools do
/// not count, except the selectors that [`PoolRequest::named`] selects (IPAM-95).
pub fn choose_pools(
    pools: &[IpPool],
    request: &PoolRequest<'_>,
) -> Result<PoolChoice, PoolChoiceError> {
    let mut sorted: Vec<&IpPool> = pools.iter().collect();
    sorted.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));

    let mut choice = PoolChoice::default();
    let mut in_service: Vec<(&IpPool, Pool)> = Vec::new();
    for object in sorted {
        match enabled_pool(object, request.version) {
            Ok(pool) => in_service.push((object, pool)),
            Err(refusal) => choice.refuse(object, refusal),
        }
    }
    choice.enabled = in_service.iter().map(|(_, pool)| pool.clone()).collect();
    in_service.retain(|(object, pool)| match pool.check_block_size() {
        Ok(()) => true,
        Err(refusal) => {
            choice.refuse(object, refusal);
            false
        }
    });

    match select(&mut choice, in_service, request) {
        Ok(()) => Ok(choice),
        Err(cause) => Err(PoolChoiceError {
            cause,
            refused: choice.refused,
        }),
    }
}

fn select(
    choice: &mut PoolChoice,
    in_service: Vec<(&IpPool, Pool)>,
    request: &PoolRequest<'_>,
) -> Result<(), NoPool> {
    if in_service.is_empty() {
        return Err(NoPool::NoneEnabled);
    }
    choice.selected = if request.requested.is_empty() {
        choice.by_selectors(in_service, request)?
    } else {
        choice.by_request(in_service, request)?
    };
    if choice.selected.is_empty() {
        return Err(NoPool::NoneSelected(request.node.to_owned()));
    }
    for pool in &choice.selected {
        if pool.allows(request.purpose) {
            choice.chosen.push(pool.clone());
        } else {
            let refusal = PoolRejection::Use {
                allowed: pool.allowed_uses.clone(),
                wanted: request.purpose,
            };
            choice.refused.push(RejectedPool {
                pool: pool.name.clone(),
                cidr: Some(pool.cidr),
                refusal,
            });
        }
    }
    if choice.chosen.is_empty() {
        Err(NoPool::NoneForUse(request.purpose))
    } else {
        Ok(())
    }
}

fn refusal_by_selectors(
    object: &IpPool,
    request: &PoolRequest<'_>,
) -> Result<Option<PoolRejection>, NoPool> {
    if !object.spec.is_automatic() {
        return Ok(Some(PoolRejection::Manual));
    }
    match rejection_by_node(object, request)? {
        Some(refusal) => Ok(Some(refusal)),
        None => rejection_by_namespace(object, request.namespace),
    }
}

fn refusal_of_named(
    object: &IpPool,
    request: &PoolRequest<'_>,
) -> Result<Option<PoolRejection>, NoPool> {
    let NamedPools {
        by_namespace,
        by_node,
    } = request.named;
    let refusal = if by_node {
        rejection_by_node(object, request)?
    } else {
        None
    };
    match refusal {
        None if by_namespace => rejection_by_namespace(object, request.namespace),
        refusal => Ok(refusal),
    }
}

fn rejection_by_node(
    object: &IpPool,
    request: &PoolRequest<'_>,
) -> Result<Option<PoolRejection>, NoPool> {
    let selector = &object.spec.node_selector;
    if selects(object, "nodeSelector", selector, request.node_labels)? {
        return Ok(None);
    }
    Ok(Some(PoolRejection::NodeSelector {
        selector: selector.clone(),
        node: request.node.to_owned(),
    }))
}

/// Returns the rejection of a pool whose namespace selector does not match the labels of the
/// namespace.
pub fn rejection_by_namespace(
    object: &IpPool,
    namespace: Option<(&str, &Labels)>,
) -> Result<Option<PoolRejection>, NoPool> {
    let selector = &object.spec.namespace_selector;
    let no_labels = Labels::new();
    let labels = namespace.map_or(&no_labels, |(_, labels)| labels);
    if selects(object, "namespaceSelector", selector, labels)? {
        return Ok(None);
    }
    let namespace = namespace.map(|(name, _)| name.to_owned());
    Ok(Some(PoolRejection::NamespaceSelector {
        selector: selector.clone(),
        namespace,
    }))
}

fn selects(
    object: &IpPool,
    field: &'static str,
    selector: &str,
    labels: &Labels,
) -> Result<bool, NoPool> {
    Selector::parse(selector)
        .map(|parsed| parsed.matches(labels))
        .map_err(|reason| NoPool::Selector {
            pool: object.metadata.name.clone(),
            field,
            selector: selector.to_owned(),
            reason: Box::new(reason),
        })
}

/// Returns the error of the first malformed selector of a pool. A request that evaluates the
/// selector fails with it.
pub(super) fn malformed_selector(object: &IpPool) -> Option<NoPool> {
    let selectors = [
        ("nodeSelector", &object.spec.node_selector),
        ("namespaceSelector", &object.spec.namespace_selector),
    ];
    let no_labels = Labels::new();
    selectors
        .into_iter()
        .find_map(|(field, selector)| selects(object, field, selector, &no_labels).err())
}

impl PoolChoice {
    fn by_request(
        &mut self,
        pools: Vec<(&IpPool, Pool)>,
        request: &PoolRequest<'_>,
    ) -> Result<Vec<Pool>, NoPool> {
        for (object, pool) in &pools {
            if !request.requested.contains(&pool.cidr) {
                self.refuse(object, PoolRejection::NotRequested);
            }
        }
        let (mut selected, mut named) = (Vec::new(), BTreeSet::new());
        // A request that repeats a range thousands of times must cause neither searches nor texts
        // of that number.
        for cidr in request.requested.iter().filter(|cidr| named.insert(**cidr)) {
            let pool = pools.iter().rfind(|(_, pool)| pool.cidr == *cidr);
            let (object, pool) = pool.ok_or(NoPool::NotEnabled(*cidr))?;
            match refusal_of_named(object, request)? {
                None => selected.push(pool.clone()),
                Some(refusal) => self.refuse(object, refusal),
            }
        }
        Ok(selected)
    }

    fn by_selectors(
        &mut self,
        pools: Vec<(&IpPool, Pool)>,
        request: &PoolRequest<'_>,
    ) -> Result<Vec<Pool>, NoPool> {
        let mut selected = Vec::new();
        for (object, pool) in pools {
            match refusal_by_selectors(object, request)? {
                None => selected.push(pool),
                Some(refusal) => self.refuse(object, refusal),
            }
        }
        Ok(selected)
    }

    fn refuse(&mut self, object: &IpPool, refusal: PoolRejection) {
        let cidr = object.spec.range().ok();
        self.refused.push(RejectedPool {
            pool: object.metadata.name.clone(),
            cidr,
            refusal,
        });
    }
}
