//! [`Pair`]: replicas with their own proxies, which hold requests until a replica is no longer the
//! leader.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_tests::controllers::{ControllersCluster, PATIENCE, Proxied, Setup, await_that};
use integration_tests::kubernetes::{Audit, Request};
use integration_tests::proxy::{Fault, Point, Proxy};
use serde_json::json;
use time::OffsetDateTime;

use crate::controllers_leader::replicas::{
    LEADS, LEADS_NO_MORE, await_leader, is_write, lines, succeeded,
};

/// Time within which a late effect would show.
const CALM: Duration = Duration::from_secs(2);

/// A request to hold: its method, and part of its path and query.
pub(crate) type Held = (&'static str, &'static str);

/// Two replicas, of which `one` is the leader.
pub(crate) struct Pair<'a> {
    cluster: ControllersCluster<'a>,
    audit: Audit,
    pub(crate) one: Proxied,
    pub(crate) two: Proxied,
}

/// Holds the first request that matches each of `held`.
pub(crate) fn hold(replica: &Proxied, held: &[Held]) {
    let faults = |of_etcd: bool| {
        let held = held
            .iter()
            .filter(move |held| held.1.contains("KV/Txn") == of_etcd);
        held.map(|(method, part)| (Point::First(method, part), Fault::Hold))
            .collect::<Vec<_>>()
    };
    replica.api.arm_all(&faults(false));
    if let Some(etcd) = &replica.etcd {
        etcd.arm_all(&faults(true));
    }
}

fn await_held(replica: &Proxied) {
    replica
        .proxies()
        .for_each(|proxy| proxy.await_held().unwrap());
}

/// Lets the held requests continue, and waits for as many responses. The replica must be frozen, so
/// that it sends no other requests.
fn let_through(replica: &Proxied, held: usize) {
    let answers = || {
        replica
            .proxies()
            .map(|proxy| proxy.traffic().answers)
            .sum::<usize>()
    };
    let before = answers();
    replica.proxies().for_each(Proxy::resume);
    await_that(PATIENCE, || Ok(answers() >= before + held)).unwrap();
}

fn start(cluster: &ControllersCluster<'_>, name: &str) -> Proxied {
    let more = |setup: Setup| setup.env("AUTO_HOST_ENDPOINTS", "enabled");
    Proxied::start(cluster, name, more).unwrap()
}

impl<'a> Pair<'a> {
    pub(crate) fn start(cluster: &ControllersCluster<'a>) -> Pair<'a> {
        let one = start(cluster, "one");
        one.controllers.await_log(LEADS, 1).unwrap();
        cluster.configure(&json!({ "leakGracePeriod": "1s" }));
        let two = start(cluster, "two");
        Pair {
            cluster: *cluster,
            audit: cluster.api.audit().unwrap(),
            one,
            two,
        }
    }

    /// Freezes the leader while the proxies hold its requests `held`, until the other replica has
    /// done the work. The requests arrive only then and must have no effect.
    pub(crate) fn freeze_in_the_middle(&self, held: &[Held], is_done: impl Fn() -> bool) {
        let Pair {
            cluster, one, two, ..
        } = self;
        await_held(one);
        one.controllers.freeze().unwrap();
        await_leader(&two.controllers);
        cluster.until(&two.controllers, "all is done", is_done);
        let stable = self.stable_revisions();
        let_through(one, held.len());
        assert_eq!(
            cluster.revisions(),
            stable,
            "a held request is done after the takeover"
        );
        let refused: Vec<Request> = self.late(&one.user, &two.user);
        let to_api = held
            .iter()
            .filter(|held| !held.1.contains("KV/Txn"))
            .count();
        // 409 is a conflict, or a creation of an object that exists; 404 is a missing object.
        assert!(
            refused
                .iter()
                .all(|request| matches!(request.code, Some(404 | 409))),
            "{:?}",
            lines(&refused)
        );
        assert_eq!(refused.len(), to_api, "{:?}", lines(&refused));

        one.controllers.thaw().unwrap();
        one.controllers.await_log(LEADS_NO_MORE, 1).unwrap();
        sleep(CALM);
        assert_eq!(cluster.revisions(), stable);
        let late = self.late(&one.user, &two.user);
        assert!(!late.iter().any(succeeded), "{:?}", lines(&late));
    }

    /// Returns the stored revisions once they have been the same for [`CALM`].
    fn stable_revisions(&self) -> BTreeMap<String, u64> {
        let (mut last, mut since) = (self.cluster.revisions(), Instant::now());
        await_that(PATIENCE, || {
            sleep(CALM / 4);
            let now = self.cluster.revisions();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            Ok(since.elapsed() >= CALM)
        })
        .unwrap();
        last
    }

    /// Returns the writes of `user` that were answered after `next` acquired the Lease.
    pub(crate) fn late(&self, user: &str, next: &str) -> Vec<Request> {
        let taken = self.taken(next);
        let requests = self.audit.of(user).unwrap().into_iter();
        requests
            .filter(|request| is_write(request) && request.answered > taken)
            .collect()
    }

    /// Returns the time at which `user` acquired the Lease.
    fn taken(&self, user: &str) -> OffsetDateTime {
        let requests = self.audit.of(user).unwrap();
        let mut leases = requests
            .iter()
            .filter(|request| request.resource == "leases" && is_write(request));
        leases
            .find(|request| succeeded(request))
            .expect("it took the Lease")
            .answered
    }

    /// Kills `two` while its requests are held. Waits until `one` has taken over and `is_done`.
    pub(crate) fn kill_in_the_middle(mut self, is_done: impl Fn() -> bool) {
        await_held(&self.two);
        self.two.controllers.kill();
        // The held requests are lost with the connection.
        self.two.proxies().for_each(Proxy::resume);
        let Pair { cluster, one, .. } = &self;
        one.controllers.await_log(LEADS, 2).unwrap();
        cluster.until(&one.controllers, "all is done", is_done);
    }
}
