//! A real API server with far fewer seats in the plugins' priority level than concurrent requests.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use integration_tests::cluster::{Cluster, ControlPlane, Pod, on_one_group};
use integration_tests::kernel;
use integration_tests::kubernetes::{Client, Request};
use integration_tests::plugin::{RUNTIMES_LIMIT, wait};
use integration_tests::{Place, on};
use serde_json::{Value, json};

use super::faulty;

/// Seats of the plugins' priority level.
const SEATS: usize = 3;
/// Number of concurrent requests of the other account.
const OTHERS: usize = 15 * SEATS;
/// Duration for which an admitted request of the other account occupies its seat.
const SEAT_TIME: Duration = Duration::from_secs(1);
/// Pause of the other account after a rejection.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of concurrent requests of an ADD.
const OF_ONE_PROCESS: usize = 9;

fn busy_time() -> Duration {
    let seconds = std::env::var("BUSY_SECONDS").map(|seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds.unwrap_or(10))
}

/// A body whose transfer takes as long as its request shall occupy a seat.
struct SlowBody(Duration);

impl Read for SlowBody {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        sleep(self.0);
        Ok(0)
    }
}

#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    admitted: AtomicUsize,
    refused: AtomicUsize,
}

/// Ends the load on drop, so that a failing test does not wait for it.
struct End<'a>(&'a Load);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Load {
    fn send(&self, client: &Client) {
        while !self.is_over.load(Ordering::Relaxed) {
            let answer = client
                .upload("/api/v1/namespaces/default/configmaps", SlowBody(SEAT_TIME))
                .unwrap();
            if answer.code == 429 {
                self.refused.fetch_add(1, Ordering::Relaxed);
                sleep(PAUSE);
            } else {
                self.admitted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Returns a priority level that rejects each request without a free seat, and a flow schema with
/// these accounts.
fn scarce(users: [&str; 2]) -> [Value; 2] {
    let subjects: Vec<Value> = users
        .iter()
        .map(|user| json!({ "kind": "User", "user": { "name": user } }))
        .collect();
    let resources = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true,
        "namespaces": ["*"],
    });
    let paths = json!({ "verbs": ["*"], "nonResourceURLs": ["*"] });
    [
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
            "metadata": { "name": "scarce" },
            "spec": { "type": "Limited", "limited": {
                "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0,
                "limitResponse": { "type": "Reject" },
            } },
        }),
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
            "metadata": { "name": "scarce" },
            "spec": {
                "priorityLevelConfiguration": { "name": "scarce" }, "matchingPrecedence": 100,
                "rules": [{
                    "subjects": subjects, "resourceRules": [resources], "nonResourceRules": [paths],
                }],
            },
        }),
    ]
}

/// Runs a test on an API server that no other test uses, because the priority level remains.
fn on(place: Place, test: impl FnOnce(&Cluster<'_>, &mut ControlPlane<'_>) + Send) {
    on_one_group(place.api_group(), test);
}

#[on(kubernetes_v1)]
fn calls_at_ten_times_the_admitted_load_succeed_with_few_retries(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let api = &control_plane.servers.api;
    let user = api.cni_user().unwrap();
    let other = api.service_account("default", "other").unwrap();
    api.bind(&other, "cluster-admin").unwrap();
    let kubeconfig = api
        .kubeconfig_to(&faulty.proxy.endpoint(), "cni", &user.identity)
        .unwrap();
    faulty.conf["kubernetes"]["kubeconfig"] = json!(kubeconfig);
    let leaving = faulty.pod();
    faulty.run("ADD", &leaving);
    let coming = [(); 4].map(|()| faulty.pod());
    for object in scarce([&user.user, &other.user]) {
        api.admin().apply_object(&object).unwrap();
    }

    let load = Load::default();
    let begun = Instant::now();
    let (audit, busy) = thread::scope(|scope| {
        let end = End(&load);
        for _ in 0..OTHERS {
            scope.spawn(|| load.send(&other.client));
        }
        while load.refused.load(Ordering::Relaxed) < OTHERS {
            assert!(
                begun.elapsed() < RUNTIMES_LIMIT,
                "the server refuses nothing"
            );
            sleep(PAUSE);
        }
        let (audit, busy) = (api.audit().unwrap(), Instant::now());
        let start = |verb: &'static str, pod: &Pod| {
            let (child, begun) = (faulty.call(verb, pod).spawn().unwrap(), Instant::now());
            scope.spawn(move || {
                let outcome = wait(child, begun, RUNTIMES_LIMIT).unwrap();
                eprintln!("{verb} took {:?}", outcome.wall);
                outcome.success();
            })
        };
        let calls = [("DEL", &leaving)]
            .into_iter()
            .chain(coming.iter().map(|pod| ("ADD", pod)));
        let calls: Vec<_> = calls.map(|(verb, pod)| start(verb, pod)).collect();
        sleep(busy_time());
        let busy = busy.elapsed();
        drop(end);
        calls.into_iter().for_each(|call| call.join().unwrap());
        (audit, busy)
    });
    let (admitted, refused) = (load.admitted.into_inner(), load.refused.into_inner());
    assert!(
        admitted + refused >= 10 * admitted,
        "of the other account {admitted} requests were admitted, {refused} refused"
    );

    let of_plugins: Vec<Request> = audit.of(&user.user).unwrap();
    let refused = of_plugins
        .iter()
        .filter(|request| request.code == Some(429))
        .count();
    // Each process may send its first requests before it gets a 429. After them, the node sends
    // at most one request per second.
    let (seconds, calls) = (busy.as_secs() as usize, coming.len() + 1);
    let most = OF_ONE_PROCESS * calls + seconds + 1;
    eprintln!(
        "{refused} of {} requests of the plugins were refused in {seconds} s",
        of_plugins.len()
    );
    assert!(
        refused > 0 && refused <= most,
        "{refused} in {seconds} s: {of_plugins:#?}"
    );

    // Replays the DEL if it was deferred.
    faulty.await_replayed(&leaving);
    let coming: Vec<_> = coming.iter().collect();
    faulty.cluster.assert_only(&coming);
    for pod in coming {
        faulty.run("DEL", pod);
    }
    faulty.cluster.assert_nothing_left();
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
}
