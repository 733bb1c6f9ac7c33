//! [`Holder`]: the owner of an address, described for logs and for a caller of one namespace.

use crate::ipam::{Allocation, AllocationOwner, Attribute, OwnerKind};

/// The description of an owner outside of the caller's namespace. Tunnels, hosts and owners without
/// a namespace have it too, so that a tenant cannot distinguish the addresses of other tenants from
/// those of nodes.
const ELSEWHERE: &str = "another namespace";

const COOLING: &str = "no owner: the address was released and is cooling down";

/// The owner of an address that another caller requests or uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The whole description, for logs and for people who may read the allocations of the cluster.
    pub whole: String,
    /// The description for the caller: whole for an owner of the caller's namespace, and without
    /// names for others.
    pub for_caller: String,
}

impl Holder {
    /// Returns the owner of an allocated address. `caller` is the namespace of the caller; `None`
    /// is a caller with the rights of root on the node, such as podman.
    pub fn of(held: &Allocation<'_>, caller: Option<&str>) -> Self {
        if held.is_cooling() {
            return Holder {
                whole: COOLING.into(),
                for_caller: COOLING.into(),
            };
        }
        Self::described(describe(held), held.attribute, caller)
    }

    /// Returns the owner that `attribute` names, with this whole description.
    pub(in crate::ipam) fn described(
        whole: String,
        attribute: Option<&Attribute>,
        caller: Option<&str>,
    ) -> Self {
        let is_of = |namespace: &str| {
            attribute.is_some_and(|attribute| attribute.is_of_namespace(namespace))
        };
        let for_caller = if caller.is_none_or(is_of) {
            whole.clone()
        } else {
            ELSEWHERE.into()
        };
        Holder { whole, for_caller }
    }

    /// Returns true if the address has no owner, because it was released and is cooling down.
    pub fn is_cooling(&self) -> bool {
        self.whole == COOLING
    }

    /// Returns true if the caller does not get the whole description.
    pub fn is_withheld(&self) -> bool {
        self.for_caller != self.whole
    }
}

impl Attribute {
    /// Returns true if the owner of the allocation is in this namespace, and with it each pod that
    /// the allocation names.
    pub fn is_of_namespace(&self, namespace: &str) -> bool {
        let (owner, _) = AllocationOwner::of(self);
        let mut pods = AllocationOwner::owners(self);
        owner.names().is_some_and(|(of, _)| of == namespace) && pods.all(|(of, _)| of == namespace)
    }
}

fn describe(held: &Allocation<'_>) -> String {
    let handle = held.handle().map_or_else(
        || "no handle".to_owned(),
        |handle| format!("handle {handle}"),
    );
    let Some(attribute) = held.attribute else {
        return handle;
    };
    let Attribute {
        active_owner,
        alternate_owner,
        ..
    } = attribute;
    let attributes = if active_owner.is_empty() {
        alternate_owner
    } else {
        active_owner
    };
    let (owner, node) = AllocationOwner::of(attribute);
    let pod = AllocationOwner::owners(attribute).next();
    let parts = [
        Some(handle),
        owner
            .names()
            .filter(|_| owner.kind() != OwnerKind::Pod)
            .map(|_| owner.to_string()),
        pod.map(|(namespace, name)| AllocationOwner::Pod { namespace, name }.to_string()),
        node.map(|node| format!("node {node}")),
        attributes
            .get("timestamp")
            .filter(|since| !since.is_empty())
            .map(|since| format!("since {since}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINCE: &str = "2026-08-22 01:02:03.1234 +0000 UTC";

    fn attribute(handle: &str, owner: &[(&str, &str)]) -> Attribute {
        let active_owner = owner
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        Attribute {
            handle_id: Some(handle.into()),
            active_owner,
            ..Attribute::default()
        }
    }

    fn web() -> Attribute {
        attribute(
            "net.c1",
            &[
                ("namespace", "shop"),
                ("pod", "web"),
                ("node", "n1"),
                ("timestamp", SINCE),
            ],
        )
    }

    fn holder(attribute: Option<&Attribute>, caller: Option<&str>) -> Holder {
        let held = Allocation {
            ip: "10.0.0.1".parse().unwrap(),
            ordinal: 1,
            attribute,
            sequence: None,
        };
        Holder::of(&held, caller)
    }

    #[test]
    fn holder_of_the_callers_namespace_is_named() {
        let found = holder(Some(&web()), Some("shop"));
        assert_eq!(
            found.for_caller,
            format!("handle net.c1, pod shop/web, node n1, since {SINCE}")
        );
        assert!(!found.is_withheld());
    }

    /// Shows SEC-22.
    #[test]
    fn holder_of_another_namespace_is_not_named() {
        for caller in ["bank", "sho", "shop2", ""] {
            let found = holder(Some(&web()), Some(caller));
            assert_eq!(found.for_caller, "another namespace", "{caller:?}");
            assert_eq!(
                found.whole,
                format!("handle net.c1, pod shop/web, node n1, since {SINCE}")
            );
            assert!(found.is_withheld());
        }
    }

    /// Shows SEC-22.
    #[test]
    fn tunnel_and_foreign_owner_look_alike() {
        let others = [
            attribute(
                "vxlan-tunnel-addr-n1",
                &[("node", "n1"), ("type", "vxlanTunnelAddress")],
            ),
            attribute("ipip-tunnel-addr-n1", &[]),
            attribute(
                "windows-reserved-ipam-handle",
                &[("note", "windows host rsvd")],
            ),
            attribute("net.c2", &[("node", "n1")]),
            attribute(
                "net.c3",
                &[("type", "unknown"), ("namespace", "shop"), ("pod", "web")],
            ),
            attribute("net.c4", &[("namespace", ""), ("pod", "web")]),
            attribute("net.c5", &[("namespace", "bank"), ("pod", "web")]),
            attribute(
                "lb-1",
                &[
                    ("namespace", "bank"),
                    ("service", "web"),
                    ("type", "LoadBalancer"),
                ],
            ),
            attribute("net.vmi.bank.db", &[]),
            Attribute::default(),
        ];
        for other in others.iter().map(Some).chain([None]) {
            for caller in ["shop", ""] {
                assert_eq!(
                    holder(other, Some(caller)).for_caller,
                    "another namespace",
                    "{other:?} for {caller:?}"
                );
            }
        }
    }

    #[test]
    fn holder_without_a_caller_is_whole() {
        let tunnel = attribute(
            "vxlan-tunnel-addr-n1",
            &[("node", "n1"), ("type", "vxlanTunnelAddress")],
        );
        for (held, whole) in [
            (Some(&tunnel), "handle vxlan-tunnel-addr-n1, node n1"),
            (Some(&attribute("net.c2", &[])), "handle net.c2"),
            (None, "no handle"),
        ] {
            assert_eq!(
                holder(held, None),
                Holder {
                    whole: whole.into(),
                    for_caller: whole.into()
                }
            );
        }
    }

    #[test]
    fn services_and_virtual_machines_are_named() {
        let service = attribute(
            "lb-1",
            &[
                ("namespace", "shop"),
                ("service", "web"),
                ("type", "LoadBalancer"),
            ],
        );
        assert_eq!(
            holder(Some(&service), Some("shop")).for_caller,
            "handle lb-1, service shop/web"
        );
        let names = [
            ("namespace", "shop"),
            ("pod", "virt-launcher-db-x"),
            ("vmi-name", "db"),
        ];
        let machine = attribute("net.vmi.shop.db", &names);
        let expected =
            "handle net.vmi.shop.db, virtual machine shop/db, pod shop/virt-launcher-db-x";
        assert_eq!(holder(Some(&machine), Some("shop")).for_caller, expected);
    }

    #[test]
    fn holder_with_a_pod_of_a_second_namespace_is_not_named() {
        let target =
            attribute("", &[("namespace", "bank"), ("pod", "virt-launcher-db-y")]).active_owner;
        let machine = Attribute {
            alternate_owner: target,
            ..web()
        };
        for caller in ["shop", "bank"] {
            assert_eq!(
                holder(Some(&machine), Some(caller)).for_caller,
                "another namespace"
            );
        }
    }

    #[test]
    fn cooling_address_has_no_holder() {
        let cooling = Attribute {
            released_at: Some("2026-08-22T01:02:03Z".into()),
            ..web()
        };
        for caller in [None, Some("shop"), Some("bank")] {
            let found = holder(Some(&cooling), caller);
            assert!(
                found.for_caller == COOLING && found.is_cooling(),
                "{found:?}"
            );
            assert!(!holder(Some(&web()), caller).is_cooling());
        }
    }
}
