//! docs/security/token.md has a row for each right of each account.

use std::collections::BTreeSet;
use std::fs;

use integration_tests::kubernetes::Role;
use integration_tests::manifests::deploy;

/// Rights of the Roles in `kube-system`.
const IN_KUBE_SYSTEM: [&str; 4] = [
    "create serviceaccounts/token",
    "create leases",
    "get leases",
    "update leases",
];

/// Returns the rights in the first column of a table, which has the form: `get` pods, nodes; `list`
/// pods.
fn rights(section: &str) -> BTreeSet<String> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows
        .filter_map(|row| row.split(" | ").next())
        .map(|cell| cell.trim_start_matches("| "));
    let mut rights = BTreeSet::new();
    for part in cells.flat_map(|cell| cell.split("; ")) {
        let words: Vec<&str> = part.split('`').map(str::trim).collect();
        let resources = words.last().unwrap().split(", ");
        let verbs = || {
            words[1..words.len() - 1]
                .iter()
                .filter(|word| !matches!(**word, "" | ","))
        };
        rights.extend(
            resources.flat_map(|resource| verbs().map(move |verb| format!("{verb} {resource}"))),
        );
    }
    rights
}

#[test]
fn token_page_has_a_row_for_each_right_of_each_account() {
    let text = fs::read_to_string(deploy("../docs/security/token.md")).unwrap();
    for (heading, manifests) in [
        (
            "\n## `calico-cni-plugin`\n",
            vec![deploy("rbac/calico-cni-plugin.yaml")],
        ),
        ("\n## `calico-cni`\n", vec![deploy("rbac/calico-cni.yaml")]),
        (
            "\n## `calico-kube-controllers`\n",
            Role::manifests_of_controllers().into(),
        ),
        (
            "\n## `calico-kube-controllers` with etcd\n",
            vec![deploy("rbac/etcd/calico-kube-controllers.yaml")],
        ),
    ] {
        let (_, section) = text
            .split_once(heading)
            .unwrap_or_else(|| panic!("no {heading}"));
        let section = section.split("\n#").next().unwrap();
        let role = Role::of_manifests(&manifests).unwrap();
        let granted: BTreeSet<String> = role
            .0
            .iter()
            .map(|one| format!("{} {}", one.verb, one.resource))
            .collect();
        let mut documented = rights(section);
        documented.retain(|right| !IN_KUBE_SYSTEM.contains(&right.as_str()));
        assert_eq!(documented, granted, "{heading}");
    }
}

#[test]
fn row_with_several_verbs_and_resources_is_every_combination() {
    let found = rights("| `get`, `list` pods, nodes; `patch` pods/status | SEC-1 |\n|---|---|\n");
    let expected = [
        "get nodes",
        "get pods",
        "list nodes",
        "list pods",
        "patch pods/status",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
}
