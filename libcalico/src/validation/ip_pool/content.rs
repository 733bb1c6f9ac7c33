//! Checks a pool's own content.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{ALL, NEVER};
use crate::api::{AllowedUse, Choice, IpPoolSpec};
use crate::net::{Cidr, IpVersion};
use crate::selector::Selector;
use crate::validation::FieldError;

/// The longest selector, in characters.
const MAX_SELECTOR: usize = 1024;

pub(super) fn check(spec: &IpPoolSpec, range: &Cidr, findings: &mut Vec<FieldError>) {
    check_size(spec, range, findings);
    check_link_local(spec, range, findings);
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
        let reason = "IP pool size is too small for use with Calico IPAM. It must be equal to or greater than the \
                      block size.";
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
        let reason = format!("IPPool CIDR overlaps with IPv{family} Link Local range {network}/{prefix}");
        findings.push(FieldError::new("IPPool.Spec.CIDR", &spec.cidr, reason));
    }
}

fn check_encapsulation(spec: &IpPoolSpec, range: &Cidr, findings: &mut Vec<FieldError>) {
    let modes = [("VXLANMode", &spec.vxlan_mode, "vxlanMode"), ("IPIPMode", &spec.ipip_mode, "ipIpMode")];
    for (name, mode, tag) in modes {
        if !matches!(mode.as_str(), NEVER | "Always" | "CrossSubnet") {
            findings.push(FieldError::tag(name, mode, tag));
        }
    }
    if spec.vxlan_mode != NEVER && spec.ipip_mode != NEVER {
        let reason = "Cannot enable both VXLAN and IPIP on the same IPPool";
        findings.push(FieldError::new("IPPool.Spec.VXLANMode", &spec.vxlan_mode, reason));
    }
    if range.version() == IpVersion::V6 && spec.ipip_mode != NEVER {
        let reason = "IPIP is not supported on an IPv6 IP pool";
        findings.push(FieldError::new("IPPool.Spec.IPIPMode", &spec.ipip_mode, reason));
    }
}

fn check_selector(name: &str, selector: &str, findings: &mut Vec<FieldError>) {
    if let Err(error) = Selector::parse(selector) {
        let mut finding = FieldError::tag(name, selector, "selector");
        finding.reason.push_str(&format!("({error})"));
        findings.push(finding);
    }
    if selector.len() > MAX_SELECTOR {
        findings.push(FieldError::new(name, selector, format!("may not be longer than {MAX_SELECTOR} characters")));
    }
    // Upstream searches the text, and so also rejects a value that only quotes the word.
    if selector.contains("global(") {
        findings.push(FieldError::new(name, selector, "global() cannot be used in the selector of an IPPool"));
    }
}

fn check_uses(spec: &IpPoolSpec, findings: &mut Vec<FieldError>) {
    let mut refuse = |field: &str, value: String, reason: &str| findings.push(FieldError::new(field, value, reason));
    let uses = &spec.allowed_uses;
    let uses_text = || format!("{uses:?}");
    if uses.iter().enumerate().any(|(i, allowed)| uses[..i].contains(allowed)) {
        refuse("IPPool.Spec.AllowedUses", uses_text(), "each use may be named once");
    }
    for unknown in uses.iter().filter(|allowed| matches!(allowed, Choice::Other(_))) {
        let reason = "not a use that is known here: Workload, Tunnel and LoadBalancer are";
        refuse("IPPool.Spec.AllowedUses", format!("{unknown:?}"), reason);
    }
    if let Some(Choice::Other(mode)) = &spec.assignment_mode {
        let reason = "not a mode that is known here: Automatic and Manual are";
        refuse("IPPool.Spec.AssignmentMode", mode.clone(), reason);
    }
    if spec.allows(AllowedUse::Tunnel) && !spec.namespace_selector.is_empty() {
        let reason = "namespaceSelector cannot be used with the allowed use Tunnel; set allowedUses to [Workload]";
        refuse("IPPool.Spec.NamespaceSelector", spec.namespace_selector.clone(), reason);
    }
    if !spec.allows(AllowedUse::LoadBalancer) {
        return;
    }
    if uses.iter().any(|u| !u.is(&AllowedUse::LoadBalancer)) {
        let reason = "LoadBalancer cannot be combined with Workload or Tunnel allowed uses";
        refuse("IPPool.Spec.AllowedUses", uses_text(), reason);
    }
    if spec.ipip_mode != NEVER || spec.vxlan_mode != NEVER {
        refuse("IPPool.Spec.AllowedUses", uses_text(), "LoadBalancer IP pool cannot have IPIP or VXLAN enabled");
    }
    if spec.disable_bgp_export {
        let reason = "LoadBalancer IP pool cannot have disableBGPExport set";
        refuse("IPPool.Spec.DisableBGPExport", spec.disable_bgp_export.to_string(), reason);
    }
    if spec.node_selector != ALL {
        let reason = "LoadBalancer IP pool must have the node selector all()";
        refuse("IPPool.Spec.NodeSelector", spec.node_selector.clone(), reason);
    }
}
