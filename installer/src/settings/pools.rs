//! The pools to create on request. The variables are those of calico-node (INST-62).

use libcalico::api::IpPoolSpec;
use libcalico::net::{Cidr, IpVersion};

use crate::environment::{Environment, SettingsError};

/// The request for the first pool of a family.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolRequest {
    /// The name of the pool, which is the same as in calico-node.
    pub name: &'static str,
    /// The specification of the pool.
    pub spec: IpPoolSpec,
}

// The specification contains no floating-point number, so each value equals itself.
impl Eq for PoolRequest {}

impl PoolRequest {
    /// Returns the requested pools: those whose range is set, unless `NO_DEFAULT_POOLS` is `true`.
    pub(super) fn from_environment(environment: &Environment<'_>) -> Result<Vec<PoolRequest>, SettingsError> {
        if environment.some("NO_DEFAULT_POOLS").is_some_and(|said| said == "true") {
            return Ok(Vec::new());
        }
        let ipv4 = Family {
            version: IpVersion::V4,
            pool: "default-ipv4-ippool",
            cidr: "CALICO_IPV4POOL_CIDR",
            block_size: "CALICO_IPV4POOL_BLOCK_SIZE",
            ipip: Some("CALICO_IPV4POOL_IPIP"),
            vxlan: "CALICO_IPV4POOL_VXLAN",
            nat: "CALICO_IPV4POOL_NAT_OUTGOING",
            selector: "CALICO_IPV4POOL_NODE_SELECTOR",
        };
        let ipv6 = Family {
            version: IpVersion::V6,
            pool: "default-ipv6-ippool",
            cidr: "CALICO_IPV6POOL_CIDR",
            block_size: "CALICO_IPV6POOL_BLOCK_SIZE",
            ipip: None,
            vxlan: "CALICO_IPV6POOL_VXLAN",
            nat: "CALICO_IPV6POOL_NAT_OUTGOING",
            selector: "CALICO_IPV6POOL_NODE_SELECTOR",
        };
        let requests = [ipv4, ipv6].into_iter().map(|family| family.read(environment));
        requests.filter_map(Result::transpose).collect()
    }
}

/// The variables of a family.
struct Family {
    version: IpVersion,
    pool: &'static str,
    cidr: &'static str,
    block_size: &'static str,
    ipip: Option<&'static str>,
    vxlan: &'static str,
    nat: &'static str,
    selector: &'static str,
}

impl Family {
    fn read(&self, environment: &Environment<'_>) -> Result<Option<PoolRequest>, SettingsError> {
        let Some(found) = environment.some(self.cidr).filter(|cidr| cidr != "none") else { return Ok(None) };
        let range = found.parse::<Cidr>().ok().filter(|range| range.version() == self.version);
        let wanted = match self.version {
            IpVersion::V4 => "an IPv4 range like 10.65.0.0/16, or none",
            IpVersion::V6 => "an IPv6 range like fd65::/64, or none",
        };
        let range = range.ok_or(SettingsError::Value { name: self.cidr, found, wanted })?;
        let block_size = environment.some(self.block_size).map(|found| {
            let wanted = "a prefix length, 20 to 32 for IPv4, 116 to 128 for IPv6";
            found.parse().map_err(|_| SettingsError::Value { name: self.block_size, found, wanted })
        });
        let spec = IpPoolSpec {
            cidr: range.to_string(),
            block_size: block_size.transpose()?,
            ipip_mode: self.ipip.map(|name| encapsulation(environment, name)).transpose()?.unwrap_or_default(),
            vxlan_mode: encapsulation(environment, self.vxlan)?,
            nat_outgoing: environment.truth(self.nat)?.unwrap_or(self.version == IpVersion::V4),
            node_selector: environment.some(self.selector).unwrap_or_default(),
            ..IpPoolSpec::default()
        };
        Ok(Some(PoolRequest { name: self.pool, spec }))
    }
}

/// Returns the mode of an encapsulation, by default Never: the installer does not install the programs that encapsulate
/// packets.
fn encapsulation(environment: &Environment<'_>, name: &'static str) -> Result<String, SettingsError> {
    let found = environment.text(name, "");
    let mode = match found.to_ascii_lowercase().as_str() {
        "" | "never" | "off" => "Never",
        "always" => "Always",
        "crosssubnet" | "cross-subnet" => "CrossSubnet",
        _ => return Err(SettingsError::Value { name, found, wanted: "Never, Always or CrossSubnet" }),
    };
    Ok(mode.to_owned())
}
