//! Encodes a result for each version of the CNI specification, byte for byte as upstream does.

use std::net::IpAddr;

use serde::Serialize;
use serde_json::{Map, Value};

use super::types::{CniResult, Dns, Interface, IpConfig, Route};
use crate::ipnet::IpNet;
use crate::printable::indented_json;
use crate::{CniError, Version};

impl CniResult {
    /// Returns the JSON for stdout in the form of `version`, without a trailing newline.
    ///
    /// Older forms carry less. Before 1.0.0, interfaces have no MTU. Before 0.3.0, there are no interfaces, and only
    /// the first address of each family with its routes.
    ///
    /// # Errors
    /// Code 999 before 0.3.0 if there is no address, because those forms cannot express that (CNI-40).
    pub fn to_json(&self, version: Version) -> Result<String, CniError> {
        match version {
            Version::V0_1_0 | Version::V0_2_0 => Ok(indented_json(&Form02::new(self, version)?)),
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => Ok(indented_json(&Form04::new(self, version))),
            Version::V1_0_0 | Version::V1_1_0 => Ok(indented_json(&sorted(&Form10::new(self, version)))),
        }
    }
}

/// Sorts the keys. From 1.0.0 on, upstream's keys are in alphabetical order at every level (CNI-38).
fn sorted(form: &Form10<'_>) -> Map<String, Value> {
    match serde_json::to_value(form) {
        Ok(Value::Object(map)) => map,
        _ => unreachable!("a struct of strings and numbers is an object"),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Form10<'a> {
    cni_version: Version,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface10<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<Ip10>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<EncodedRoute>,
    #[serde(skip_serializing_if = "EncodedDns::is_empty")]
    dns: EncodedDns<'a>,
}

#[derive(Serialize)]
struct Form04<'a> {
    #[serde(rename = "cniVersion")]
    cni_version: Version,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface04<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<Ip04>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<EncodedRoute>,
    dns: EncodedDns<'a>,
}

#[derive(Serialize)]
struct Form02<'a> {
    #[serde(rename = "cniVersion")]
    cni_version: Version,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<Ip02>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<Ip02>,
    dns: EncodedDns<'a>,
}

#[derive(Serialize)]
struct Interface10<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    mtu: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    sandbox: &'a str,
    #[serde(rename = "socketPath", skip_serializing_if = "str::is_empty")]
    socket_path: &'a str,
    #[serde(rename = "pciID", skip_serializing_if = "str::is_empty")]
    pci_id: &'a str,
}

#[derive(Serialize)]
struct Interface04<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    sandbox: &'a str,
}

#[derive(Serialize)]
struct Ip10 {
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<usize>,
    address: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

#[derive(Serialize)]
struct Ip04 {
    version: &'static str,
    #[serde(flatten)]
    ip: Ip10,
}

#[derive(Serialize)]
struct Ip02 {
    ip: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<EncodedRoute>,
}

#[derive(Serialize)]
struct EncodedRoute {
    dst: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw: Option<IpAddr>,
    #[serde(skip_serializing_if = "is_zero")]
    mtu: u32,
    #[serde(skip_serializing_if = "is_zero")]
    advmss: u32,
    #[serde(skip_serializing_if = "is_zero")]
    priority: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<u8>,
}

#[derive(Serialize)]
struct EncodedDns<'a> {
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    nameservers: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    domain: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    search: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    options: &'a [String],
}

impl<'a> Form10<'a> {
    fn new(result: &'a CniResult, cni_version: Version) -> Form10<'a> {
        Form10 {
            cni_version,
            interfaces: result.interfaces.iter().map(Interface10::new).collect(),
            ips: result.ips.iter().map(Ip10::new).collect(),
            routes: result.routes.iter().map(EncodedRoute::new).collect(),
            dns: EncodedDns::new(&result.dns),
        }
    }
}

impl<'a> Form04<'a> {
    fn new(result: &'a CniResult, cni_version: Version) -> Form04<'a> {
        let interface = |interface: &'a Interface| Interface04 {
            name: &interface.name,
            mac: &interface.mac,
            sandbox: &interface.sandbox,
        };
        let ip = |ip: &IpConfig| Ip04 { version: if ip.address.is_ipv4() { "4" } else { "6" }, ip: Ip10::new(ip) };
        Form04 {
            cni_version,
            interfaces: result.interfaces.iter().map(interface).collect(),
            ips: result.ips.iter().map(ip).collect(),
            routes: result.routes.iter().map(EncodedRoute::new).collect(),
            dns: EncodedDns::new(&result.dns),
        }
    }
}

impl<'a> Form02<'a> {
    fn new(result: &'a CniResult, cni_version: Version) -> Result<Form02<'a>, CniError> {
        let family = |ipv4: bool| {
            let first = result.ips.iter().find(|ip| ip.address.is_ipv4() == ipv4)?;
            let routes = result.routes.iter().filter(|route| route.dst.is_ipv4() == ipv4);
            let routes = routes.map(|route| EncodedRoute { gw: route.gw, ..EncodedRoute::new(&Route::to(route.dst)) });
            Some(Ip02 { ip: first.address, gateway: first.gateway, routes: routes.collect() })
        };
        let (ip4, ip6) = (family(true), family(false));
        if ip4.is_none() && ip6.is_none() {
            return Err(CniError::internal("cannot convert: no valid IP addresses").with_details(format!(
                "a result of version {cni_version} needs an address; use cniVersion 0.3.0 or later"
            )));
        }
        Ok(Form02 { cni_version, ip4, ip6, dns: EncodedDns::new(&result.dns) })
    }
}

impl<'a> Interface10<'a> {
    fn new(interface: &'a Interface) -> Interface10<'a> {
        Interface10 {
            name: &interface.name,
            mac: &interface.mac,
            mtu: interface.mtu,
            sandbox: &interface.sandbox,
            socket_path: &interface.socket_path,
            pci_id: &interface.pci_id,
        }
    }
}

impl Ip10 {
    fn new(ip: &IpConfig) -> Ip10 {
        Ip10 { interface: ip.interface, address: ip.address, gateway: ip.gateway }
    }
}

impl EncodedRoute {
    fn new(route: &Route) -> EncodedRoute {
        EncodedRoute {
            dst: route.dst,
            gw: route.gw,
            mtu: route.mtu,
            advmss: route.advmss,
            priority: route.priority,
            table: route.table,
            scope: route.scope,
        }
    }
}

impl<'a> EncodedDns<'a> {
    fn new(dns: &'a Dns) -> EncodedDns<'a> {
        EncodedDns { nameservers: &dns.nameservers, domain: &dns.domain, search: &dns.search, options: &dns.options }
    }

    fn is_empty(&self) -> bool {
        self.nameservers.is_empty() && self.domain.is_empty() && self.search.is_empty() && self.options.is_empty()
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
