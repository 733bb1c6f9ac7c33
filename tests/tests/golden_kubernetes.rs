//! Every recording of upstream on Kubernetes, replayed against our binaries on a real API server.
//!
//! One server for a folder; between recordings everything in it is deleted and the host reinstalled.
//! `GOLDEN=<name>` replays one recording alone.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use integration_tests::golden::cluster;
use integration_tests::golden::recording::{self, Recording};
use integration_tests::golden::replay::{Lab, replay};
use integration_tests::kernel;
use integration_tests::kubernetes::{ApiServer, Objects, on_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

/// Folder, recording, and what is missing. An entry whose recording replays equal fails the test: the list only
/// shrinks.
const NOT_YET_EQUAL: [(&str, &str, &str); 0] = [];

#[test]
fn kdd1() {
    replay_all("kdd1", ApiGroup::CrdV1);
}

#[test]
fn kdd3() {
    replay_all("kdd3", ApiGroup::V3);
}

#[test]
fn what_is_not_yet_equal_is_a_recording() {
    for (folder, name, reason) in NOT_YET_EQUAL {
        assert!(recording::names(folder).unwrap().iter().any(|known| known == name), "{folder}/{name}");
        assert!(!reason.is_empty(), "{folder}/{name} has no reason");
    }
}

fn replay_all(folder: &str, group: ApiGroup) {
    let only = std::env::var("GOLDEN").ok();
    let names = recording::names(folder).unwrap().into_iter();
    let names: Vec<String> = names.filter(|name| only.as_ref().is_none_or(|only| only == name)).collect();
    on_kubernetes(|host, kubernetes| {
        let api = &kubernetes.api;
        api.define_anything(group.api_version());
        cluster::prepare(api).unwrap();
        let mut wrong = String::new();
        for name in &names {
            let outcome = replay_one(&recording::read(folder, name).unwrap(), host, api, group);
            let missing = NOT_YET_EQUAL.iter().find(|(in_folder, of, _)| (*in_folder, *of) == (folder, name));
            match (outcome, missing) {
                (Err(error), None) => wrong += &format!("{folder}/{name}: {error:#}\n"),
                (Ok(()), Some(_)) => wrong += &format!("{folder}/{name} replays equal: take it off the list\n"),
                (Ok(()), None) | (Err(_), Some(_)) => {}
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
    });
}

fn replay_one(recording: &Recording, host: &Host, api: &ApiServer, group: ApiGroup) -> Result<()> {
    let replayed = host.reinstalled(|host| {
        let kubeconfig = cluster::write_kubeconfig(host, api, api.admin_identity())?;
        let store = Store::Kubernetes(Objects::new(api.admin(), group, kubeconfig));
        replay(recording, &Lab { host, plugins: &Plugins::locate()?, store: &store, kubernetes: Some(api.admin()) })
    });
    Objects::new(api.admin(), group, api.admin_kubeconfig()).clear()?;
    await_no_links()?;
    replayed
}

/// The links of a pod whose namespace nothing holds any more go a little later.
fn await_no_links() -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while kernel::host()?["links"] != json!({}) {
        ensure!(Instant::now() < deadline, "links of the last recording are still there");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
