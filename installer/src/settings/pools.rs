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
        let requests = [IpVersion::V4, IpVersion::V6].map(|version| PoolRequest::of_family(version, environment));
        requests.into_iter().filter_map(Result::transpose).collect()
    }

    /// Returns the pool that the variables of a family request: `CALICO_IPV4POOL_CIDR`, or `CALICO_IPV6POOL_CIDR`, and
    /// the variables beside it.
    fn of_family(version: IpVersion, environment: &Environment<'_>) -> Result<Option<PoolRequest>, SettingsError> {
        let (name, prefix, wanted) = match version {
            IpVersion::V4 => ("default-ipv4-ippool", "CALICO_IPV4POOL", "an IPv4 range like 10.65.0.0/16, or none"),
            IpVersion::V6 => ("default-ipv6-ippool", "CALICO_IPV6POOL", "an IPv6 range like fd65::/64, or none"),
        };
        let variable = |property: &str| format!("{prefix}_{property}");
        let (cidr, block_size) = (variable("CIDR"), variable("BLOCK_SIZE"));
        let Some(found) = environment.some(&cidr).filter(|range| range != "none") else { return Ok(None) };
        let range = found.parse::<Cidr>().ok().filter(|range| range.version() == version);
        let range = range.ok_or(SettingsError::Value { name: cidr, found, wanted })?;
        let block_size = environment.some(&block_size).map(|found| {
            let wanted = "a prefix length, 20 to 32 for IPv4, 116 to 128 for IPv6";
            found.parse().map_err(|_| SettingsError::Value { name: block_size, found, wanted })
        });
        let spec = IpPoolSpec {
            cidr: range.to_string(),
            block_size: block_size.transpose()?,
            ipip_mode: match version {
                IpVersion::V4 => encapsulation(environment, variable("IPIP"))?,
                IpVersion::V6 => String::new(),
            },
            vxlan_mode: encapsulation(environment, variable("VXLAN"))?,
            nat_outgoing: environment.truth(&variable("NAT_OUTGOING"))?.unwrap_or(version == IpVersion::V4),
            node_selector: environment.some(&variable("NODE_SELECTOR")).unwrap_or_default(),
            ..IpPoolSpec::default()
        };
        Ok(Some(PoolRequest { name, spec }))
    }
}

/// Returns the mode of an encapsulation, by default Never: the installer does not install the programs that encapsulate
/// packets.
fn encapsulation(environment: &Environment<'_>, name: String) -> Result<String, SettingsError> {
    let found = environment.text(&name, "");
    let mode = match found.to_ascii_lowercase().as_str() {
        "" | "never" | "off" => "Never",
        "always" => "Always",
        "crosssubnet" | "cross-subnet" => "CrossSubnet",
        _ => return Err(SettingsError::Value { name, found, wanted: "Never, Always or CrossSubnet" }),
    };
    Ok(mode.to_owned())
}
