//! Decodes results of every version of the CNI specification into the 1.1.0 form.

use super::types::{CniResult, Dns, Interface, IpConfig, IpNet, Route};
use crate::decode::{self, DecodeError, FromNode, FromObject, Node, Object, read_fields};
use crate::{CniError, Code, Version};

impl CniResult {
    /// Decodes the result that a delegated plugin printed. `assumed` is the version of a result
    /// without `cniVersion`; callers pass the configuration's version.
    ///
    /// # Errors
    /// Code 6 if the result is not JSON or has a value of the wrong type, and code 7 if a value is
    /// missing or not allowed.
    pub fn parse(stdout: &[u8], assumed: Version) -> Result<CniResult, CniError> {
        const CONTEXT: &str = "cannot read the result of the delegated plugin";
        let value = decode::parse(stdout)
            .map_err(|e| CniError::new(Code::DECODE, format!("{CONTEXT}: {e}")))?;
        if value.is_null() {
            return Ok(CniResult::default());
        }
        CniResult::from_node(&Node::root("$", &value), assumed)
            .map_err(|error| error.with_context(CONTEXT))
    }

    /// Reads the result at `node` in the version of its own `cniVersion`, or in `assumed` without
    /// one.
    pub(crate) fn from_node(node: &Node<'_>, assumed: Version) -> Result<CniResult, DecodeError> {
        let object = node.object()?;
        let words = Version::ALL.map(|version| (version.as_str(), version));
        match object
            .read_word("cniVersion", &words, false)?
            .unwrap_or(assumed)
        {
            Version::V0_1_0 | Version::V0_2_0 => from_02(&object),
            Version::V0_3_0
            | Version::V0_3_1
            | Version::V0_4_0
            | Version::V1_0_0
            | Version::V1_1_0 => from_03(&object),
        }
    }
}

/// Reads the forms from 0.3.0 on.
fn from_03(object: &Object<'_>) -> Result<CniResult, DecodeError> {
    let interfaces: Vec<Interface> = object.read_or_default("interfaces")?;
    let ip = |node: &Node<'_>| IpConfig::from_node(node, interfaces.len());
    Ok(CniResult {
        ips: object
            .read_with("ips", |node| node.items(ip))?
            .unwrap_or_default(),
        routes: object.read_or_default("routes")?,
        dns: object.read_or_default("dns")?,
        interfaces,
    })
}

fn from_02(object: &Object<'_>) -> Result<CniResult, DecodeError> {
    let families = [
        object.read_with("ip4", read_family)?,
        object.read_with("ip6", read_family)?,
    ];
    let mut result = CniResult {
        dns: object.read_or_default("dns")?,
        ..CniResult::default()
    };
    for (ip, routes) in families.into_iter().flatten() {
        result.ips.push(ip);
        result.routes.extend(routes);
    }
    Ok(result)
}

/// Reads the address in `ip4` or `ip6`, with the routes of that family.
fn read_family(node: &Node<'_>) -> Result<(IpConfig, Vec<Route>), DecodeError> {
    let object = node.object()?;
    let address = object.require("ip", IpNet::WANT)?;
    let ip = IpConfig {
        interface: None,
        address,
        gateway: object.read("gateway")?,
    };
    Ok((ip, object.read_or_default("routes")?))
}

read_fields!(Interface {
    name,
    mac,
    mtu,
    sandbox,
    socket_path: "socketPath",
    pci_id: "pciID"
});

impl IpConfig {
    /// The `interface` of the address may be absent, and must otherwise be an index below
    /// `interfaces`.
    fn from_node(node: &Node<'_>, interfaces: usize) -> Result<IpConfig, DecodeError> {
        let object = node.object()?;
        let index = |node: &Node<'_>| match node.integer(0..=u32::MAX)? as usize {
            index if index < interfaces => Ok(index),
            _ => Err(node.bad_value(&format!("an index into the {interfaces} interfaces"))),
        };
        Ok(IpConfig {
            interface: object.read_with("interface", index)?,
            address: object.require("address", IpNet::WANT)?,
            gateway: object.read("gateway")?,
        })
    }
}

impl FromObject for Route {
    fn from_object(object: &Object<'_>) -> Result<Route, DecodeError> {
        Ok(Route {
            dst: object.require("dst", IpNet::WANT)?,
            gw: object.read("gw")?,
            mtu: object.read_or_default("mtu")?,
            advmss: object.read_or_default("advmss")?,
            priority: object.read_or_default("priority")?,
            table: object.read("table")?,
            scope: object.read_with("scope", |node| node.integer(0..=u8::MAX))?,
        })
    }
}

read_fields!(Dns {
    nameservers,
    domain,
    search,
    options
});

impl FromNode for IpNet {
    fn from_node(node: &Node<'_>) -> Result<IpNet, DecodeError> {
        node.text(IpNet::WANT)?
            .parse()
            .map_err(|_| node.bad_value(IpNet::WANT))
    }
}
