//! Replaces `usePodCidr` and `usePodCidrIPv6` in a host-local configuration before the plugin runs:
//! for an ADD by the pod CIDRs of the node, for every other verb by subnets that contain every
//! address.

use std::borrow::Cow;

use libcalico::kubernetes::{PodCidrError, PodCidrs};
use libcalico::net::IpVersion;
use netconf::conf::Ipam;
use netconf::rewrite::RawObject;
use netconf::{Call, CniError};

/// The values for the placeholders `usePodCidr` and `usePodCidrIPv6`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCidrSubnets {
    v4: String,
    v6: String,
}

/// Returns the family that a placeholder stands for; `None` for any other text.
fn family(subnet: &str) -> Option<IpVersion> {
    match subnet {
        text if text.eq_ignore_ascii_case("usePodCidr") => Some(IpVersion::V4),
        text if text.eq_ignore_ascii_case("usePodCidrIPv6") => Some(IpVersion::V6),
        _ => None,
    }
}

fn families(ipam: &Ipam) -> impl Iterator<Item = IpVersion> {
    let ranges = ipam.ranges.iter().flatten().map(|range| &range.subnet);
    let subnets = ranges
        .chain([&ipam.subnet])
        .filter(|_| ipam.is_host_local());
    subnets.filter_map(|subnet| family(subnet))
}

/// Returns true if `ipam` is of host-local and contains a placeholder.
pub fn is_required(ipam: &Ipam) -> bool {
    families(ipam).next().is_some()
}

impl PodCidrSubnets {
    /// Returns the pod CIDRs of the node. Fails if the node has no CIDR of a family for which
    /// `ipam` has a placeholder.
    pub fn of_node(ipam: &Ipam, cidrs: &PodCidrs) -> Result<Self, PodCidrError> {
        families(ipam).try_for_each(|version| cidrs.of_family(version).map(drop))?;
        let text = |version| {
            cidrs
                .of_family(version)
                .map(|cidr| cidr.to_string())
                .unwrap_or_default()
        };
        Ok(PodCidrSubnets {
            v4: text(IpVersion::V4),
            v6: text(IpVersion::V6),
        })
    }

    /// Returns subnets that contain every address, for the verbs except ADD: host-local finds the
    /// addresses of a container by its ID (CNI-205).
    pub fn any() -> Self {
        PodCidrSubnets {
            v4: "0.0.0.0/0".into(),
            v6: "::/0".into(),
        }
    }

    /// Returns the configuration with the placeholders replaced, or the original text unless
    /// [`is_required`].
    pub fn substitute<'c>(&self, call: &'c Call) -> Result<Cow<'c, [u8]>, CniError> {
        if !is_required(&call.conf.ipam) {
            return Ok(Cow::Borrowed(&call.raw));
        }
        let substituted = call.rewritten(|conf| {
            conf.change("ipam", |ipam| {
                self.substitute_subnet(ipam)?;
                let Some(ranges) = ipam.get("ranges") else {
                    return Ok(());
                };
                let mut ranges: Option<Vec<Option<Vec<RawObject>>>> =
                    serde_json::from_str(ranges.get())?;
                for range in ranges.iter_mut().flatten().flatten().flatten() {
                    self.substitute_subnet(range)?;
                }
                ipam.set("ranges", &ranges)
            })
        });
        substituted.map(Cow::Owned)
    }

    fn substitute_subnet(&self, object: &mut RawObject) -> serde_json::Result<()> {
        let subnet = object
            .get("subnet")
            .and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        match subnet.as_deref().and_then(family) {
            Some(IpVersion::V4) => object.set("subnet", &self.v4),
            Some(IpVersion::V6) => object.set("subnet", &self.v6),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;
    use netconf::NetConf;
    use serde_json::json;

    use super::*;

    const NODE: [&str; 2] = ["10.244.7.0/24", "fd00:244:7::/64"];

    fn cidrs(listed: &[&str]) -> PodCidrs {
        let node = json!({ "metadata": { "name": "n1" }, "status": { "podCIDRs": listed } });
        PodCidrs::of(&serde_json::from_value(node).unwrap()).unwrap()
    }

    fn call(ipam: &str) -> Call {
        let stdin = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"calico","ipam":{ipam}}}"#);
        let environment = |name: &str| {
            Some(match name {
                "CNI_COMMAND" => "ADD".into(),
                "CNI_CONTAINERID" => "c1".into(),
                "CNI_NETNS" => "/n".into(),
                "CNI_IFNAME" => "eth0".into(),
                "CNI_PATH" => "/p".into(),
                _ => return None,
            })
        };
        netconf::read_call(Variables::new(&environment), || Ok(stdin.into_bytes())).unwrap()
    }

    fn substituted(ipam: &str) -> String {
        let call = call(ipam);
        let subnets = PodCidrSubnets::of_node(&call.conf.ipam, &cidrs(&NODE)).unwrap();
        let stdin = String::from_utf8(subnets.substitute(&call).unwrap().into_owned()).unwrap();
        stdin
            .split_once(r#""ipam":"#)
            .unwrap()
            .1
            .strip_suffix('}')
            .unwrap()
            .to_owned()
    }

    #[test]
    fn use_pod_cidr_is_substituted_in_every_form_and_place() {
        for (given, expected) in [
            (
                r#"{"type":"host-local","subnet":"usePodCidr"}"#,
                r#"{"type":"host-local","subnet":"10.244.7.0/24"}"#,
            ),
            (
                r#"{"type":"host-local","subnet":"USEPODCIDRIPV6"}"#,
                r#"{"type":"host-local","subnet":"fd00:244:7::/64"}"#,
            ),
            (
                r#"{"type":"host-local","ranges":[[{"subnet":"usepodcidr","gateway":"10.244.7.9"}],[{"subnet":"usePodCidrIPv6"}]],"n":1.50}"#,
                r#"{"type":"host-local","ranges":[[{"subnet":"10.244.7.0/24","gateway":"10.244.7.9"}],[{"subnet":"fd00:244:7::/64"}]],"n":1.50}"#,
            ),
            (
                r#"{"type":"host-local","subnet":"10.9.0.0/16","ranges":[[{"subnet":"10.8.0.0/24"},{"subnet":"usePodCidr"}],[{}]]}"#,
                r#"{"type":"host-local","subnet":"10.9.0.0/16","ranges":[[{"subnet":"10.8.0.0/24"},{"subnet":"10.244.7.0/24"}],[{}]]}"#,
            ),
        ] {
            assert_eq!(substituted(given), expected);
        }
    }

    #[test]
    fn ipam_without_use_pod_cidr_is_passed_unchanged() {
        for ipam in [
            r#"{ "type": "host-local", "subnet": "10.8.0.0/24" }"#,
            r#"{ "type": "other-ipam", "subnet": "usePodCidr" }"#,
        ] {
            let call = call(ipam);
            assert!(!is_required(&call.conf.ipam), "{ipam}");
            assert!(
                matches!(
                    PodCidrSubnets::any().substitute(&call),
                    Ok(Cow::Borrowed(raw)) if raw == call.raw,
                ),
                "{ipam}"
            );
        }
    }

    #[test]
    fn missing_pod_cidr_family_is_an_error_only_if_requested() {
        let conf =
            |ipam| NetConf::parse(format!(r#"{{"name":"n","ipam":{ipam}}}"#).as_bytes()).unwrap();
        let v6 = conf(r#"{"type":"host-local","ranges":[[{"subnet":"usePodCidrIPv6"}]]}"#);
        let error = PodCidrSubnets::of_node(&v6.ipam, &cidrs(&NODE[..1])).unwrap_err();
        assert_eq!(error.to_string(), "no IPv6 podCIDR for node n1");
        let v4 = conf(r#"{"type":"host-local","subnet":"usePodCidr"}"#);
        PodCidrSubnets::of_node(&v4.ipam, &cidrs(&NODE[..1])).unwrap();
    }
}
