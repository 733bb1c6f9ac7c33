//! The kinds that describe the network: IPPool, IPReservation and HostEndpoint.

use serde_json::{Value, json};

use super::custom_resource::{CustomResource, Field};
use crate::api::{HostEndpointSpec, IpPoolSpec, IpReservationSpec};
use crate::kubernetes::ApiGroup;

pub(super) fn pool(group: ApiGroup) -> Value {
    let condition = ".status.conditions[?(@.type=='Allocatable')].status";
    CustomResource::new::<IpPoolSpec>(
        group,
        "IPPool",
        "ippools",
        "A range from which addresses are assigned.",
    )
    .column("CIDR", "string", ".spec.cidr", "The range")
    .column("VXLAN", "string", ".spec.vxlanMode", "VXLAN between nodes")
    .column("IPIP", "string", ".spec.ipipMode", "IPIP between nodes")
    .column(
        "NAT",
        "boolean",
        ".spec.natOutgoing",
        "Whether traffic that leaves the pools is masqueraded",
    )
    .column(
        "Allocatable",
        "string",
        condition,
        "Whether addresses are assigned from the pool",
    )
    .column(
        "Age",
        "date",
        ".metadata.creationTimestamp",
        "Age of the pool",
    )
    .conditions()
    .spec(|spec| {
        spec.required(&["cidr"]);
        spec.at("allowedUses").set("x-kubernetes-list-type", "set");
        spec.at("assignmentMode").default("Automatic");
        range(&mut spec.at("cidr"));
        spec.at("blockSize")
            .rule("self == oldSelf", "blockSize must not change");
        block_size(spec);
        encapsulation(spec);
        selectors(spec);
        load_balancer(spec);
    })
    .definition
}

/// Adds the rules for `cidr`, which the API server evaluates only for a valid CIDR.
fn range(cidr: &mut Field<'_>) {
    let overlaps = |other: &str| {
        format!("cidr(self).containsCIDR('{other}') || cidr('{other}').containsCIDR(self)")
    };
    cidr.rule("self == oldSelf", "cidr must not change").rule(
        "cidr(self) == cidr(self).masked()",
        "cidr must have no bits set to the right of its prefix",
    );
    for other in ["169.254.0.0/16", "fe80::/10"] {
        let rule = format!("!({})", overlaps(other));
        cidr.rule(
            &rule,
            &format!("cidr must not overlap the link-local addresses {other}"),
        );
    }
}

/// Adds the rules for `blockSize`, where 0 counts as missing.
fn block_size(spec: &mut Field<'_>) {
    let none = "!has(self.blockSize) || self.blockSize == 0";
    let limits = "(cidr(self.cidr).ip().family() == 4 ? self.blockSize >= 20 && self.blockSize <= \
                  32 : self.blockSize >= 116 && self.blockSize <= 128)";
    let fits =
        "(has(self.disabled) && self.disabled) || cidr(self.cidr).prefixLength() <= self.blockSize";
    spec.rule(
        &format!("{none} || {limits}"),
        "blockSize must be 20 to 32 in IPv4 pools, 116 to 128 in IPv6 pools",
    )
    .rule(
        &format!("{none} || {fits}"),
        "blockSize must not be less than the prefix length of cidr",
    );
}

const IPIP: &str = "(has(self.ipipMode) && self.ipipMode != 'Never')";
const VXLAN: &str = "(has(self.vxlanMode) && self.vxlanMode != 'Never')";

fn encapsulation(spec: &mut Field<'_>) {
    spec.rule(
        &format!("!({IPIP} && {VXLAN})"),
        "ipipMode and vxlanMode must not both be on",
    )
    .rule(
        &format!("!{IPIP} || cidr(self.cidr).ip().family() == 4"),
        "ipipMode must be Never in IPv6 pools",
    );
}

fn selectors(spec: &mut Field<'_>) {
    spec.at("nodeSelector").default("all()");
    for name in ["nodeSelector", "namespaceSelector"] {
        spec.at(name).rule(
            "!self.contains('global(')",
            &format!("{name} must not use global()"),
        );
    }
    spec.rule(
        "!has(self.namespaceSelector) || self.namespaceSelector == '' || !has(self.allowedUses) || \
         !('Tunnel' in self.allowedUses)",
        "namespaceSelector must be empty in a pool for Tunnel",
    );
}

fn load_balancer(spec: &mut Field<'_>) {
    let mut rule = |condition: &str, message: &str| {
        let cel = format!(
            "!(has(self.allowedUses) && 'LoadBalancer' in self.allowedUses) || {condition}"
        );
        spec.rule(&cel, message);
    };
    rule(
        "self.allowedUses.size() == 1",
        "a pool for LoadBalancer must have no other allowedUses",
    );
    rule(
        &format!("!({IPIP} || {VXLAN})"),
        "a pool for LoadBalancer must have neither ipipMode nor vxlanMode",
    );
    rule(
        "!has(self.disableBGPExport) || !self.disableBGPExport",
        "a pool for LoadBalancer must be exported over BGP",
    );
    rule(
        "(has(self.nodeSelector) && self.nodeSelector == 'all()')",
        "a pool for LoadBalancer must be for all() nodes",
    );
}

/// Returns the definition. Its entries must be CIDRs, although readers also accept single addresses
/// (DS-96).
pub(super) fn reservation(group: ApiGroup) -> Value {
    let about =
        "Ranges from which no address is assigned automatically. Addresses in use stay in use.";
    CustomResource::new::<IpReservationSpec>(group, "IPReservation", "ipreservations", about)
        .spec(|spec| {
            spec.at("reservedCIDRs")
                .set("x-kubernetes-list-type", "set")
                .each()
                .set("format", "cidr");
        })
        .definition
}

pub(super) fn host_endpoint(group: ApiGroup) -> Value {
    let about = "An interface of a host, which policies may select.";
    CustomResource::new::<HostEndpointSpec>(group, "HostEndpoint", "hostendpoints", about)
        .column("Node", "string", ".spec.node", "The host")
        .column(
            "Interface",
            "string",
            ".spec.interfaceName",
            "The interface",
        )
        .spec(|spec| {
            spec.at("expectedIPs").set("x-kubernetes-list-type", "set");
            spec.at("profiles").set("x-kubernetes-list-type", "set");
            let mut ports = spec.at("ports");
            let mut port = ports.each();
            port.required(&["name", "port", "protocol"]);
            port.at("protocol").set(
                "anyOf",
                json!([{ "type": "integer" }, { "type": "string" }]),
            );
            spec.rule("has(self.node) && self.node != ''", "node must be set")
                .rule(
                    "has(self.interfaceName) && self.interfaceName != '' || has(self.expectedIPs) \
                     && self.expectedIPs.size() > 0",
                    "interfaceName or expectedIPs must be set",
                );
        })
        .definition
}
