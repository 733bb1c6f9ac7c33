//! [`Place`]: where Calico's objects are in a test.

use libcalico::kubernetes::ApiGroup;

/// The place of Calico's objects in a test, as the attribute [`on`](macro@crate::on) names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// etcd.
    Etcd,
    /// The embedded datastore, a file of one node.
    Local,
    /// An API server, in the group `crd.projectcalico.org/v1`.
    KubernetesV1,
    /// An API server, in the group `projectcalico.org/v3`.
    KubernetesV3,
}

impl Place {
    /// Returns the group of Calico's objects on an API server, or `None` outside of one.
    pub fn group(self) -> Option<ApiGroup> {
        match self {
            Place::Etcd | Place::Local => None,
            Place::KubernetesV1 => Some(ApiGroup::CrdV1),
            Place::KubernetesV3 => Some(ApiGroup::V3),
        }
    }

    /// Returns the group, for a suite whose tests all need an API server.
    ///
    /// # Panics
    /// Panics outside of an API server.
    #[track_caller]
    pub fn api_group(self) -> ApiGroup {
        self.group()
            .unwrap_or_else(|| panic!("this suite has no tests on {self:?}"))
    }
}
