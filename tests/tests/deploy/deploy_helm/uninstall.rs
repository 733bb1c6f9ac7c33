//! `helm uninstall` while a pod runs.

use std::collections::BTreeSet;

use integration_tests::cluster::on_installation;
use integration_tests::journal::journal_entries;
use integration_tests::kubernetes::ApiServer;
use integration_tests::manifests::{stored, template, write_list};
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use super::can_render;
use super::released::{Helm, chart};
use super::same::is_kept;

fn install(api: &ApiServer) {
    Helm::new(api)
        .unwrap()
        .run(&["install", "calico-cni", &chart()])
        .unwrap();
}

#[test]
fn helm_uninstall_keeps_the_objects_without_which_no_pod_can_be_deleted() {
    if !can_render() {
        return;
    }
    on_installation(ApiGroup::CrdV1, install, |cluster, servers, _| {
        let objects = template(&[]).unwrap();
        let file = write_list(&cluster.host.dir("chart"), objects.values()).unwrap();
        let present = |api: &ApiServer| -> BTreeSet<String> {
            stored(api, &file).unwrap().into_keys().collect()
        };
        let all: BTreeSet<String> = objects.keys().cloned().collect();
        let kept: BTreeSet<String> = objects
            .keys()
            .filter(|name| is_kept(name))
            .cloned()
            .collect();
        assert_eq!(present(&servers.api), all);

        let conf = cluster.conf("node1", json!({ "cniVersion": "1.1.0" }));
        let [first, last, later] = [1, 2, 3].map(|number| cluster.pod(number));
        cluster.add(&first, &conf);
        cluster.add(&last, &conf);
        Helm::new(&servers.api)
            .unwrap()
            .run(&["uninstall", "calico-cni"])
            .unwrap();
        assert_eq!(present(&servers.api), kept);
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
        assert_eq!(present(&servers.api), all);
        servers.api.cni_user().unwrap();
        cluster.await_replayed(&last, &conf);
        let accounts = cluster.accounts();
        assert!(
            accounts.is_empty() && accounts.problems.is_empty(),
            "{accounts:#?}"
        );
    });
}
