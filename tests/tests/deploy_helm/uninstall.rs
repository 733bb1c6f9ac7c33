//! `helm uninstall` while a pod runs.

use std::collections::BTreeSet;
use std::fs;

use integration_tests::cluster::on_installation;
use integration_tests::command::run;
use integration_tests::journal::journal_entries;
use integration_tests::kubernetes::ApiServer;
use integration_tests::manifests::{NAMESPACE, deploy, helm, parse, template};
use serde_json::{Value, json};

use super::can_render;
use super::same::is_kept;

fn release(api: &ApiServer, command: &[&str]) {
    let kubeconfig = api.admin_kubeconfig().display().to_string();
    let place = ["--namespace", NAMESPACE, "--kubeconfig", &kubeconfig];
    run(&helm().unwrap().display().to_string(), &[command, &place].concat()).unwrap();
}

fn install(api: &ApiServer) {
    release(api, &["install", "calico-cni", &deploy("helm/calico-cni").display().to_string()]);
}

fn stored(api: &ApiServer, file: &str) -> BTreeSet<String> {
    let list = api.kubectl(&["get", "--ignore-not-found", "-f", file, "-o", "json"]).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let objects: Vec<String> = list["items"].as_array().unwrap().iter().map(Value::to_string).collect();
    parse(&objects.join("\n---\n")).unwrap().into_keys().collect()
}

#[test]
fn helm_uninstall_keeps_the_objects_without_which_no_pod_can_be_deleted() {
    if !can_render() {
        return;
    }
    on_installation(install, |cluster, servers, _| {
        let objects = template(&[]).unwrap();
        let file = cluster.host.dir("chart").join("list.json");
        let list: Vec<&Value> = objects.values().collect();
        fs::write(&file, json!({ "apiVersion": "v1", "kind": "List", "items": list }).to_string()).unwrap();
        let file = file.display().to_string();
        let all: BTreeSet<String> = objects.keys().cloned().collect();
        let kept: BTreeSet<String> = objects.keys().filter(|name| is_kept(name)).cloned().collect();
        assert_eq!(stored(&servers.api, &file), all);

        let conf = cluster.conf("node1", json!({ "cniVersion": "1.1.0" }));
        let [first, last, later] = [1, 2, 3].map(|number| cluster.pod(number));
        cluster.add(&first, &conf);
        cluster.add(&last, &conf);
        release(&servers.api, &["uninstall", "calico-cni"]);
        assert_eq!(stored(&servers.api, &file), kept);
        cluster.add(&later, &conf);
        cluster.delete(&first, &conf);
        cluster.delete(&later, &conf);
        assert!(journal_entries().is_empty());

        // A new key of the API server stands for the expiry of the token.
        servers.api.rotate_token_key().unwrap();
        cluster.delete(&last, &conf);
        assert_eq!(journal_entries().len(), 1);

        // The next call of the plugin on the node completes the deferred DEL.
        install(&servers.api);
        assert_eq!(stored(&servers.api, &file), all);
        servers.api.cni_user().unwrap();
        cluster.verb("STATUS", &last, &conf).run().unwrap().success();
        let accounts = cluster.accounts();
        assert!(accounts.is_empty() && accounts.problems.is_empty() && journal_entries().is_empty(), "{accounts:#?}");
    });
}
