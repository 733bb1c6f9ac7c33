use libcalico::api::{NodeSpec, OrchRef};
use libcalico::store::Revision;

use super::memory::Memory;
use super::*;

fn calico(name: &str, orchestrator: &str) -> Entry<CalicoNode> {
    let reference = OrchRef { node_name: format!("k-{name}"), orchestrator: orchestrator.into(), ..OrchRef::default() };
    let value = CalicoNode::new(name, NodeSpec { orch_refs: vec![reference], ..NodeSpec::default() });
    Entry { key: value.key(), value, revision: Revision("1".into()) }
}

fn kubernetes(name: &str) -> Node {
    Node { name: ObjectKey::global(name), uid: "u".into(), labels: Default::default() }
}

/// Nodes `a` and `b`, and `c` of another orchestrator; Kubernetes has `a`.
fn memory() -> Memory {
    let mut memory = Memory::default();
    memory.hear_calico(&Event::Restarted);
    for node in [calico("a", "k8s"), calico("b", "k8s"), calico("c", "other")] {
        assert_eq!(memory.hear_calico(&Event::Put(&node)), [], "Kubernetes' nodes are not known yet");
    }
    memory.hear_calico(&Event::Synced);
    memory.hear_kubernetes(&Event::Restarted);
    memory.hear_kubernetes(&Event::Put(&kubernetes("k-a")));
    memory
}

#[test]
fn a_node_that_went_while_nobody_looked_is_found_at_the_start() {
    let mut memory = memory();
    assert_eq!(memory.orphans(), [], "the list is not complete");
    assert_eq!(memory.hear_kubernetes(&Event::Synced), [ObjectKey::global("b")]);
    assert_eq!(memory.orphaned(&ObjectKey::global("a")), None);
    assert_eq!(memory.orphaned(&ObjectKey::global("c")), None);
}

#[test]
fn a_deletion_names_the_node() {
    let mut memory = memory();
    memory.hear_kubernetes(&Event::Synced);
    assert_eq!(memory.hear_kubernetes(&Event::Gone(&ObjectKey::global("k-a"))), [ObjectKey::global("a")]);
    assert_eq!(memory.orphaned(&ObjectKey::global("a")), Some(ObjectKey::global("k-a")));
    // It came back before anybody looked.
    assert_eq!(memory.hear_kubernetes(&Event::Put(&kubernetes("k-a"))), []);
    assert_eq!(memory.orphaned(&ObjectKey::global("a")), None);
}

#[test]
fn a_list_that_begins_anew_tells_of_deletions_it_slept_through() {
    let mut memory = memory();
    memory.hear_kubernetes(&Event::Synced);
    memory.hear_kubernetes(&Event::Restarted);
    assert_eq!(memory.orphaned(&ObjectKey::global("a")), None, "a list under way proves nothing");
    assert_eq!(memory.hear_kubernetes(&Event::Synced), [ObjectKey::global("a")]);
}

#[test]
fn a_node_that_registers_late_is_looked_at() {
    let mut memory = memory();
    memory.hear_kubernetes(&Event::Synced);
    assert_eq!(memory.hear_calico(&Event::Put(&calico("d", "k8s"))), [ObjectKey::global("d")]);
    assert_eq!(memory.hear_calico(&Event::Put(&calico("e", "other"))), []);
}
