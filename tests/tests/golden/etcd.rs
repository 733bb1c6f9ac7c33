//! A recording on a real etcd.

use integration_tests::etcd::{self, Etcd};
use integration_tests::golden::recording;
use integration_tests::golden::replay::{Lab, replay as run};
use integration_tests::namespaces::isolated;
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use integration_tests::store::Store;

pub(crate) fn replay(name: &str) {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    isolated(|host| {
        let plugins = Plugins::locate().unwrap();
        let store = Store::etcd(host).unwrap();
        let lab = Lab {
            host,
            plugins: &plugins,
            store: &store,
            kubernetes: None,
        };
        run(&recording::read("etcd", name).unwrap(), &lab).unwrap();
    });
}
