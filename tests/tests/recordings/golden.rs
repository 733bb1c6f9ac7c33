//! Replays the recordings of upstream, except those with Kubernetes, against our programs on etcd
//! and on the embedded datastore.

use integration_tests::etcd::{Etcd, REQUIRES};
use integration_tests::golden::recording;
use integration_tests::golden::replay::{Target, replay};
use integration_tests::namespaces::isolated;
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use integration_tests::store::Store;
use integration_tests::{Place, on};

/// Recordings that golden_kubernetes.rs replays.
const ELSEWHERE: [&str; 1] = ["k8s-on-etcd"];

/// Runs a test on a private host with an empty datastore.
fn on(place: Place, test: fn(&Target<'_>)) {
    if place == Place::Etcd && !Etcd::installed() {
        return skipped(REQUIRES);
    }
    isolated(|host| {
        let plugins = Plugins::locate().unwrap();
        let store = match place {
            Place::Etcd => Store::etcd(host).unwrap(),
            _ => Store::local(host, &plugins),
        };
        test(&Target {
            host,
            plugins: &plugins,
            store: &store,
            kubernetes: None,
        });
    });
}

/// Defines a test for each recording.
macro_rules! replayed {
    ($($test:ident $name:literal)*) => {
        $(
            #[on(etcd, local)]
            fn $test(target: &Target<'_>) {
                replay(&recording::read("etcd", $name).unwrap(), target).unwrap();
            }
        )*

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
