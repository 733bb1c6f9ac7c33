//! The IPAM plugin and its settings.

use std::net::IpAddr;

use crate::decode::{DecodeError, FromObject, Node, Object, read_fields};
use crate::result::IpNet;

/// The IPAM plugin and its settings. Keys of other IPAM plugins are passed to them unchanged,
/// except `usePodCidr` of host-local.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct Ipam {
    /// Binary of the IPAM plugin, looked up in `CNI_PATH`; `calico-ipam` runs in the plugin's own
    /// process. Read by ADD, DEL, CHECK, STATUS, GC.
    #[cfg_attr(
        feature = "schema",
        serde(rename = "type"),
        schemars(regex(pattern = r"^[^/]*$"))
    )]
    pub ipam_type: String,

    /// Not read.
    pub name: String,

    /// host-local: the subnet; `usePodCidr` and `usePodCidrIPv6` stand for the node's pod CIDRs.
    /// Read by ADD, DEL, CHECK, STATUS, GC.
    pub subnet: String,

    /// host-local: sets of subnets; `usePodCidr` and `usePodCidrIPv6` stand for the node's pod
    /// CIDRs. Read by ADD, DEL, CHECK, STATUS, GC.
    pub ranges: Vec<Vec<IpamRange>>,

    /// host-local: routes inside the container, instead of 0.0.0.0/0 and ::/0. For pods only. Read
    /// by ADD, CHECK.
    pub routes: Vec<IpamRoute>,

    /// calico-ipam: the string `"false"` requests no IPv4 address. Read by ADD, STATUS.
    #[cfg_attr(
        feature = "schema",
        serde(serialize_with = "as_word"),
        schemars(schema_with = "word_schema")
    )]
    pub assign_ipv4: bool,

    /// calico-ipam: the string `"true"` requests an IPv6 address. Read by ADD, STATUS.
    #[cfg_attr(
        feature = "schema",
        serde(serialize_with = "as_word"),
        schemars(schema_with = "word_schema")
    )]
    pub assign_ipv6: bool,

    /// calico-ipam: CIDRs or names of the pools for IPv4 addresses, in order of preference for a
    /// new block and for borrowing; default any pool. Read by ADD, STATUS.
    pub ipv4_pools: Vec<String>,

    /// calico-ipam: CIDRs or names of the pools for IPv6 addresses, in order of preference for a
    /// new block and for borrowing; default any pool. Read by ADD, STATUS.
    pub ipv6_pools: Vec<String>,
}

/// A subnet of host-local.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct IpamRange {
    /// The subnet, `usePodCidr` or `usePodCidrIPv6`. Read by ADD, DEL, CHECK, STATUS, GC.
    pub subnet: String,
}

/// A route of host-local.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct IpamRoute {
    /// The destination; a route without one is skipped. For pods only. Read by ADD, CHECK.
    #[cfg_attr(
        feature = "schema",
        serde(serialize_with = "as_text"),
        schemars(with = "Option<String>")
    )]
    pub dst: Option<IpNet>,
}

const CALICO_IPAM: &str = "calico-ipam";
/// An IPAM plugin whose configuration the main plugin reads too.
const HOST_LOCAL: &str = "host-local";

impl Ipam {
    /// Returns true if the IPAM plugin is Calico's, which runs in the plugin's own process.
    pub fn is_calico(&self) -> bool {
        self.ipam_type == CALICO_IPAM
    }

    /// Returns true if the IPAM plugin is host-local, whose settings the main plugin reads too.
    pub fn is_host_local(&self) -> bool {
        self.ipam_type == HOST_LOCAL
    }
}

impl Default for Ipam {
    fn default() -> Ipam {
        Ipam {
            ipam_type: String::new(),
            name: String::new(),
            subnet: String::new(),
            ranges: Vec::new(),
            routes: Vec::new(),
            assign_ipv4: true,
            assign_ipv6: false,
            ipv4_pools: Vec::new(),
            ipv6_pools: Vec::new(),
        }
    }
}

impl FromObject for Ipam {
    fn from_object(object: &Object<'_>) -> Result<Ipam, DecodeError> {
        let ipam_type = object
            .read_with("type", read_binary_name)?
            .unwrap_or_default();
        let is_host_local = ipam_type == HOST_LOCAL;
        Ok(Ipam {
            name: object.read_or_default("name")?,
            subnet: object.read_or_default("subnet")?,
            // Another IPAM plugin may use `ranges` and `routes` differently.
            ranges: if is_host_local {
                object.read_or_default("ranges")?
            } else {
                Vec::new()
            },
            routes: if is_host_local {
                object.read_or_default("routes")?
            } else {
                Vec::new()
            },
            assign_ipv4: read_true_or_false(object, "assign_ipv4")?.unwrap_or(true),
            assign_ipv6: read_true_or_false(object, "assign_ipv6")?.unwrap_or(false),
            ipv4_pools: read_pools(object, "ipv4_pools", IpAddr::is_ipv4)?,
            ipv6_pools: read_pools(object, "ipv6_pools", IpAddr::is_ipv6)?,
            ipam_type,
        })
    }
}

read_fields!(IpamRange { subnet });

impl FromObject for IpamRoute {
    fn from_object(object: &Object<'_>) -> Result<IpamRoute, DecodeError> {
        Ok(IpamRoute {
            dst: object.read("dst")?,
        })
    }
}

fn read_binary_name(node: &Node<'_>) -> Result<String, DecodeError> {
    const WANT: &str = "the name of a binary, without '/'";
    match node.text(WANT)? {
        name if name.contains('/') => Err(node.bad_value(WANT)),
        name => Ok(name.to_owned()),
    }
}

/// Reads the string `"true"` or `"false"`, which upstream requires instead of a Boolean. Upstream
/// accepts any string, and all but one of them select the default (IPAM-13).
fn read_true_or_false(object: &Object<'_>, key: &str) -> Result<Option<bool>, DecodeError> {
    object.read_word(key, &[("true", true), ("false", false)], false)
}

/// Reads a list of pools. An entry with a `/` cannot be a pool's name, so it must be a CIDR of the
/// family. Upstream detects an invalid entry only after it has listed the pools (IPAM-34).
fn read_pools(
    object: &Object<'_>,
    key: &str,
    is_family: fn(&IpAddr) -> bool,
) -> Result<Vec<String>, DecodeError> {
    let want = if key == "ipv4_pools" {
        "an IPv4 CIDR or the name of a pool"
    } else {
        "an IPv6 CIDR or the name of a pool"
    };
    let pool = |node: &Node<'_>| match node.text(want)? {
        "" => Err(node.bad_value(want)),
        text if !text.contains('/') => Ok(text.to_owned()),
        text => match text.parse::<IpNet>() {
            Ok(cidr) if is_family(&cidr.addr()) => Ok(text.to_owned()),
            _ => Err(node.bad_value(want)),
        },
    };
    Ok(object
        .read_with(key, |node| node.items(pool))?
        .unwrap_or_default())
}

#[cfg(feature = "schema")]
fn as_word<S: serde::Serializer>(value: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(feature = "schema")]
fn word_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["true", "false"] })
}

#[cfg(feature = "schema")]
fn as_text<S: serde::Serializer>(value: &Option<IpNet>, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::Serialize;

    value.map(|net| net.to_string()).serialize(serializer)
}
