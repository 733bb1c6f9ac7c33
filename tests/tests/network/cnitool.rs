//! All commands of `cnitool`, the CNI project's program that calls plugins.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use integration_tests::cluster::{Cluster, on};
use integration_tests::command::{present, run};
use integration_tests::content::Content;
use integration_tests::installed::built_programs;
use integration_tests::kernel;
use integration_tests::plugin::FOREIGN_PLUGINS;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

fn cnitool() -> Option<PathBuf> {
    if present("cnitool") {
        return Some("cnitool".into());
    }
    Some(built_programs().ok()?.join("bin/cnitool")).filter(|path| path.is_file())
}

#[on(etcd, local)]
fn every_command_of_cnitool_works_on_a_configuration_list(cluster: &Cluster<'_>) {
    let Some(cnitool) = cnitool() else {
        return skipped(
            "cnitool is not installed (Go module github.com/containernetworking/cni/cnitool)",
        );
    };
    // Version 1.3 of cnitool introduced `gc` and results of version 1.1.0.
    let knows_more = run(
        "sh",
        &["-c", &format!("{} 2>&1 || true", cnitool.display())],
    )
    .unwrap()
    .contains("gc");
    let version = if knows_more { "1.1.0" } else { "1.0.0" };
    cluster.load(&Content::dual_stack());
    let dir = cluster.host.dir("cnitool");
    let mut plugin = cluster.conf("node1", json!({}));
    let keys = plugin.as_object_mut().unwrap();
    keys.remove("name");
    keys.remove("cniVersion");
    let list = json!({ "cniVersion": version, "name": "net1", "plugins": [plugin] });
    fs::write(dir.join("10-net1.conflist"), list.to_string()).unwrap();

    let call = |verb: &str, netns: &str| -> Result<String> {
        let paths = [
            format!("NETCONFPATH={}", dir.display()),
            format!(
                "CNI_PATH={}:{FOREIGN_PLUGINS}",
                cluster.plugins.dir().display()
            ),
            cnitool.display().to_string(),
        ];
        let words: Vec<&str> = paths
            .iter()
            .map(String::as_str)
            .chain([verb, "net1", netns])
            .collect();
        run("env", &words)
    };
    let pod = cluster.pod(1);
    let netns = pod.netns.to_str().unwrap();

    if knows_more {
        call("status", netns).unwrap();
    }
    let result: Value = serde_json::from_str(&call("add", netns).unwrap()).unwrap();
    assert_eq!(result["cniVersion"], version);
    let address = result["ips"][0]["address"].as_str().unwrap();
    let in_pod = kernel::pod(cluster.host, &pod.name).unwrap();
    assert_eq!(
        in_pod["links"]["eth0"]["addrs"][0],
        format!("{address} global")
    );
    call("check", netns).unwrap();

    cluster
        .host
        .in_pod(&pod.name, || {
            run("ip", &["address", "flush", "dev", "eth0"])
        })
        .unwrap();
    let refused = call("check", netns).unwrap_err().to_string();
    assert!(
        refused.contains(address.trim_end_matches("/32")),
        "{refused}"
    );

    if knows_more {
        // For `gc`, cnitool calls GC without a list of valid attachments, which the plugin rejects.
        let refused = call("gc", netns).unwrap_err().to_string();
        assert!(refused.contains("cni.dev/valid-attachments"), "{refused}");
        assert_eq!(cluster.accounts().held.len(), 0);
    }
    call("del", netns).unwrap();
    call("del", netns).unwrap();
    cluster.assert_nothing_left();
}
