//! Replicas with their own proxies, which hold requests until the replica is no longer the leader.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_tests::controllers::{PATIENCE, Proxied, Setup, World, await_that};
use integration_tests::kubernetes::{ApiServer, Audit, Request, on_prepared_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::proxy::{Fault, Point, Proxy};
use libcalico::kubernetes::ApiGroup;
use serde_json::json;
use time::OffsetDateTime;

use crate::lab::{LEADS, LEADS_NO_MORE, await_leader, is_write, lines, succeeded};

/// Time within which a late effect would show.
const CALM: Duration = Duration::from_secs(2);

/// A request to hold: its method, and part of its path and query.
pub(crate) type Held = (&'static str, &'static str);

pub(crate) struct Pair<'a> {
    pub(crate) world: World<'a>,
    audit: Audit,
    pub(crate) one: Proxied,
    pub(crate) two: Proxied,
}

/// Runs a test with two replicas, of which `one` is the leader.
pub(crate) fn on_pair(group: Option<ApiGroup>, before: fn(&World<'_>), test: fn(Pair<'_>)) {
    let prepare = move |api: &ApiServer| {
        World::prepare(api, group)?;
        ["one", "two"]
            .into_iter()
            .try_for_each(|name| Proxied::account(api, name).map(drop))
    };
    on_prepared_kubernetes(
        &format!("a pair, {group:?}"),
        prepare,
        |host, kubernetes| {
            let world = World::prepared(kubernetes, group);
            before(&world);
            let one = start(host, &world, "one");
            one.controllers.await_log(LEADS, 1).unwrap();
            world.configure(&json!({ "leakGracePeriod": "1s" }));
            let two = start(host, &world, "two");
            test(Pair {
                world,
                audit: world.api.audit().unwrap(),
                one,
                two,
            });
        },
    );
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

fn start(host: &Host, world: &World<'_>, name: &str) -> Proxied {
    let more = |setup: Setup| setup.env("AUTO_HOST_ENDPOINTS", "enabled");
    Proxied::start(host, world, name, more).unwrap()
}

impl Pair<'_> {
    /// Freezes the leader while the proxies hold its requests `held`, until the other replica has
    /// done the work. The requests arrive only then and must have no effect.
    pub(crate) fn freeze_in_the_middle(&self, held: &[Held], is_done: impl Fn(&World<'_>) -> bool) {
        let Pair {
            world, one, two, ..
        } = self;
        await_held(one);
        one.controllers.freeze().unwrap();
        await_leader(&two.controllers);
        world.until(&two.controllers, "all is done", || is_done(world));
        let settled = self.settled();
        let_through(one, held.len());
        assert_eq!(
            world.revisions(),
            settled,
            "what was on its way is done after the takeover"
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
        assert_eq!(world.revisions(), settled);
        let late = self.late(&one.user, &two.user);
        assert!(!late.iter().any(succeeded), "{:?}", lines(&late));
    }

    /// Returns the stored revisions once they have been the same for [`CALM`].
    fn settled(&self) -> BTreeMap<String, u64> {
        let (mut last, mut since) = (self.world.revisions(), Instant::now());
        await_that(PATIENCE, || {
            sleep(CALM / 4);
            let now = self.world.revisions();
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
    pub(crate) fn kill_in_the_middle(mut self, is_done: impl Fn(&World<'_>) -> bool) {
        await_held(&self.two);
        self.two.controllers.kill();
        // The held requests are lost with the connection.
        self.two.proxies().for_each(Proxy::resume);
        let Pair { world, one, .. } = &self;
        one.controllers.await_log(LEADS, 2).unwrap();
        world.until(&one.controllers, "all is done", || is_done(world));
    }
}
