//! [`ResourceKind`]: the kinds of objects in commands, with all their names.

use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResourceKind {
    IpPool,
    IpReservation,
    IpamConfiguration,
    Node,
    ClusterInformation,
}

impl ResourceKind {
    const ALL: [ResourceKind; 5] = [
        Self::IpPool,
        Self::IpReservation,
        Self::IpamConfiguration,
        Self::Node,
        Self::ClusterInformation,
    ];

    pub(super) fn name(self) -> &'static str {
        self.names().0
    }

    /// Returns the name, and other names in lower case and without a plural `s`.
    fn names(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::IpPool => ("IPPool", &["pool", "ipp"]),
            Self::IpReservation => ("IPReservation", &["reservation"]),
            Self::IpamConfiguration => ("IPAMConfiguration", &["ipamconfig", "ipamconf"]),
            Self::Node => ("Node", &["no"]),
            Self::ClusterInformation => ("ClusterInformation", &["clusterinfo"]),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnknownKind {
    #[error("WorkloadEndpoints are shown by `calico-ipam endpoints`")]
    Endpoints,
    #[error(
        "no such kind; write ippool, ipreservation, ipamconfiguration, node or clusterinformation"
    )]
    Other,
}

impl FromStr for ResourceKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let lower = text.to_ascii_lowercase();
        let singular = lower.strip_suffix('s').unwrap_or(&lower);
        let is_named = |kind: &Self| {
            let (name, others) = kind.names();
            name.eq_ignore_ascii_case(singular) || others.contains(&singular)
        };
        match Self::ALL.into_iter().find(is_named) {
            Some(kind) => Ok(kind),
            None if matches!(singular, "workloadendpoint" | "wep") => Err(UnknownKind::Endpoints),
            None => Err(UnknownKind::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_kinds_are_parsed_from_all_their_names() {
        for (kind, names) in [
            (
                ResourceKind::IpPool,
                &["IPPool", "ippools", "pool", "Pools", "ipp"][..],
            ),
            (
                ResourceKind::IpReservation,
                &["ipreservations", "reservation"],
            ),
            (
                ResourceKind::IpamConfiguration,
                &["IPAMConfigurations", "ipamconfig"],
            ),
            (ResourceKind::Node, &["node", "nodes", "no"]),
            (
                ResourceKind::ClusterInformation,
                &["clusterinformation", "clusterinfos"],
            ),
        ] {
            for name in names {
                assert_eq!(name.parse(), Ok(kind), "{name}");
            }
        }
        assert_eq!("wep".parse::<ResourceKind>(), Err(UnknownKind::Endpoints));
        for name in ["", "s", "felixconfiguration", "ippoolss"] {
            assert_eq!(
                name.parse::<ResourceKind>(),
                Err(UnknownKind::Other),
                "{name}"
            );
        }
    }
}
