//! [`moved_kinds`]: the kinds of objects that a migration copies, and the objects that control it.

use crate::kubernetes::{ApiGroup, Location, MovedKind, Resource};

/// The API group of the object that controls a migration (MIG-50).
pub const GROUP: &str = "migration.projectcalico.org";

/// The resource of the object that controls a migration.
pub const DATASTORE_MIGRATIONS: Resource = Resource {
    api_version: "migration.projectcalico.org/v1",
    kind: "DatastoreMigration",
    plural: "datastoremigrations",
    namespaced: false,
};

/// The name of the only object that controls a migration (MIG-53).
pub const MIGRATION_NAME: &str = "v1-to-v3";

/// The only value of `spec.type` of that object.
pub const MIGRATION_TYPE: &str = "APIServerToCRDs";

/// The kinds with their positions, by position and name (MIG-61).
const KINDS: [(u8, &str); 21] = [
    (10, "Tier"),
    (20, "BGPConfiguration"),
    (20, "FelixConfiguration"),
    (20, "KubeControllersConfiguration"),
    (40, "BGPFilter"),
    (40, "BGPPeer"),
    (40, "IPPool"),
    (40, "IPReservation"),
    (50, "GlobalNetworkPolicy"),
    (50, "NetworkPolicy"),
    (50, "StagedGlobalNetworkPolicy"),
    (50, "StagedKubernetesNetworkPolicy"),
    (50, "StagedNetworkPolicy"),
    (60, "GlobalNetworkSet"),
    (60, "HostEndpoint"),
    (60, "NetworkSet"),
    (100, "BlockAffinity"),
    (100, "IPAMBlock"),
    (100, "IPAMConfiguration"),
    (100, "IPAMHandle"),
    (110, "CalicoNodeStatus"),
];

/// Returns the 21 kinds in the order of the migration. ClusterInformation is not among them,
/// because a migration does not copy but locks it.
pub fn moved_kinds() -> Vec<MovedKind> {
    KINDS
        .iter()
        .filter_map(|(order, kind)| MovedKind::named(*order, kind))
        .collect()
}

/// Returns the location of the ClusterInformation of a group.
pub fn cluster_information(group: ApiGroup) -> Location {
    let resource = Resource {
        api_version: group.api_version(),
        kind: "ClusterInformation",
        plural: "clusterinformations",
        namespaced: false,
    };
    Location::global(resource, "default")
}

/// Returns the name of the CustomResourceDefinition of a resource.
pub fn definition_name(resource: &Resource) -> String {
    let group = resource.api_version.split('/').next().unwrap_or_default();
    format!("{}.{group}", resource.plural)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_kinds_are_ordered_and_complete() {
        let kinds = moved_kinds();
        assert_eq!(kinds.len(), KINDS.len());
        assert!(KINDS.is_sorted());
        assert_eq!(kinds.iter().filter(|kind| kind.is_ipam).count(), 4);
        for kind in kinds {
            assert_eq!(
                (kind.v1.api_version, kind.v3.api_version),
                ("crd.projectcalico.org/v1", "projectcalico.org/v3")
            );
            assert_eq!(kind.v1.namespaced, kind.v3.namespaced, "{}", kind.v3.kind);
            let settings = (
                "IPAMConfig",
                "ipamconfigs",
                "IPAMConfiguration",
                "ipamconfigurations",
            );
            let names = (kind.v1.kind, kind.v1.plural, kind.v3.kind, kind.v3.plural);
            assert!(
                names == settings || (names.0, names.1) == (names.2, names.3),
                "{names:?}"
            );
        }
    }

    /// Upstream's positions (MIG-61). It sorts the kinds of one position arbitrarily.
    #[test]
    fn positions_of_kinds_are_upstreams() {
        let upstream: [(u8, &[&str]); 7] = [
            (10, &["Tier"]),
            (
                20,
                &[
                    "FelixConfiguration",
                    "BGPConfiguration",
                    "KubeControllersConfiguration",
                ],
            ),
            (40, &["IPPool", "IPReservation", "BGPPeer", "BGPFilter"]),
            (
                50,
                &[
                    "GlobalNetworkPolicy",
                    "NetworkPolicy",
                    "StagedGlobalNetworkPolicy",
                    "StagedNetworkPolicy",
                    "StagedKubernetesNetworkPolicy",
                ],
            ),
            (60, &["HostEndpoint", "GlobalNetworkSet", "NetworkSet"]),
            (
                100,
                &[
                    "IPAMConfiguration",
                    "BlockAffinity",
                    "IPAMBlock",
                    "IPAMHandle",
                ],
            ),
            (110, &["CalicoNodeStatus"]),
        ];
        let mut expected: Vec<(u8, &str)> = upstream
            .iter()
            .flat_map(|(order, kinds)| kinds.iter().map(move |kind| (*order, *kind)))
            .collect();
        expected.sort_unstable();
        let kinds: Vec<(u8, &str)> = moved_kinds()
            .iter()
            .map(|kind| (kind.order, kind.v3.kind))
            .collect();
        assert_eq!(kinds, expected);
    }

    #[test]
    fn namespaced_kinds_are_upstreams() {
        let namespaced: Vec<_> = moved_kinds()
            .iter()
            .filter(|kind| kind.v3.namespaced)
            .map(|kind| kind.v3.kind)
            .collect();
        let expected = [
            "NetworkPolicy",
            "StagedKubernetesNetworkPolicy",
            "StagedNetworkPolicy",
            "NetworkSet",
        ];
        assert_eq!(namespaced, expected);
    }

    #[test]
    fn definitions_are_named_by_plural_and_group() {
        let names: Vec<_> = moved_kinds()
            .iter()
            .map(|kind| definition_name(&kind.v1))
            .collect();
        assert!(
            names.contains(&"ipamconfigs.crd.projectcalico.org".to_owned()),
            "{names:?}"
        );
        assert_eq!(
            definition_name(&DATASTORE_MIGRATIONS),
            "datastoremigrations.migration.projectcalico.org"
        );
        assert_eq!(
            DATASTORE_MIGRATIONS.api_version.split('/').next(),
            Some(GROUP)
        );
        let v3 = cluster_information(ApiGroup::V3);
        assert_eq!(
            v3.url_path(),
            "/apis/projectcalico.org/v3/clusterinformations/default"
        );
    }
}
