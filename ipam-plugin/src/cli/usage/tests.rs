use serde_json::json;

use crate::cli::testing::Shell;

fn cells(table: &str, first: &str) -> Vec<String> {
    let line = table
        .lines()
        .find(|line| line.starts_with(&format!("| {first} ")));
    let line = line.unwrap_or_else(|| panic!("no row {first}: {table}"));
    line.split('|')
        .map(|cell| cell.trim().to_owned())
        .filter(|cell| !cell.is_empty())
        .collect()
}

fn with_two_addresses() -> Shell {
    let shell = Shell::with_pool();
    shell.allocate("a");
    shell.allocate_tunnel("ipip-tunnel-addr-node1");
    shell
}

#[test]
fn usage_prints_pools_nodes_and_namespaces_as_tables() {
    let table = with_two_addresses().ok(&["usage"]);
    let pool = [
        "default-ipv4-ippool",
        "10.0.0.0/24",
        "pods",
        "256",
        "2",
        "0",
        "0",
        "1",
        "0",
        "1",
        "31",
        "254",
    ];
    let cells_of_pool = cells(&table, "default-ipv4-ippool");
    assert_eq!(cells_of_pool[..12], pool);
    assert_eq!(
        cells_of_pool[12..],
        ["158 (node1)"],
        "six of the block and 19 blocks more"
    );
    assert_eq!(
        cells(&table, "node1"),
        ["node1", "IPv4", "1", "2", "0", "0", "6", "158"]
    );
    assert_eq!(cells(&table, "default "), ["default", "1", "0"]);
    assert_eq!(cells(&table, "(tunnels)"), ["(tunnels)", "1", "0"]);
    assert!(table.contains("| few addresses |"), "{table}");
    assert!(
        table.ends_with("free in fragmented blocks: 6\nmore pods with IPv4: at most 158\n"),
        "{table}"
    );
}

#[test]
fn usage_prints_every_number_as_json() {
    let shell = with_two_addresses();
    shell.ok(&["init", "--node", "node1", "--pool", "fd00::/48"]);
    let usage = shell.json(&["usage"]);
    let node = &usage["nodes"][0];
    let counts =
        ["node", "ipVersion", "blocks", "used", "free", "fits"].map(|key| node[key].clone());
    assert_eq!(
        counts,
        [
            json!("node1"),
            json!(4),
            json!(1),
            json!(2),
            json!(6),
            json!(158)
        ]
    );
    assert_eq!(
        usage["pools"][0]["fullestNode"],
        json!({"node": "node1", "addresses": 158})
    );
    assert_eq!(usage["pools"][0]["sparseBlocks"], 1);
    assert_eq!(usage["pools"][1]["fullestNode"], json!(null));
    assert_eq!(usage["pools"][1]["capacity"], (1u128 << 80).to_string());
    assert_eq!(
        usage["fits"][1],
        json!({"ipVersion": 6, "pods": 20 * 64, "onRequest": 0})
    );
    assert_eq!(
        usage["fragmented"]["blocks"][0]["reasons"],
        json!(["fewAddresses"])
    );
    assert_eq!(usage["nodeSelectorsConsidered"], true);
}

#[test]
fn usage_selects_a_table_a_node_or_a_namespace() {
    let shell = with_two_addresses();
    let parts = |line: &[&str]| -> Vec<String> {
        let usage = shell.json(line);
        let is_part =
            |key: &&String| !["corruptBlocks", "nodeSelectorsConsidered"].contains(&key.as_str());
        let mut parts: Vec<String> = usage
            .as_object()
            .unwrap()
            .keys()
            .filter(is_part)
            .cloned()
            .collect();
        parts.sort();
        parts
    };
    assert_eq!(parts(&["usage", "--by", "namespace"]), ["namespaces"]);
    assert_eq!(
        parts(&["usage", "--by", "node"]),
        ["borrowed", "nodes", "withoutNode"]
    );
    assert_eq!(
        parts(&["usage", "--by", "pool"]),
        ["fits", "outsidePools", "pools"]
    );
    assert_eq!(
        shell.json(&["usage", "--node", "node1"])["nodes"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert!(
        shell
            .error(&["usage", "--node", "node2"])
            .starts_with("no node node2 exists")
    );
    let of = |namespace: &str| shell.json(&["usage", "-n", namespace])["namespaces"][0].clone();
    assert_eq!(
        of("default"),
        json!({"namespace": "default", "ipv4": 1, "ipv6": 0})
    );
    assert_eq!(
        of("other"),
        json!({"namespace": "other", "ipv4": 0, "ipv6": 0})
    );
}

#[test]
fn usage_counts_cooling_addresses_apart_until_their_time_is_over() {
    let shell = Shell::with_pool();
    let configure = |seconds: u32| {
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPAMConfiguration",
            "metadata": {"name": "default"},
            "spec": {"strictAffinity": false, "ipCooldownSeconds": seconds},
        }))
    };
    configure(600).outcome.unwrap();
    let address = shell.allocate("a");
    shell.ok(&["release", &address]);
    let counts = || {
        let pool = shell.json(&["usage", "--by", "pool"])["pools"][0].clone();
        ["used", "cooling", "free"].map(|key| pool[key].as_u64().unwrap())
    };
    assert_eq!(counts(), [0, 1, 255]);
    configure(0).outcome.unwrap();
    assert_eq!(counts(), [0, 0, 256]);
}

#[test]
fn usage_names_corrupt_and_unreadable_blocks() {
    let shell = with_two_addresses();
    shell.put("/calico/ipam/v2/assignment/ipv4/block/10.9.0.0-29", "{");
    shell.put(
        "/calico/ipam/v2/assignment/ipv4/block/10.9.0.8-29",
        r#"{"cidr":"10.9.0.8/29","affinity":"host:node1"}"#,
    );
    let ran = shell.run(&["usage"]);
    assert!(
        ran.notices
            .contains("note: block 10.9.0.0/29 is not counted: "),
        "{}",
        ran.notices
    );
    assert!(
        ran.notices
            .contains("note: corrupt blocks: 1; `calico-ipam check` names them"),
        "{}",
        ran.notices
    );
}

#[test]
fn usage_names_unreadable_pools_and_malformed_selectors() {
    let shell = with_two_addresses();
    let pools = "/calico/resources/v3/projectcalico.org/ippools";
    shell.put(&format!("{pools}/broken"), "{");
    let odd = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "odd"},
        "spec": {"cidr": "10.1.0.0/24", "nodeSelector": "("},
    });
    shell.put(&format!("{pools}/odd"), &odd.to_string());
    let ran = shell.run(&["usage"]);
    assert!(
        ran.notices.contains("note: IPPool broken is not counted: "),
        "{}",
        ran.notices
    );
    assert!(
        ran.notices
            .contains("note: IPPool odd: nodeSelector `(` is invalid: "),
        "{}",
        ran.notices
    );
    assert!(
        ran.notices
            .contains("; an ADD that evaluates the selector fails\n"),
        "{}",
        ran.notices
    );
}

#[test]
fn usage_of_a_node_counts_lent_addresses_as_those_in_blocks_of_other_owners() {
    let shell = Shell::with_pool();
    let block = json!({
        "cidr": "10.0.0.248/29", "affinity": "host:node1", "unallocated": [1, 2, 3, 4, 5, 6, 7],
        "allocations": [0, null, null, null, null, null, null, null],
        "attributes": [{
            "handle_id": "h", "secondary": {"node": "node2", "namespace": "default", "pod": "b"},
        }],
    });
    shell.put(
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.248-29",
        &block.to_string(),
    );
    let table = shell.ok(&["usage", "--node", "node1"]);
    assert_eq!(
        cells(&table, "node1")[..7],
        ["node1", "IPv4", "1", "0", "0", "1", "7"]
    );
    assert!(
        table
            .contains("\nin use in blocks of other owners: 1; `calico-ipam show --show-borrowed` "),
        "{table}"
    );
}
