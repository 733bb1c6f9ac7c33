//! Replays the recordings of upstream, except those with Kubernetes, against our programs on etcd
//! and on the embedded datastore.

use integration_tests::etcd::{Etcd, REQUIRES};
use integration_tests::golden::recording;
use integration_tests::golden::replay::{Lab, replay};
use integration_tests::namespaces::{Host, isolated};
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use integration_tests::store::Store;

/// Recordings that golden_kubernetes.rs replays.
const ELSEWHERE: [&str; 1] = ["k8s-on-etcd"];

fn on_etcd(name: &str) {
    if !Etcd::installed() {
        return skipped(REQUIRES);
    }
    replay_on(name, |host, _| Store::etcd(host).unwrap());
}

fn on_local(name: &str) {
    replay_on(name, Store::local);
}

fn replay_on(name: &str, start: impl FnOnce(&Host, &Plugins) -> Store + Send) {
    isolated(|host| {
        let plugins = Plugins::locate().unwrap();
        let store = start(host, &plugins);
        let lab = Lab {
            host,
            plugins: &plugins,
            store: &store,
            kubernetes: None,
        };
        replay(&recording::read("etcd", name).unwrap(), &lab).unwrap();
    });
}

/// Defines a test for each recording on each datastore.
macro_rules! replayed {
    ($($test:ident $name:literal)*) => {
        mod etcd {
            $(#[test] fn $test() { crate::on_etcd($name) })*
        }
        mod local {
            $(#[test] fn $test() { crate::on_local($name) })*
        }

        #[test]
        fn every_recording_is_in_the_list() {
            let mut listed = vec![$($name),*];
            listed.extend(ELSEWHERE);
            listed.sort();
            assert_eq!(recording::names("etcd").unwrap(), listed);
        }
    };
}

replayed! {
    args_ip "args-ip"
    borrow "borrow"
    container_settings "container-settings"
    dual_stack "dual-stack"
    errors "errors"
    host_local "host-local"
    ipam_alone "ipam-alone"
    mtu_queues "mtu-queues"
    netns_gone "netns-gone"
    no_pool "no-pool"
    plain_profile "plain-profile"
    pool_exhausted "pool-exhausted"
    v4_add_del "v4-add-del"
    v4_two_pods "v4-two-pods"
    v6_only "v6-only"
    versions "versions"
}
