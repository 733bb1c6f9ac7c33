//! The keys in the etcd of a control plane: those that are restored after a test, and those whose
//! change makes the control plane unusable for other tests.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::etcd::Etcd;

/// Keys that the API server writes by itself at any time, and beginnings of such keys. They are not
/// compared.
const OF_SERVER: [&str; 9] = [
    "/registry/apiregistration.k8s.io/",
    "/registry/configmaps/kube-system/extension-apiserver-authentication",
    "/registry/configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
    "/registry/ipaddresses/10.96.0.1",
    "/registry/leases/kube-system/apiserver-",
    "/registry/peerserverleases/",
    "/registry/ranges/",
    "/registry/servicecidrs/",
    "/registry/services/specs/default/kubernetes",
];

/// Keys whose values contain a status that the API server writes at any time.
const WITH_STATUS: [&str; 2] = [
    "/registry/flowschemas/",
    "/registry/prioritylevelconfigurations/",
];

/// Keys of the definitions, which [`Kinds`](super::kinds::Kinds) restores.
const DEFINITIONS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";

/// Keys of policies of admission.
const POLICIES: &str = "/registry/validatingadmissionpolicies/";

/// Keys that the authorizer reads.
const RIGHTS: [&str; 4] = [
    "/registry/clusterrolebindings/",
    "/registry/clusterroles/",
    "/registry/rolebindings/",
    "/registry/roles/",
];

/// Keys that tests change or delete, and get their former values again.
const RESTORED: [&str; 6] = [
    RIGHTS[0],
    RIGHTS[1],
    RIGHTS[2],
    RIGHTS[3],
    "/registry/minions/",
    "/registry/namespaces/",
];

/// Keys that tests create, beside those of [`RESTORED`]. They are deleted unless the preparation has
/// created them.
const OF_TESTS: [&str; 21] = [
    "/calico/",
    "/registry/configmaps/",
    "/registry/controllerrevisions/",
    "/registry/crd.projectcalico.org/",
    "/registry/daemonsets/",
    "/registry/deployments/",
    "/registry/endpointslices/",
    "/registry/events/",
    "/registry/ipaddresses/",
    "/registry/kubevirt.io/",
    "/registry/leases/",
    "/registry/migration.projectcalico.org/",
    "/registry/networkpolicies/",
    "/registry/poddisruptionbudgets/",
    "/registry/pods/",
    "/registry/projectcalico.org/",
    "/registry/replicasets/",
    "/registry/secrets/",
    "/registry/serviceaccounts/",
    "/registry/services/endpoints/",
    "/registry/services/specs/",
];

/// The content of an etcd.
pub(super) struct Content {
    /// The revision of the last write of each key, or 0 if the key is one of [`WITH_STATUS`].
    revisions: BTreeMap<String, u64>,
    /// The values of the keys [`RESTORED`].
    restored: BTreeMap<String, Vec<u8>>,
}

/// The parts of the content that a test had changed.
pub(super) struct Changed {
    /// Whether to wait for the authorizer.
    pub(super) rights: bool,
    /// Whether to restore definitions.
    pub(super) definitions: bool,
}

impl Content {
    pub(super) fn read(etcd: &Etcd) -> Result<Content> {
        let mut revisions = etcd.revisions("/")?;
        revisions.retain(|key, _| !is_listed(key, &OF_SERVER) && !is_listed(key, &RESTORED));
        for (key, revision) in &mut revisions {
            if is_listed(key, &WITH_STATUS) {
                *revision = 0;
            }
        }
        let mut restored = BTreeMap::new();
        for prefix in RESTORED {
            restored.extend(etcd.dump_below(prefix)?);
        }
        Ok(Content {
            revisions,
            restored,
        })
    }

    /// Deletes the keys that tests create, and restores those that tests change.
    pub(super) fn restore(&self, etcd: &Etcd) -> Result<Changed> {
        let present = Content::read(etcd)?;
        let is_new =
            |key: &&String| !self.revisions.contains_key(*key) && !self.restored.contains_key(*key);
        let new = present
            .revisions
            .keys()
            .chain(present.restored.keys())
            .filter(is_new);
        let is_of_tests = |key: &&String| is_listed(key, &OF_TESTS) || is_listed(key, &RESTORED);
        let mut rights = false;
        // In reverse order, because the API server may create the IPAddress of a remaining Service
        // again.
        for key in new.filter(is_of_tests).rev() {
            etcd.delete(key)?;
            rights |= is_listed(key, &RIGHTS);
        }
        for (key, value) in &self.restored {
            if present.restored.get(key) != Some(value) {
                etcd.put(key, value)?;
                rights |= is_listed(key, &RIGHTS);
            }
        }
        Ok(Changed {
            rights,
            definitions: !self.definitions().eq(present.definitions()),
        })
    }

    /// Adopts the present revisions of the definitions.
    pub(super) fn adopt_definitions(&mut self, etcd: &Etcd) -> Result<()> {
        self.revisions
            .retain(|key, _| !key.starts_with(DEFINITIONS));
        self.revisions.extend(etcd.revisions(DEFINITIONS)?);
        Ok(())
    }

    /// Returns true if policies of admission exist.
    pub(super) fn has_policies(&self) -> bool {
        self.revisions.keys().any(|key| key.starts_with(POLICIES))
    }

    /// Returns an error if keys have changed that are not restored.
    pub(super) fn compare(&self, etcd: &Etcd) -> Result<()> {
        let now = Content::read(etcd)?;
        let changes = self.changes(&now);
        ensure!(
            changes.is_empty(),
            "the test has changed {}",
            changes.join(", ")
        );
        Ok(())
    }

    fn definitions(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.revisions
            .iter()
            .filter(|(key, _)| key.starts_with(DEFINITIONS))
    }

    fn changes<'c>(&'c self, present: &'c Content) -> Vec<&'c str> {
        let (before, now) = (&self.revisions, &present.revisions);
        let changed = before
            .iter()
            .filter(|(key, revision)| now.get(*key) != Some(*revision));
        let new = now.iter().filter(|(key, _)| !before.contains_key(*key));
        changed.chain(new).map(|(key, _)| key.as_str()).collect()
    }
}

/// Returns true if a list contains the key, or its beginning up to a `/` or `-`.
fn is_listed(key: &str, list: &[&str]) -> bool {
    let is_it = |listed: &&str| {
        if listed.ends_with(['/', '-']) {
            key.starts_with(*listed)
        } else {
            key == *listed
        }
    };
    list.iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_listed_by_its_whole_text_or_by_its_beginning_up_to_a_separator() {
        let list = [
            "/registry/leases/kube-system/apiserver-",
            "/registry/ipaddresses/10.96.0.1",
            "/registry/ranges/",
        ];
        for key in [
            "/registry/leases/kube-system/apiserver-a",
            "/registry/ipaddresses/10.96.0.1",
            "/registry/ranges/a",
        ] {
            assert!(is_listed(key, &list), "{key}");
        }
        for key in [
            "/registry/leases/kube-system/api",
            "/registry/ipaddresses/10.96.0.12",
            "/registry/ranges",
        ] {
            assert!(!is_listed(key, &list), "{key}");
        }
    }
}
