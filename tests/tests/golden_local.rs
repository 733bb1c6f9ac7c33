//! The recorded scenarios on the embedded datastore: the same keys and values as in etcd.

mod recordings;

use integration_tests::golden::{recording, replay};
use integration_tests::namespaces::isolated;
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;

fn replay(name: &str) {
    isolated(|host| {
        let plugins = Plugins::locate().unwrap();
        let store = Store::local(host, &plugins);
        replay::replay(&recording::read("etcd", name).unwrap(), host, &plugins, &store).unwrap();
    });
}
