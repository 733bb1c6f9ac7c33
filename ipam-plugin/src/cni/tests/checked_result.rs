//! CHECK: the addresses of the previous result, compared with the datastore.

use super::*;

async fn checked() -> (Cluster, IpamRequest, Vec<IpAddr>) {
    let cluster = dual_stack();
    let both = IpamRequest {
        assign_ipv6: true,
        ..call("a")
    };
    let result = add_to(&cluster, &both).await.unwrap();
    let recorded: Vec<_> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    assert_eq!(
        differences(&cluster.store, &both, &recorded).await.unwrap(),
        [] as [String; 0]
    );
    check(&cluster.store, &both, &recorded).await.unwrap();
    (cluster, both, recorded)
}

async fn change_block(cluster: &Cluster, change: impl FnOnce(&mut Block)) {
    let block = cidr("10.65.166.128/26");
    let mut entry = cluster.store.get::<Block>(&block).await.unwrap();
    change(&mut entry.value);
    cluster.store.put(&block, &entry.value);
}

#[tokio::test]
async fn check_reports_an_address_that_is_free() {
    let (cluster, call, recorded) = checked().await;
    change_block(&cluster, |block| {
        let now = time::OffsetDateTime::now_utc();
        block
            .release_by_handle(&HandleId::new("net.a"), None, 0, now)
            .unwrap();
    })
    .await;
    let found = differences(&cluster.store, &call, &recorded).await.unwrap();
    assert_eq!(found, ["10.65.166.128 is free in block 10.65.166.128/26"]);
    let error = check(&cluster.store, &call, &recorded).await.unwrap_err();
    assert_eq!(
        (error.code, error.details),
        (Code::CHECK_FAILED, found[0].clone())
    );
}

#[tokio::test]
async fn check_reports_an_address_with_another_owner_or_node() {
    let (cluster, call, recorded) = checked().await;
    change_block(&cluster, |block| {
        block.attributes[0].handle_id = Some("net.b".into())
    })
    .await;
    let found = differences(&cluster.store, &call, &recorded).await.unwrap();
    assert!(
        found[0].starts_with("10.65.166.128 is held by handle net.b, node node1, since "),
        "{found:?}"
    );

    let of_pod = IpamRequest {
        pod: Some(pod("shop", "web")),
        ..call
    };
    let found = differences(&cluster.store, &of_pod, &recorded)
        .await
        .unwrap();
    assert_eq!(
        found[0], "10.65.166.128 is held by another namespace",
        "{found:?}"
    );

    let (cluster, call, recorded) = checked().await;
    change_block(&cluster, |block| {
        block.attributes[0]
            .active_owner
            .insert("node".into(), "node9".into());
    })
    .await;
    let found = differences(&cluster.store, &call, &recorded).await.unwrap();
    assert_eq!(
        found,
        ["10.65.166.128 is allocated for node \"node9\", not \"node1\""]
    );
}

#[tokio::test]
async fn check_reports_a_missing_handle_or_a_low_handle_count() {
    let (cluster, call, recorded) = checked().await;
    cluster
        .store
        .delete::<Handle>(&HandleId::new("net.a"), None)
        .await
        .unwrap();
    let found = differences(&cluster.store, &call, &recorded).await.unwrap();
    assert_eq!(found, ["handle net.a does not exist"]);

    let (cluster, call, recorded) = checked().await;
    let mut handle = cluster.handle("net.a").unwrap();
    handle.block.remove(&cidr("10.65.166.128/26"));
    cluster.store.put(&HandleId::new("net.a"), &handle);
    let found = differences(&cluster.store, &call, &recorded).await.unwrap();
    assert_eq!(
        found,
        ["handle net.a counts 0 addresses in block 10.65.166.128/26, which holds 1"]
    );
}

#[tokio::test]
async fn check_reports_an_address_outside_all_blocks() {
    let (cluster, call, mut recorded) = checked().await;
    recorded.push("192.0.2.1".parse().unwrap());
    assert_eq!(
        differences(&cluster.store, &call, &recorded).await.unwrap(),
        ["192.0.2.1 is in no block"]
    );
}

/// Another plugin of the list adds addresses to the result.
#[tokio::test]
async fn check_accepts_the_addresses_of_another_plugin_and_reports_a_lost_one_beside_them() {
    let (cluster, call, own) = checked().await;
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let with_others: Vec<_> = own
        .iter()
        .copied()
        .chain([ip("192.0.2.1"), ip("2001:db8::1")])
        .collect();
    check(&cluster.store, &call, &with_others).await.unwrap();

    let ipv4 = IpamRequest {
        assign_ipv6: false,
        ..call.clone()
    };
    check(&cluster.store, &ipv4, &[own[0], ip("2001:db8::1")])
        .await
        .unwrap();
    let details = async |call: &IpamRequest, recorded: &[IpAddr]| {
        check(&cluster.store, call, recorded)
            .await
            .unwrap_err()
            .details
    };
    // This plugin assigned one IPv4 and one IPv6 address, and their blocks are gone.
    assert_eq!(
        details(&call, &[own[0], ip("2001:db8::1")]).await,
        "2001:db8::1 is in no block"
    );
    assert_eq!(
        details(&ipv4, &[ip("192.0.2.1")]).await,
        "192.0.2.1 is in no block"
    );
    change_block(&cluster, |block| {
        block
            .release_by_handle(
                &HandleId::new("net.a"),
                None,
                0,
                time::OffsetDateTime::now_utc(),
            )
            .unwrap();
    })
    .await;
    assert_eq!(
        details(&call, &with_others).await,
        "10.65.166.128 is free in block 10.65.166.128/26"
    );
}

/// The pool was created again with another block size while the block was in use.
#[tokio::test]
async fn check_finds_a_block_of_a_former_block_size() {
    let (cluster, call, recorded) = checked().await;
    cluster.pool("pool4", "10.65.0.0/16", 28);
    check(&cluster.store, &call, &recorded).await.unwrap();
    cluster
        .store
        .delete::<Handle>(&HandleId::new("net.a"), None)
        .await
        .unwrap();
    let found = differences(&cluster.store, &call, &recorded).await.unwrap();
    assert_eq!(found, ["handle net.a does not exist"]);
}
