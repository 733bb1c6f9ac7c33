//! `show` on the embedded datastore.

use libcalico::api::{IpPool, ObjectKey};
use libcalico::ipam::Block;
use libcalico::store::{Kind, Store};
use serde_json::json;

use crate::cli::testing::Shell;
use node_process::process::block_on;

#[test]
fn show_prints_pools_and_blocks_as_tables_and_json() {
    let shell = Shell::with_pool();
    for handle in ["a", "b", "c", "d"] {
        shell.allocate(handle);
    }
    let table = shell.ok(&["show", "--show-blocks"]);
    let lines: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert_eq!(
        lines[0][1..7],
        [
            "GROUPING",
            "CIDR",
            "IPS TOTAL",
            "IPS IN USE",
            "IPS RESERVED",
            "IPS FREE"
        ]
    );
    let pool = [
        "IP Pool",
        "10.0.0.0/24",
        "256",
        "4 (2%)",
        "0 (0%)",
        "252 (98%)",
        "default-ipv4-ippool",
        "[#---------]",
    ];
    assert_eq!(lines[1][1..9], pool);
    assert_eq!(
        (lines[2][1], lines[2][4], lines[2][7], lines[2][8]),
        ("Block", "4 (50%)", "host:node1", "[#####-----]")
    );
    assert!(!shell.ok(&["show"]).contains("Block"));

    let shown = shell.json(&["show", "--show-blocks"]);
    let pool = &shown["pools"][0];
    assert_eq!(
        (&pool["capacity"], &pool["inUse"], &pool["free"]),
        (&json!(256), &json!(4), &json!(252))
    );
    assert_eq!(pool["blocks"][0]["affinity"], "host:node1");
    assert_eq!(pool["blocks"][0]["capacity"], 8);
    assert_eq!(shown["blocksOutsidePools"], json!([]));
    assert!(
        shell
            .ok(&["show", "-o", "yaml"])
            .starts_with("pools:\n- name: default-ipv4-ippool\n")
    );
}

#[test]
fn show_selects_a_pool_by_name_or_range() {
    let shell = Shell::with_pool();
    shell.ok(&["init", "--node", "node1", "--pool", "fd00::/64"]);
    assert_eq!(shell.json(&["show"])["pools"].as_array().unwrap().len(), 2);
    for pool in ["default-ipv6-ippool", "fd00::/64"] {
        let shown = shell.json(&["show", "--pool", pool]);
        assert_eq!(shown["pools"][0]["capacity"], "18446744073709551616");
        assert_eq!(shown["pools"].as_array().unwrap().len(), 1);
    }
    assert!(
        shell
            .error(&["show", "--pool", "nope"])
            .contains("no pool is called `nope`")
    );
}

#[test]
fn show_reports_an_invalid_reservation() {
    let shell = Shell::with_pool();
    shell.put(
        "/calico/resources/v3/projectcalico.org/ipreservations/r",
        r#"{"metadata":{"name":"r"},"spec":{"reservedCIDRs":["ten","10.0.0.1"]}}"#,
    );
    let ran = shell.run(&["show"]);
    assert!(
        ran.notices
            .contains("IPReservation r: ignoring the entry `ten`, which is neither"),
        "{}",
        ran.notices
    );
    assert!(ran.out.contains("1 (0%)"), "{}", ran.out);
}

#[test]
fn show_of_an_address_in_use_names_owner_block_and_endpoint() {
    let shell = Shell::with_pool();
    let ip = shell.allocate("net.c1");
    shell.endpoint("web", &ip);
    let text = shell.ok(&["show", &format!("--ip={ip}")]);
    for expected in [
        format!("IP {ip} is in use\nHandle ID: net.c1\nSince: 2").as_str(),
        "Active Owner Attributes:\n  namespace: default\n  node: node1\n  pod: net.c1\n  \
         timestamp: ",
        "/29 of host:node1\nPool: default-ipv4-ippool\nEndpoint: default/web on node node1\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let shown = shell.json(&["show", "--ip", &ip]);
    assert_eq!(
        (&shown["state"], &shown["handle"]),
        (&json!("inUse"), &json!("net.c1"))
    );
    assert_eq!(shown["endpoints"], json!(["default/web on node node1"]));
}

#[test]
fn show_finds_a_block_of_a_former_size_or_reports_an_unreadable_block() {
    let shell = Shell::with_pool();
    let ip = shell.allocate("net.c1");
    let key = ObjectKey::global("default-ipv4-ippool");
    let mut pool = block_on(shell.store.get::<IpPool>(&key)).unwrap();
    pool.value.spec.block_size = Some(32);
    block_on(shell.store.update(&key, &pool.value, &pool.revision)).unwrap();
    let shown = shell.json(&["show", "--ip", &ip]);
    assert_eq!(
        (&shown["state"], &shown["handle"]),
        (&json!("inUse"), &json!("net.c1"))
    );
    assert!(
        shown["block"]
            .as_str()
            .is_some_and(|block| block.ends_with("/29")),
        "{shown}"
    );

    let (block, _) = shell.blocks().remove(0);
    shell.remove(&Block::path(&block));
    shell.put(&Block::path(&block), "{");
    let error = shell.error(&["show", "--ip", &ip]);
    assert!(error.contains(&Block::path(&block)), "{error}");
}

#[test]
fn show_counts_blocks_of_a_former_size() {
    let shell = Shell::with_pool();
    shell.allocate("net.c1");
    assert_eq!(
        shell.json(&["show"])["pools"][0].get("formerSizeBlocks"),
        None
    );
    assert!(!shell.ok(&["show"]).contains("another size"));
    let key = ObjectKey::global("default-ipv4-ippool");
    let mut pool = block_on(shell.store.get::<IpPool>(&key)).unwrap();
    pool.value.spec.block_size = Some(30);
    block_on(shell.store.update(&key, &pool.value, &pool.revision)).unwrap();
    shell.allocate("net.c2");
    assert_eq!(shell.json(&["show"])["pools"][0]["formerSizeBlocks"], 1);
    let text = shell.ok(&["show"]);
    assert!(
        text.ends_with("\npool default-ipv4-ippool: 1 of 2 blocks have another size than /30\n"),
        "{text}"
    );
}

#[test]
fn show_of_an_unassigned_address_names_its_state() {
    let shell = Shell::with_pool();
    shell.apply(&json!({
        "apiVersion": "projectcalico.org/v3", "kind": "IPReservation", "metadata": {"name": "r"},
        "spec": {"reservedCIDRs": ["10.0.0.128/31"]},
    }));
    let state = |ip: &str| shell.json(&["show", "--ip", ip])["state"].clone();
    assert_eq!(state("10.0.0.200"), "free");
    assert_eq!(state("10.0.0.129"), "reserved");
    assert_eq!(state("10.9.0.1"), "notInPool");
    assert_eq!(
        shell.ok(&["show", "--ip", "10.9.0.1"]),
        "10.9.0.1 is not assigned: it is in no pool\n"
    );
}

#[test]
fn show_of_a_cooling_address_names_its_release_time() {
    let shell = Shell::with_pool();
    shell.apply(&json!({
        "apiVersion": "projectcalico.org/v3", "kind": "IPAMConfiguration",
        "metadata": {"name": "default"},
        "spec": {"strictAffinity": false, "ipCooldownSeconds": 600},
    }));
    let ip = shell.allocate("a");
    shell.ok(&["release", &ip]);
    let text = shell.ok(&["show", "--ip", &ip]);
    assert!(
        text.contains(&format!("{ip} is not assigned: it was released at 2")),
        "{text}"
    );
    assert!(text.contains("cools down for 600 seconds"), "{text}");
    assert_eq!(shell.json(&["show", "--ip", &ip])["state"], "resting");
}

#[test]
fn borrowed_addresses_with_a_missing_attribute_are_shown() {
    let shell = Shell::with_pool();
    shell.put(
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.8-30",
        r#"{"cidr":"10.0.0.8/30","affinity":"host:node1","allocations":[0,7,null,null],"unallocated":[2,3],
                "attributes":[{"handle_id":"h","secondary":{"node":"node2","namespace":"ns","pod":"web"}}]}"#,
    );
    let ran = shell.run(&["show", "--show-borrowed"]);
    let row = "| 10.0.0.8 | node2          | 10.0.0.8/30 | node1       | pod  | ns/web       |\n";
    assert!(ran.out.contains(row), "{}", ran.out);
    assert!(
        ran.notices
            .starts_with("Note: found 1 IP allocations without"),
        "{}",
        ran.notices
    );
    let shown = shell.json(&["show", "--show-borrowed"]);
    assert_eq!(
        (&shown["withoutNode"], &shown["addresses"][0]["allocatedTo"]),
        (&json!(1), &json!("ns/web"))
    );
}

#[test]
fn borrowed_addresses_of_an_empty_datastore_are_an_empty_table() {
    let table = "\
+----+----------------+-------+-------------+------+--------------+
| IP | BORROWING-NODE | BLOCK | BLOCK OWNER | TYPE | ALLOCATED-TO |
+----+----------------+-------+-------------+------+--------------+
+----+----------------+-------+-------------+------+--------------+
";
    assert_eq!(Shell::new().ok(&["show", "--show-borrowed"]), table);
}

#[test]
fn configuration_without_stored_settings_is_the_built_in_one() {
    let shell = Shell::new();
    let table = "\
+------------------------------+---------+
| PROPERTY                     | VALUE   |
+------------------------------+---------+
| StrictAffinity               | false   |
| AutoAllocateBlocks           | true    |
| MaxBlocksPerHost             | 0       |
| KubeVirtVMAddressPersistence | Enabled |
| IPCooldownSeconds            | 0       |
+------------------------------+---------+
";
    assert_eq!(shell.ok(&["show", "--show-configuration"]), table);
    let shown = shell.json(&["show", "--show-configuration"]);
    assert_eq!(shown["kubeVirtVMAddressPersistence"], "Enabled");
    assert_eq!(
        (&shown["strictAffinity"], &shown["ipCooldownSeconds"]),
        (&json!(false), &json!(0))
    );
}

#[test]
fn configuration_of_stored_settings_names_a_different_v3_object() {
    let shell = Shell::new();
    shell.put(
        "/calico/ipam/v2/config",
        r#"{"auto_allocate_blocks":true,"ipCooldownSeconds":30}"#,
    );
    shell.put(
        "/calico/resources/v3/projectcalico.org/ipamconfigurations/default",
        r#"{"metadata":{"name":"default"},"spec":{"strictAffinity":true}}"#,
    );
    let ran = shell.run(&["show", "--show-configuration"]);
    assert!(
        ran.out
            .contains("| IPCooldownSeconds            | 30      |"),
        "{}",
        ran.out
    );
    assert!(
        ran.notices.contains("strictAffinity is false, not true"),
        "{}",
        ran.notices
    );
}
