//! The user of the plugins in a cluster: `calico-cni-plugin`, as `deploy/rbac` defines it.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::api_server::ApiServer;
use super::role::Role;
use super::service_account::ServiceAccount;
use crate::manifests::deploy;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "calico-cni-plugin";

fn manifest() -> PathBuf {
    deploy("rbac/calico-cni-plugin.yaml")
}

impl Role {
    /// Returns the permissions that `deploy/rbac` grants the CNI user.
    pub fn ours() -> Result<Role> {
        Role::of_manifest(&manifest())
    }

    /// Returns the permissions that upstream grants the CNI user.
    pub fn upstreams() -> Result<Role> {
        Role::of_manifest(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/upstream-role.yaml"),
        )
    }
}

impl ApiServer {
    /// Applies the manifest of the CNI user and returns this user, which is bound to that role
    /// alone.
    pub fn cni_user(&self) -> Result<ServiceAccount> {
        self.account_of(NAMESPACE, NAME, &[manifest()])
    }

    /// Replaces the role of the CNI user, and waits until the authorizer applies the new role.
    pub fn grant(&self, user: &ServiceAccount, role: &Role) -> Result<()> {
        self.cluster_role(NAME, &role.rules())?;
        self.await_role(user, role)
    }

    /// Waits until the authorizer applies a role: all its rules together, a moment after the write.
    fn await_role(&self, user: &ServiceAccount, role: &Role) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut questions = Role::ours()?.0;
        questions.extend(role.0.iter().cloned());
        for permission in questions {
            while self.allows(&user.user, permission.access())? != role.0.contains(&permission) {
                ensure!(
                    Instant::now() < deadline,
                    "the authorizer does not see the role: {permission}"
                );
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }
}
