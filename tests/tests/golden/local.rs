//! A recording on the embedded datastore.

use integration_tests::golden::recording;
use integration_tests::golden::replay::{Lab, replay as run};
use integration_tests::namespaces::isolated;
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;

pub(crate) fn replay(name: &str) {
    isolated(|host| {
        let plugins = Plugins::locate().unwrap();
        let store = Store::local(host, &plugins);
        let lab = Lab {
            host,
            plugins: &plugins,
            store: &store,
            kubernetes: None,
        };
        run(&recording::read("etcd", name).unwrap(), &lab).unwrap();
    });
}
