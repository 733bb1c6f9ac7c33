//! A cluster in which upstream's plugins are replaced by ours. After each step of each recording on
//! Kubernetes, our next step has the same result as upstream's, except the intended differences.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use integration_tests::accounts::Accounts;
use integration_tests::golden::continued::{State, states};
use integration_tests::golden::replay::Target;
use integration_tests::golden::{cluster, recording};
use integration_tests::kernel;
use integration_tests::kubernetes::{ApiServer, Objects, on_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::plugin::{Call, Plugins};
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

/// Reasons for which a new pod may get no address.
const NO_ROOM: [&str; 2] = [
    "cannot find a qualified ippool",
    "No IPs available in pools",
];

#[test]
fn calls_after_each_state_of_kdd1_recordings_continue_as_upstream() {
    continue_folder("kdd1", ApiGroup::CrdV1);
}

#[test]
fn calls_after_each_state_of_kdd3_recordings_continue_as_upstream() {
    continue_folder("kdd3", ApiGroup::V3);
}

fn continue_folder(folder: &str, group: ApiGroup) {
    on_kubernetes(|host, kubernetes| {
        let api = &kubernetes.api;
        api.define(group.api_version()).unwrap();
        cluster::prepare(api).unwrap();
        let mut wrong = Vec::new();
        for name in recording::names(folder).unwrap() {
            let recording = recording::read(folder, &name).unwrap();
            for (steps, state) in (1..).zip(states(&recording)) {
                for (what, continuation) in [
                    ("next step", next_step as Continuation),
                    ("newcomer", newcomer),
                ] {
                    let outcome = run(continuation, &state, host, api, group);
                    wrong.extend(
                        outcome
                            .err()
                            .map(|e| format!("{folder}/{name} after {steps} steps, {what}: {e:#}")),
                    );
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

type Continuation = fn(&State<'_>, &Target<'_>) -> Result<()>;

/// Runs a continuation on a new host with an empty datastore.
fn run(
    continuation: Continuation,
    state: &State<'_>,
    host: &Host,
    api: &ApiServer,
    group: ApiGroup,
) -> Result<()> {
    host.reinstalled(|host| {
        let kubeconfig = cluster::write_kubeconfig(host, api, api.admin_identity())?;
        let store = Store::Kubernetes(Objects::new(api.admin(), group, kubeconfig));
        let target = Target {
            host,
            plugins: &Plugins::locate()?,
            store: &store,
            kubernetes: Some(api.admin()),
        };
        let outcome = continuation(state, &target);
        for pod in host.pods()? {
            host.delete_pod(&pod)?;
        }
        cluster::clear(api, group)?;
        outcome
    })
}

/// Runs upstream's next step with our plugin, compares the results, and deletes every pod.
fn next_step(state: &State<'_>, target: &Target<'_>) -> Result<()> {
    state.make(target)?;
    let found = state.differences_of_next_step(target)?;
    ensure!(
        found.is_empty(),
        "{}",
        found.iter().map(|d| format!("\n  {d}")).collect::<String>()
    );
    state
        .next()
        .containers()
        .iter()
        .try_for_each(|container| succeed(&container.del(target)))?;
    all_gone(target)
}

/// Adds and deletes a pod that upstream has not seen. Then deletes every pod after its network
/// namespace.
fn newcomer(state: &State<'_>, target: &Target<'_>) -> Result<()> {
    state.make(target)?;
    let before = accounts(target)?;
    if let Some((add, del)) = state.newcomer(target)? {
        let outcome = add.try_run()?;
        let between = accounts(target)?;
        if outcome.exit == Some(0) {
            let address = |ip: &Value| {
                ip["address"]
                    .as_str()?
                    .split('/')
                    .next()?
                    .parse::<IpAddr>()
                    .ok()
            };
            let result = outcome.success();
            let given: Vec<IpAddr> = result["ips"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(address)
                .collect();
            ensure!(!given.is_empty(), "no address: {result}");
            ensure!(
                given
                    .iter()
                    .all(|ip| !before.held.contains_key(ip) && !before.used.contains_key(ip)),
                "{given:?}"
            );
            ensure!(
                before
                    .held
                    .iter()
                    .all(|(ip, holder)| between.held.get(ip) == Some(holder)),
                "{between:#?}"
            );
        } else {
            let reason = outcome.error().msg;
            ensure!(
                NO_ROOM.iter().any(|text| reason.contains(text)),
                "{outcome:?}"
            );
            ensure!(before.held == between.held, "{between:#?}");
        }
        succeed(&del)?;
        let after = accounts(target)?;
        ensure!(
            (&before.held, &before.used) == (&after.held, &after.used),
            "{after:#?}"
        );
    }
    for container in state.containers() {
        container.lose_namespace(target.host)?;
        succeed(&container.del(target))?;
    }
    all_gone(target)
}

fn succeed(call: &Call) -> Result<()> {
    let outcome = call.try_run()?;
    ensure!(
        outcome.exit == Some(0),
        "{}{}",
        outcome.stdout,
        outcome.stderr
    );
    Ok(())
}

fn accounts(target: &Target<'_>) -> Result<Accounts> {
    target.store.accounts()
}

fn all_gone(target: &Target<'_>) -> Result<()> {
    let accounts = accounts(target)?;
    ensure!(
        accounts.is_empty() && accounts.problems.is_empty(),
        "{accounts:#?}"
    );
    // Without a route of upstream, nothing proves the owner of a link, which the kernel deletes
    // after its network namespace.
    let deadline = Instant::now() + Duration::from_secs(60);
    while kernel::host()?["links"] != json!({}) {
        ensure!(Instant::now() < deadline, "{}", kernel::host()?["links"]);
        thread::sleep(Duration::from_millis(5));
    }
    let check = target.store.calico_ipam(target.plugins, &["check"])?;
    ensure!(
        check.exit == Some(0),
        "calico-ipam check: {}{}",
        check.stdout,
        check.stderr
    );
    Ok(())
}
