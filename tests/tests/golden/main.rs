//! Replays the recordings of upstream, except those with Kubernetes, against our programs on etcd
//! and on the embedded datastore.

mod etcd;
mod local;

use integration_tests::golden::recording;

/// Recordings that golden_kubernetes.rs replays.
const ELSEWHERE: [&str; 1] = ["k8s-on-etcd"];

/// Defines a test for each recording on each datastore.
macro_rules! replayed {
    ($($test:ident $name:literal)*) => {
        mod on_etcd {
            $(#[test] fn $test() { crate::etcd::replay($name) })*
        }
        mod on_local {
            $(#[test] fn $test() { crate::local::replay($name) })*
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
