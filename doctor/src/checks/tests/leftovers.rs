//! Tests of the findings about leftovers.

use super::*;

#[test]
fn lock_held_for_long_is_reported_with_its_process() {
    let held = |process, command: &str| {
        let holder = Ok(Some(LockHolder {
            process,
            command: command.into(),
        }));
        move |snapshot: &mut NodeSnapshot| snapshot.locks[0].holder = holder
    };
    only(
        "warn IPAM lock: /var/run/calico/ipam.lock stays locked by process 47 (calico x)",
        held(Some(47), "calico x"),
    );
    only(
        "warn IPAM lock: /var/run/calico/ipam.lock stays locked by a process that is not visible",
        held(None, ""),
    );
    only(
        "skipped IPAM lock: /var/run/calico/ipam.lock: denied",
        |snapshot| snapshot.locks[0].holder = Err("denied".into()),
    );
}

#[test]
fn leftovers_of_containers_are_reported() {
    let stale = |names: &[&str]| {
        let stale: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        move |snapshot: &mut NodeSnapshot| {
            snapshot.cache = Ok(Some(Cache {
                directory: "/c".into(),
                results: 9,
                stale,
            }))
        }
    };
    only(
        "warn libcni cache: 1 of 9 results belong to containers whose interface is missing: \
         net-a-eth0",
        stale(&["net-a-eth0"]),
    );
    let many = wrong(stale(&["a", "b", "c", "d", "e", "f"]));
    assert!(many[0].ends_with(": a, b, c, d, e …"), "{many:?}");
    assert_eq!(
        wrong(|snapshot| snapshot.cache = Ok(None)),
        Vec::<String>::new()
    );
    only("skipped libcni cache: denied", |snapshot| {
        snapshot.cache = Err("denied".into())
    });

    let interfaces = |found: Vec<PodInterface>| {
        move |snapshot: &mut NodeSnapshot| answers(cluster(snapshot)).interfaces = Ok(found)
    };
    let good = || pod_interface("cali1", &["10.65.0.1"], Some(&["10.65.0.1"]));
    only(
        "warn interfaces of pods: 2 of 3 interfaces have no endpoint: cali2 (10.65.0.2, fd65::2), \
         cali3",
        interfaces(vec![
            good(),
            pod_interface("cali2", &["10.65.0.2", "fd65::2"], None),
            pod_interface("cali3", &[], None),
        ]),
    );
    only(
        "warn routes to pods: 1 routes lead to an address that the pod's endpoint does not have: \
         10.65.0.9 through cali1",
        interfaces(vec![pod_interface(
            "cali1",
            &["10.65.0.1", "10.65.0.9"],
            Some(&["10.65.0.1"]),
        )]),
    );
    only("skipped interfaces of pods: refused", |snapshot| {
        answers(cluster(snapshot)).interfaces = Err("refused".into())
    });
}

#[test]
fn deferred_dels_in_the_journal_are_reported() {
    only(
        "warn journal: 7 deferred DELs have not released their addresses: d0; d1; d2; d3; d4; and \
         2 more",
        |snapshot| {
            snapshot.journal = Ok((0..7).map(|n| format!("d{n}")).collect());
        },
    );
    only("skipped journal: /x: denied", |snapshot| {
        snapshot.journal = Err("/x: denied".into())
    });
}

#[test]
fn busy_addresses_are_reported_with_their_routes() {
    let busy = |address: &str, route: &str| {
        BusyAddresses::from([(address.parse().unwrap(), route.into())])
    };
    let routed = move |snapshot: &mut NodeSnapshot| {
        answers(cluster(snapshot)).busy = Ok(busy("10.65.0.9", "through live0"))
    };
    let begins = "warn busy addresses: 1 addresses that are free in IPAM have a host route, so \
                  ADDs skip them: ";
    only(&format!("{begins}10.65.0.9 (route through live0)"), routed);
    let noted = move |snapshot: &mut NodeSnapshot| {
        routed(snapshot);
        snapshot.recent_busy = busy("10.65.0.9", "through interface live0 (protocol Boot)");
    };
    only(
        &format!("{begins}10.65.0.9 (route through interface live0 (protocol Boot))"),
        noted,
    );
    only("skipped busy addresses: refused", |snapshot| {
        answers(cluster(snapshot)).busy = Err("refused".into())
    });
    only(
        &format!("{begins}10.65.0.9 (route through interface live0 (protocol Boot))"),
        |snapshot| {
            noted(snapshot);
            answers(cluster(snapshot)).busy = Err("refused".into());
        },
    );
}

#[test]
fn files_in_former_directories_are_reported() {
    only(
        "warn former directories: 2 files of an earlier installation remain in other directories: \
         /a/calico, /b/x",
        |snapshot| snapshot.former = ["/a/calico", "/b/x"].map(PathBuf::from).into(),
    );
}
