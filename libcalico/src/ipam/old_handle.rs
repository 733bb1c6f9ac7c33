//! [`OldHandle`]: the handle that releases before v3 gave a container (IPAM-23).

use super::{Attribute, Block, HandleId, ReleaseRequest};

/// The handle that releases before v3 gave a container: `<namespace>.<pod>`, or the id of a plain container alone.
///
/// The names of a namespace and a pod are chosen by a tenant, and their text may be the handle of something else: of another
/// container, a tunnel, a Service. So its allocations are the pod's only where they name the pod, or have no attributes, as before v3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldHandle {
    id: HandleId,
    /// Namespace and name.
    pod: Option<(String, String)>,
}

impl OldHandle {
    /// The old handle of a pod; `None` when the text may be the handle of a virtual machine. A machine that does not run
    /// holds its addresses without attributes, too.
    pub fn of_pod(namespace: &str, pod: &str) -> Option<Self> {
        let id = HandleId::new(format!("{namespace}.{pod}"));
        (!id.may_be_of_machine()).then(|| OldHandle { id, pod: Some((namespace.to_owned(), pod.to_owned())) })
    }

    /// The old handle of a container that is no pod's; `None` as for [`OldHandle::of_pod`].
    pub fn of_container(container_id: &str) -> Option<Self> {
        let id = HandleId::new(container_id);
        (!id.may_be_of_machine()).then_some(OldHandle { id, pod: None })
    }

    /// The handle's name.
    pub fn id(&self) -> &HandleId {
        &self.id
    }

    /// Requests for the addresses of `block` that the container holds by this handle, each as it is held now.
    pub fn requests(&self, block: &Block) -> Vec<ReleaseRequest> {
        block.requests_of(&self.id, |attribute| self.is_owner(attribute))
    }

    fn is_owner(&self, attribute: &Attribute) -> bool {
        let is_noted = |(namespace, pod): &(String, String)| attribute.names_pod(namespace, pod);
        attribute.says_nothing() || self.pod.as_ref().is_some_and(is_noted)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ipam::{AssignRequest, Owner, Reservations};

    /// A block with one address per allocation: its handle and attributes.
    fn block(allocations: &[(&str, &[(&str, &str)])]) -> Block {
        let owner = Owner::Host("n1".into());
        let mut block = Block::new("10.0.0.0/28".parse().unwrap(), &owner, time::OffsetDateTime::UNIX_EPOCH).unwrap();
        for (handle, attributes) in allocations {
            let attributes: BTreeMap<_, _> = attributes.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            let handle = HandleId::new(handle);
            let request = AssignRequest {
                handle: Some(&handle),
                attributes: &attributes,
                requester: &owner,
                check_affinity: false,
            };
            block.assign(1, &request, &Reservations::default()).unwrap();
        }
        block
    }

    fn named(old: &OldHandle, block: &Block) -> Vec<String> {
        old.requests(block).iter().map(|request| request.ip.to_string()).collect()
    }

    #[test]
    fn requests_of_a_pod_name_what_is_noted_for_it_and_what_has_no_attributes() {
        let mut block = block(&[
            ("ns.web", &[]),
            ("ns.web", &[("namespace", "ns"), ("pod", "web"), ("node", "n1")]),
            ("ns.web", &[("node", "n1")]),
            ("ns.web", &[("namespace", "ns"), ("pod", "db")]),
            ("ns.web", &[("namespace", "other"), ("pod", "web")]),
            ("ns.web", &[("type", "vxlanTunnelAddress")]),
            ("ns.db", &[]),
        ]);
        let old = OldHandle::of_pod("ns", "web").unwrap();
        assert_eq!(named(&old, &block), ["10.0.0.0", "10.0.0.1"]);
        block.attributes[0].unknown.insert("newer".into(), "1".into());
        assert_eq!(named(&old, &block), ["10.0.0.1"]);
    }

    #[test]
    fn requests_of_a_plain_container_name_what_has_no_attributes() {
        let block = block(&[("c1", &[]), ("c1", &[("node", "n1")]), ("c1", &[("namespace", ""), ("pod", "")])]);
        assert_eq!(named(&OldHandle::of_container("c1").unwrap(), &block), ["10.0.0.0"]);
    }

    #[test]
    fn a_machines_handle_is_nobodys_old_one() {
        assert_eq!(OldHandle::of_pod("k8s-pod-network", "vmi.prod.db"), None);
        assert_eq!(OldHandle::of_pod("k8s", "network.vmi.prod.db"), None);
        assert_eq!(OldHandle::of_container("k8s-pod-network.vmi.prod.db"), None);
        assert!(OldHandle::of_pod("vmi", "web").is_some());
    }
}
