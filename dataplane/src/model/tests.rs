use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;

use libcalico::names::InterfaceAlias;
use netconf::conf::DeviceType;

use super::*;
use crate::plan::{DEFAULT_IPV4_GATEWAY, default_routes};
use crate::{
    DataplaneError, EndpointPlan, HostLinkProof, PodNetwork, PriorInterface, Removal,
    TeardownTarget,
};

const POD: &str = "/netns/pod1";

fn alias() -> InterfaceAlias {
    InterfaceAlias::for_pod("net", "ns", "web", "c1")
}

fn plan() -> EndpointPlan {
    EndpointPlan {
        host_ifname: "cali1".into(),
        container_ifname: "eth0".into(),
        alias: alias(),
        prior: PriorInterface::Unknown,
        addresses: vec!["10.65.0.2".parse().unwrap()],
        mtu: 0,
        num_queues: 1,
        device: DeviceType::Veth,
        container_mac: None,
        routes: default_routes(),
        ipv4_gateway: DEFAULT_IPV4_GATEWAY,
        allow_ip_forwarding: false,
        host_routes: true,
        replaces_idle_routes: true,
        refuses_addresses_of_pods: false,
        withholds_other_pods: false,
    }
}

fn target() -> TeardownTarget {
    TeardownTarget {
        netns: Some(POD.into()),
        container_ifname: "eth0".into(),
        host_ifname: "cali1".into(),
        container_id: Some("c1".into()),
        proof: HostLinkProof::Absent,
    }
}

fn node() -> KernelModel {
    let model = KernelModel::new();
    assert!(model.create_netns(Path::new(POD)));
    model
}

fn set_up(model: &KernelModel) -> Result<u32, DataplaneError> {
    let netns = model.open_netns(Path::new(POD)).unwrap();
    Ok(model.set_up(&plan(), &netns)?.host_index)
}

/// Returns the same network with a hook that panics at a step.
fn stopped_at(model: &KernelModel, step: &'static str) -> KernelModel {
    model.with_hook(Arc::new(move |name| {
        assert!(name != step, "stopped");
        None
    }))
}

fn refusing(model: &KernelModel, step: &'static str) -> KernelModel {
    model.with_hook(Arc::new(move |name| {
        (name == step).then_some(Errno::ENOBUFS)
    }))
}

#[test]
fn steps_of_an_add_and_a_del_are_named_in_their_order() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let taken = names.clone();
    let model = node().with_hook(Arc::new(move |name| {
        taken.lock().unwrap().push(name);
        None
    }));
    set_up(&model).unwrap();
    model.start_removal(target()).unwrap().finish().unwrap();
    assert_eq!(
        *names.lock().unwrap(),
        [
            steps::CREATE_PAIR,
            steps::SET_ALIAS,
            steps::SET_HOST_END_UP,
            steps::ADD_HOST_ROUTE,
            steps::CONFIGURE_POD_END,
            steps::SET_DOWN,
            steps::DELETE_PAIR,
        ]
    );
    assert_eq!(model.host_links(), []);
}

#[test]
fn refused_step_of_an_add_leaves_no_pair() {
    for step in [
        steps::CREATE_PAIR,
        steps::SET_ALIAS,
        steps::SET_HOST_END_UP,
        steps::ADD_HOST_ROUTE,
        steps::CONFIGURE_POD_END,
    ] {
        let model = node();
        let error = set_up(&refusing(&model, step)).unwrap_err();
        let DataplaneError::Netlink(refused) = &error else {
            panic!("{step}: {error:?}")
        };
        assert_eq!(refused.errno(), Some(Errno::ENOBUFS), "{step}");
        assert_eq!(model.host_links(), [], "{step}");
        assert_eq!(model.pod_links(Path::new(POD)), Some(vec![]), "{step}");
    }
}

#[test]
fn refused_deletion_of_a_failed_add_is_reported() {
    let model = node();
    let refusing = model.with_hook(Arc::new(|name| {
        [steps::CONFIGURE_POD_END, steps::DELETE_PAIR]
            .contains(&name)
            .then_some(Errno::EBUSY)
    }));
    let error = set_up(&refusing).unwrap_err();
    assert!(
        matches!(error, DataplaneError::PairNotDeleted { .. }),
        "{error:?}"
    );
    let left = model.host_link("cali1").unwrap();
    assert_eq!(
        (left.link.alias, left.destinations.len()),
        (Some(alias()), 1)
    );
}

#[test]
fn panic_between_two_steps_leaves_the_steps_before() {
    for (step, has_alias, is_up, routes) in [
        (steps::SET_ALIAS, false, false, 0),
        (steps::SET_HOST_END_UP, true, false, 0),
        (steps::ADD_HOST_ROUTE, true, true, 0),
        (steps::CONFIGURE_POD_END, true, true, 1),
    ] {
        let model = node();
        let stopped = stopped_at(&model, step);
        assert!(catch_unwind(AssertUnwindSafe(|| set_up(&stopped))).is_err());
        let found = model.host_link("cali1").unwrap();
        let state = (
            found.link.alias.is_some(),
            found.link.is_up,
            found.destinations.len(),
        );
        assert_eq!(state, (has_alias, is_up, routes), "{step}");
        let inside = found.peer.unwrap();
        assert_eq!(inside.netns.as_deref(), Some(Path::new(POD)));
        assert!(!inside.link.is_up && inside.link.addresses.is_empty());
        // The stopped ADD left neither its lock nor its open namespace.
        set_up(&model).unwrap();
        assert!(model.remove_netns(Path::new(POD)));
        assert_eq!(model.host_links(), [], "{step}");
    }
}

#[test]
fn del_that_stops_before_the_deletion_leaves_the_pair_down() {
    let model = node();
    set_up(&model).unwrap();
    let stopped = stopped_at(&model, steps::DELETE_PAIR);
    let deletion = || {
        stopped
            .start_removal(target())
            .map(Removal::finish)
            .unwrap()
    };
    assert!(catch_unwind(AssertUnwindSafe(deletion)).is_err());
    let left = model.host_link("cali1").unwrap();
    assert!(!left.link.has_carrier && left.link.is_up);
    // A deletion that is not awaited ends too.
    drop(model.start_removal(target()).unwrap());
    assert_eq!(model.host_links(), []);
}

/// The other call would wait for the lock in vain, because no time passes in the model.
#[test]
fn del_during_the_creation_of_a_pair_without_an_alias_fails() {
    let model = node();
    let other = model.clone();
    let adding = model.with_hook(Arc::new(move |name| {
        if name == steps::SET_ALIAS {
            let by_name = TeardownTarget {
                netns: None,
                proof: HostLinkProof::Name,
                ..target()
            };
            let error = other.start_removal(by_name).unwrap_err();
            assert!(
                matches!(error, DataplaneError::LockBusy { .. }),
                "{error:?}"
            );
        }
        None
    }));
    set_up(&adding).unwrap();
}

#[test]
fn reboot_leaves_no_interface_route_process_or_lock() {
    let model = node();
    let first = set_up(&model).unwrap();
    model.start_process(Path::new(POD)).unwrap();
    let netns = model.open_netns(Path::new(POD)).unwrap();
    model.reboot();
    assert_eq!(model.host_links(), []);
    assert_eq!(model.routed_addresses(), []);
    assert_eq!(model.pod_links(Path::new(POD)), None);
    assert!(model.create_netns(Path::new(POD)));
    drop(netns);
    assert!(model.processes_in(Path::new(POD)).is_empty());
    assert_eq!(set_up(&model).unwrap(), first);
}

#[test]
fn namespace_without_a_path_ends_with_its_last_process() {
    let model = node();
    set_up(&model).unwrap();
    let process = model.start_process(Path::new(POD)).unwrap();
    assert!(model.remove_netns(Path::new(POD)));
    let left = model.host_link("cali1").unwrap();
    assert_eq!(left.peer.unwrap().netns, None);
    assert!(model.stop_process(process));
    assert_eq!(model.routed_addresses(), []);
    assert_eq!(model.host_links(), []);
}
