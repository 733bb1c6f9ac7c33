//! [`OldHandle`]: the handle that releases before v3 gave a container. A DEL releases its addresses, too (IPAM-23).

use super::{Attribute, Block, HandleId, ReleaseRequest};

/// The handle that releases before v3 gave a container: `<namespace>.<pod>`, or the ID of a container without a pod.
///
/// A tenant chooses the names of a namespace and a pod, so their text can equal the handle of another container, a
/// tunnel or a Service. An allocation therefore belongs to the pod only if it names the pod, or has no attributes, as
/// before v3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldHandle {
    id: HandleId,
    /// The pod's namespace and name.
    pod: Option<(String, String)>,
}

impl OldHandle {
    /// Returns the old handle of a pod; `None` if the text can be the handle of a VMI. The addresses of a stopped
    /// virtual machine have no attributes, either.
    pub fn of_pod(namespace: &str, pod: &str) -> Option<Self> {
        let id = HandleId::new(format!("{namespace}.{pod}"));
        (!id.may_be_of_machine()).then(|| OldHandle { id, pod: Some((namespace.to_owned(), pod.to_owned())) })
    }

    /// Returns the old handle of a container without a pod; `None` as for [`OldHandle::of_pod`].
    pub fn of_container(container_id: &str) -> Option<Self> {
        let id = HandleId::new(container_id);
        (!id.may_be_of_machine()).then_some(OldHandle { id, pod: None })
    }

    /// Returns the handle's ID.
    pub fn id(&self) -> &HandleId {
        &self.id
    }

    /// Returns a request for each address of `block` that the container has under this handle, with the present handle
    /// and sequence number.
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

    /// Returns a block with one address for each pair of handle and attributes.
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
