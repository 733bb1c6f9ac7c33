//! Encodes a result in the form of each version of the CNI specification, byte for byte as upstream
//! does.

use std::net::IpAddr;

use serde::Serialize;

use super::types::{CniResult, Dns, Interface, IpConfig, IpNet, Route};
use crate::printable::indented_json;
use crate::{CniError, Version};

impl CniResult {
    /// Returns the JSON for stdout in the form of `version`, without a trailing newline.
    ///
    /// Older forms carry less. Before 1.0.0, interfaces have only name, hardware address and
    /// namespace. Before 0.3.0, there are no interfaces, and only the first address of each family.
    ///
    /// # Errors
    /// Code 999 if `version` is before 0.3.0 and the result has no address, because those forms
    /// require one (CNI-40).
    pub fn to_json(&self, version: Version) -> Result<String, CniError> {
        match version {
            Version::V0_1_0 | Version::V0_2_0 => Ok(indented_json(&Form02::new(self, version)?)),
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => {
                Ok(indented_json(&Form04::new(self, version)))
            }
            Version::V1_0_0 | Version::V1_1_0 => {
                let CniResult {
                    interfaces,
                    ips,
                    routes,
                    dns,
                } = self;
                let form = Form10 {
                    cni_version: version,
                    interfaces,
                    ips,
                    routes,
                    dns,
                };
                // A `Value` sorts the keys: from 1.0.0 on, upstream's keys are in alphabetical
                // order (CNI-38).
                let sorted = serde_json::to_value(form)
                    .expect("a struct of strings and numbers is an object");
                Ok(indented_json(&sorted))
            }
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Form10<'a> {
    cni_version: Version,
    #[serde(skip_serializing_if = "<[Interface]>::is_empty")]
    interfaces: &'a [Interface],
    #[serde(skip_serializing_if = "<[IpConfig]>::is_empty")]
    ips: &'a [IpConfig],
    #[serde(skip_serializing_if = "<[Route]>::is_empty")]
    routes: &'a [Route],
    #[serde(skip_serializing_if = "Dns::is_empty")]
    dns: &'a Dns,
}

#[derive(Serialize)]
struct Form04<'a> {
    #[serde(rename = "cniVersion")]
    cni_version: Version,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface04<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<Ip04<'a>>,
    #[serde(skip_serializing_if = "<[Route]>::is_empty")]
    routes: &'a [Route],
    dns: &'a Dns,
}

#[derive(Serialize)]
struct Form02<'a> {
    #[serde(rename = "cniVersion")]
    cni_version: Version,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<Ip02>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<Ip02>,
    dns: &'a Dns,
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
struct Ip04<'a> {
    version: &'static str,
    #[serde(flatten)]
    ip: &'a IpConfig,
}

#[derive(Serialize)]
struct Ip02 {
    ip: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

impl<'a> Form04<'a> {
    fn new(result: &'a CniResult, cni_version: Version) -> Form04<'a> {
        let interface =
            |Interface {
                 name, mac, sandbox, ..
             }: &'a Interface| Interface04 { name, mac, sandbox };
        let ip = |ip: &'a IpConfig| Ip04 {
            version: if ip.address.is_ipv4() { "4" } else { "6" },
            ip,
        };
        Form04 {
            cni_version,
            interfaces: result.interfaces.iter().map(interface).collect(),
            ips: result.ips.iter().map(ip).collect(),
            routes: &result.routes,
            dns: &result.dns,
        }
    }
}

impl<'a> Form02<'a> {
    fn new(result: &'a CniResult, cni_version: Version) -> Result<Form02<'a>, CniError> {
        let family = |ipv4: bool| {
            let first = result.ips.iter().find(|ip| ip.address.is_ipv4() == ipv4)?;
            let routes = result
                .routes
                .iter()
                .filter(|route| route.dst.is_ipv4() == ipv4);
            let routes = routes.map(|route| Route {
                gw: route.gw,
                ..Route::to(route.dst)
            });
            Some(Ip02 {
                ip: first.address,
                gateway: first.gateway,
                routes: routes.collect(),
            })
        };
        let (ip4, ip6) = (family(true), family(false));
        if ip4.is_none() && ip6.is_none() {
            let advice = format!(
                "a result of version {cni_version} needs an address; use cniVersion 0.3.0 or later"
            );
            return Err(
                CniError::internal("cannot convert: no valid IP addresses").with_details(advice)
            );
        }
        Ok(Form02 {
            cni_version,
            ip4,
            ip6,
            dns: &result.dns,
        })
    }
}
