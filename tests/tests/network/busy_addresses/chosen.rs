//! A busy address that IPAM chose: the same call replaces it by another address.

use integration_tests::cluster::{Cluster, on};

use crate::busy_addresses::{OTHER, add, devices, held, next, prepared, route};

/// Shows SEC-50.
#[on(etcd, local)]
fn add_with_a_foreign_route_assigns_another_address(cluster: &Cluster<'_>) {
    let (resident, conf) = prepared(cluster);
    let (free4, free6, pod) = (next(cluster, "-4"), next(cluster, "-6"), cluster.pod(1));
    route("add", &free4[0]);
    let outcome = cluster.verb("ADD", &pod, &conf).run();
    let given = crate::busy_addresses::addresses(&outcome.success());
    assert_eq!(given, [&*free4[1], &*free6[0]]);
    assert!(
        outcome.stderr.contains(&free4[0]) && outcome.stderr.contains(OTHER),
        "{}",
        outcome.stderr
    );
    assert_eq!(devices(&free4[0]), [OTHER]);
    // The busy address is free again, and IPAM assigns it after all other free addresses of its
    // block.
    assert_eq!(next(cluster, "-4").last(), Some(&free4[0]));
    assert_eq!(held(cluster, &pod), given);
    cluster.assert_only(&[&resident, &pod]);
    cluster.delete(&pod, &conf);
    cluster.delete(&resident, &conf);
    assert_eq!(devices(&free4[0]), [OTHER]);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn add_with_one_busy_family_keeps_the_address_of_the_free_family(cluster: &Cluster<'_>) {
    let (resident, conf) = prepared(cluster);
    let (free4, free6, pod) = (next(cluster, "-4"), next(cluster, "-6"), cluster.pod(1));
    route("add", &free6[0]);
    let (given, tried) = add(cluster, &pod, &conf);
    assert_eq!(
        (given, tried),
        (vec![free4[0].clone(), free6[1].clone()], 1)
    );
    assert_eq!(devices(&free6[0]), [OTHER]);
    cluster.assert_only(&[&resident, &pod]);
}

#[on(etcd, local)]
fn add_with_two_busy_families_replaces_the_address_of_each(cluster: &Cluster<'_>) {
    let (resident, conf) = prepared(cluster);
    let (free4, free6, pod) = (next(cluster, "-4"), next(cluster, "-6"), cluster.pod(1));
    [&free4[0], &free6[0], &free6[1]]
        .into_iter()
        .for_each(|address| route("add", address));
    let (given, tried) = add(cluster, &pod, &conf);
    assert_eq!(
        (given, tried),
        (vec![free4[1].clone(), free6[2].clone()], 3)
    );
    cluster.assert_only(&[&resident, &pod]);
}

#[on(etcd, local)]
fn add_with_a_blackhole_route_assigns_another_address(cluster: &Cluster<'_>) {
    let (resident, conf) = prepared(cluster);
    let (free4, pod) = (next(cluster, "-4"), cluster.pod(1));
    integration_tests::command::ip(&format!("route add blackhole {}/32", free4[0])).unwrap();
    let (given, tried) = add(cluster, &pod, &conf);
    assert_eq!((&given[0], tried), (&free4[1], 1));
    cluster.assert_only(&[&resident, &pod]);
}
