//! `calico doctor` lists deferred DELs, the oldest first.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dataplane::KernelNetwork;
use doctor::{Format, examine};
use installation::layout::{Layout, NET_DIR};
use serde_json::{Value, json};

/// Returns a journal entry that is `hours` old.
fn entry(container_id: &str, endpoint: &str, datastore: &str, hours: u64, reason: &str) -> Value {
    // Half an hour is added so that no age changes during the test.
    let age = Duration::from_secs(hours * 3600 + 1800);
    let noted = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - age;
    json!({
        "network": "net1", "container_id": container_id, "ifname": "eth0", "node": "node1",
        "datastore": datastore,
        "endpoint": ["shop", endpoint], "handles": [], "noted": noted.as_secs(), "reason": reason,
    })
}

#[tokio::test]
async fn doctor_lists_deferred_dels_and_unreadable_entries_oldest_first() {
    let root = tempfile::tempdir().unwrap();
    let journal = root.path().join("var/lib/calico/cni-journal");
    fs::create_dir_all(&journal).unwrap();
    for (name, text) in [
        (
            "a.json",
            entry("c1", "node1-cni-c1-eth0", "local /x.db", 26, "").to_string(),
        ),
        (
            "b.debt",
            entry(
                "c2",
                "node1-k8s-web-eth0",
                "etcd http://a:2379",
                77,
                "it is away",
            )
            .to_string(),
        ),
        ("c.json", "{".to_owned()),
        // The cached identity of a datastore is not a deferred DEL.
        ("d.datastore", "{}".to_owned()),
    ] {
        fs::write(journal.join(name), text).unwrap();
    }
    let report = examine(&Layout::below(root.path()), NET_DIR, &KernelNetwork).await;
    let report: Value = serde_json::from_str(&report.render(Format::Json)).unwrap();
    let check = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["name"] == "journal")
        .unwrap();
    let broken = format!(
        "{} cannot be read: EOF while parsing an object at line 1 column 1",
        journal.join("c.json").display()
    );
    let pod = "pod shop/web in etcd http://a:2379 for 3d5h because of: it is away";
    let container = "container c1 in local /x.db for 1d2h";
    let seen =
        format!("3 deferred DELs have not released their addresses: {broken}; {pod}; {container}");
    assert_eq!(
        (&check["state"], &check["seen"]),
        (&json!("warn"), &json!(seen))
    );
}
