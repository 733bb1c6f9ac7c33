//! Rules for IPPools: defaults, forbidden content, and forbidden changes.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::metadata::check_metadata;
use crate::api::{AllowedUse, AssignmentMode, IpPool, IpPoolSpec, StringEnum};
use crate::net::{Cidr, IpVersion};
use crate::selector::Selector;
use crate::validation_error::{FieldError, ValidationError};

const NEVER: &str = "Never";
const ALL: &str = "all()";
/// The maximum length of a selector in code points, as the API server counts.
const MAX_SELECTOR: usize = 1024;

/// The stored objects that a pool is checked against.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolContext<'a> {
    /// The pool as stored; `None` if the pool is new.
    pub previous: Option<&'a IpPool>,
    /// All stored pools, including the pool itself. Not used for an update.
    pub pools: &'a [IpPool],
    /// All existing blocks, for a new pool.
    pub blocks: &'a [Cidr],
}

/// Completes a pool, checks it, and returns the pool to store.
pub fn admit_ip_pool(
    mut pool: IpPool,
    context: &PoolContext<'_>,
) -> Result<IpPool, ValidationError> {
    let (range, address) = parse_cidr(&pool.spec)?;
    complete_ip_pool(&mut pool.spec);
    let mut findings = Vec::new();
    if range.network() != address {
        findings.push(FieldError::new(
            "IPPool.Spec.CIDR",
            &pool.spec.cidr,
            "IPPool CIDR is not strictly masked",
        ));
    }
    pool.spec.cidr = range.to_string();
    check_change(&pool, &range, context, &mut findings);
    check_content(&pool.spec, &range, &mut findings);
    findings.extend(check_metadata(&pool));
    ValidationError::from_findings(findings).map(|()| pool)
}

/// Replaces missing values by their defaults (DS-47), which readers use, too.
pub fn complete_ip_pool(spec: &mut IpPoolSpec) {
    if spec.block_size.unwrap_or_default() == 0 {
        spec.block_size = spec
            .range()
            .ok()
            .map(|range| spec.block_prefix(range.version()));
    }
    if spec.allowed_uses.is_empty() {
        spec.allowed_uses = vec![AllowedUse::Workload.into(), AllowedUse::Tunnel.into()];
    }
    spec.assignment_mode
        .get_or_insert(AssignmentMode::Automatic.into());
    let defaults = [
        (&mut spec.node_selector, ALL),
        (&mut spec.ipip_mode, NEVER),
        (&mut spec.vxlan_mode, NEVER),
    ];
    for (field, default) in defaults {
        if field.is_empty() {
            *field = default.into();
        }
    }
}

fn parse_cidr(spec: &IpPoolSpec) -> Result<(Cidr, IpAddr), FieldError> {
    if spec.cidr.is_empty() {
        return Err(FieldError::missing(
            "IPPool.Spec.CIDR",
            "IPPool CIDR must be specified",
        ));
    }
    Cidr::parse_with_address(&spec.cidr).map_err(|_| {
        FieldError::new(
            "IPPool.Spec.CIDR",
            &spec.cidr,
            "IPPool CIDR must be a valid subnet",
        )
    })
}

fn check_change(
    pool: &IpPool,
    range: &Cidr,
    context: &PoolContext<'_>,
    findings: &mut Vec<FieldError>,
) {
    match context.previous {
        Some(previous) => check_update(pool, range, previous, findings),
        None => {
            check_overlaps(pool, range, context.pools, findings);
            check_blocks(pool, range, context.blocks, findings);
        }
    }
}

fn check_update(pool: &IpPool, range: &Cidr, previous: &IpPool, findings: &mut Vec<FieldError>) {
    let mut old = previous.spec.clone();
    complete_ip_pool(&mut old);
    let new = &pool.spec;
    if old.range().as_ref() != Ok(range) {
        findings.push(FieldError::new(
            "IPPool.Spec.CIDR",
            &new.cidr,
            "IPPool CIDR cannot be modified",
        ));
    }
    if old.block_size != new.block_size {
        let size = new.block_size.unwrap_or_default();
        findings.push(FieldError::new(
            "IPPool.Spec.BlockSize",
            size,
            "IPPool BlockSize cannot be modified",
        ));
    }
    let served_only_load_balancers = old.allows(AllowedUse::LoadBalancer);
    if served_only_load_balancers
        && new
            .allowed_uses
            .iter()
            .any(|u| !u.is(&AllowedUse::LoadBalancer))
    {
        let reason = "IPPool allowed use cannot be changed from LoadBalancer to Workload or Tunnel";
        findings.push(FieldError::new(
            "IPPool.Spec.AllowedUses",
            format!("{:?}", new.allowed_uses),
            reason,
        ));
    }
}

fn check_overlaps(pool: &IpPool, range: &Cidr, pools: &[IpPool], findings: &mut Vec<FieldError>) {
    let (name, cidr) = (&pool.metadata.name, &pool.spec.cidr);
    for other in pools.iter().filter(|other| other.metadata.name != *name) {
        // A stored pool without a valid range assigns no addresses.
        if other.spec.range().is_ok_and(|r| r.overlaps(range)) {
            let reason = format!(
                "IPPool({name}) CIDR overlaps with IPPool({}) CIDR {}",
                other.metadata.name, other.spec.cidr
            );
            findings.push(FieldError::new("IPPool.Spec.CIDR", cidr, reason));
        }
    }
}

fn check_blocks(pool: &IpPool, range: &Cidr, blocks: &[Cidr], findings: &mut Vec<FieldError>) {
    let size = pool.spec.block_prefix(range.version());
    if blocks
        .iter()
        .any(|block| block.prefix() != size && block.overlaps(range))
    {
        let reason =
            "IPPool blocksSize conflicts with existing allocations that use a different blockSize";
        findings.push(FieldError::new("IPPool.Spec.BlockSize", size, reason));
    }
}

fn check_content(spec: &IpPoolSpec, range: &Cidr, findings: &mut Vec<FieldError>) {
    check_size(spec, range, findings);
    check_link_local(spec, range, findings);
    check_assignable(spec, range, findings);
    check_encapsulation(spec, range, findings);
    check_selector("NodeSelector", &spec.node_selector, findings);
    check_selector("NamespaceSelector", &spec.namespace_selector, findings);
    check_uses(spec, findings);
}

fn check_size(spec: &IpPoolSpec, range: &Cidr, findings: &mut Vec<FieldError>) {
    let size = spec.block_prefix(range.version());
    let (allowed, reason) = match range.version() {
        IpVersion::V4 => (20..=32, "IPv4 block size must be between 20 and 32"),
        IpVersion::V6 => (116..=128, "IPv6 block size must be between 116 and 128"),
    };
    if !allowed.contains(&size) {
        findings.push(FieldError::new("IPPool.Spec.BlockSize", size, reason));
    }
    if !spec.disabled && range.prefix() > size {
        let reason = "IP pool size is too small for use with Calico IPAM. It must be equal to or \
                      greater than the block size.";
        findings.push(FieldError::new("IPPool.Spec.CIDR", &spec.cidr, reason));
    }
}

fn check_link_local(spec: &IpPoolSpec, range: &Cidr, findings: &mut Vec<FieldError>) {
    let (network, prefix) = match range.version() {
        IpVersion::V4 => (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
        IpVersion::V6 => (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    };
    if Cidr::new(network, prefix).is_some_and(|link_local| link_local.overlaps(range)) {
        let family = range.version();
        let reason =
            format!("IPPool CIDR overlaps with IPv{family} Link Local range {network}/{prefix}");
        findings.push(FieldError::new("IPPool.Spec.CIDR", &spec.cidr, reason));
    }
}

/// Refuses a range of multicast or loopback: with upstream, which accepts it, the kernel refuses
/// the address of a pod or drops the packets of the pod. A stored pool can still be disabled.
fn check_assignable(spec: &IpPoolSpec, range: &Cidr, findings: &mut Vec<FieldError>) {
    if let Some(special) = range.unassignable().filter(|_| !spec.disabled) {
        let reason = format!(
            "IPPool CIDR overlaps with {special}; a pod with such an address cannot communicate"
        );
        findings.push(FieldError::new("IPPool.Spec.CIDR", &spec.cidr, reason));
    }
}

fn check_encapsulation(spec: &IpPoolSpec, range: &Cidr, findings: &mut Vec<FieldError>) {
    let modes = [
        ("VXLANMode", &spec.vxlan_mode, "vxlanMode"),
        ("IPIPMode", &spec.ipip_mode, "ipIpMode"),
    ];
    for (name, mode, tag) in modes {
        if !matches!(mode.as_str(), NEVER | "Always" | "CrossSubnet") {
            findings.push(FieldError::tag(name, mode, tag));
        }
    }
    if spec.vxlan_mode != NEVER && spec.ipip_mode != NEVER {
        let reason = "Cannot enable both VXLAN and IPIP on the same IPPool";
        findings.push(FieldError::new(
            "IPPool.Spec.VXLANMode",
            &spec.vxlan_mode,
            reason,
        ));
    }
    if range.version() == IpVersion::V6 && spec.ipip_mode != NEVER {
        let reason = "IPIP is not supported on an IPv6 IP pool";
        findings.push(FieldError::new(
            "IPPool.Spec.IPIPMode",
            &spec.ipip_mode,
            reason,
        ));
    }
}

fn check_selector(name: &str, selector: &str, findings: &mut Vec<FieldError>) {
    if let Err(error) = Selector::parse(selector) {
        let mut finding = FieldError::tag(name, selector, "selector");
        finding.reason.push_str(&format!("({error})"));
        findings.push(finding);
    }
    if selector.chars().count() > MAX_SELECTOR {
        findings.push(FieldError::new(
            name,
            selector,
            format!("may not be longer than {MAX_SELECTOR} characters"),
        ));
    }
    // Like upstream, also rejects `global(` in a quoted value.
    if selector.contains("global(") {
        findings.push(FieldError::new(
            name,
            selector,
            "global() cannot be used in the selector of an IPPool",
        ));
    }
}

fn check_uses(spec: &IpPoolSpec, findings: &mut Vec<FieldError>) {
    let mut reject = |field: &str, value: String, reason: &str| {
        findings.push(FieldError::new(field, value, reason))
    };
    let uses = &spec.allowed_uses;
    let uses_text = || format!("{uses:?}");
    if uses
        .iter()
        .enumerate()
        .any(|(i, allowed)| uses[..i].contains(allowed))
    {
        reject(
            "IPPool.Spec.AllowedUses",
            uses_text(),
            "a use is listed twice; list each use once",
        );
    }
    for unknown in uses
        .iter()
        .filter(|allowed| matches!(allowed, StringEnum::Other(_)))
    {
        let reason = "unsupported use; use Workload, Tunnel or LoadBalancer";
        reject("IPPool.Spec.AllowedUses", format!("{unknown:?}"), reason);
    }
    if let Some(StringEnum::Other(mode)) = &spec.assignment_mode {
        let reason = "unsupported mode; use Automatic or Manual";
        reject("IPPool.Spec.AssignmentMode", mode.clone(), reason);
    }
    if spec.allows(AllowedUse::Tunnel) && !spec.namespace_selector.is_empty() {
        let reason = "namespaceSelector cannot be used with the allowed use Tunnel; set \
                      allowedUses to [Workload]";
        reject(
            "IPPool.Spec.NamespaceSelector",
            spec.namespace_selector.clone(),
            reason,
        );
    }
    if !spec.allows(AllowedUse::LoadBalancer) {
        return;
    }
    if uses.iter().any(|u| !u.is(&AllowedUse::LoadBalancer)) {
        let reason = "LoadBalancer cannot be combined with Workload or Tunnel allowed uses";
        reject("IPPool.Spec.AllowedUses", uses_text(), reason);
    }
    if spec.ipip_mode != NEVER || spec.vxlan_mode != NEVER {
        reject(
            "IPPool.Spec.AllowedUses",
            uses_text(),
            "LoadBalancer IP pool cannot have IPIP or VXLAN enabled",
        );
    }
    if spec.disable_bgp_export {
        let reason = "LoadBalancer IP pool cannot have disableBGPExport set";
        reject(
            "IPPool.Spec.DisableBGPExport",
            spec.disable_bgp_export.to_string(),
            reason,
        );
    }
    if spec.node_selector != ALL {
        let reason = "LoadBalancer IP pool must have the node selector all()";
        reject(
            "IPPool.Spec.NodeSelector",
            spec.node_selector.clone(),
            reason,
        );
    }
}
