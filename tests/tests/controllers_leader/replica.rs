//! Replicas before proxies of their own, so that requests can be held that they have sent already; and proof that those of a
//! replica that leads no more come to nothing.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use integration_tests::controllers::{PATIENCE, Proxied, Setup, World, await_that};
use integration_tests::kubernetes::{Audit, Request, on_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::proxy::{Fault, Point, Proxy};
use libcalico::kubernetes::ApiGroup;
use serde_json::json;
use time::OffsetDateTime;

use crate::lab::{LEADS, LEADS_NO_MORE, await_leader, is_write, lines, succeeded};

/// How long something late would take to show.
const CALM: Duration = Duration::from_secs(2);

/// A request that is to be held: method, and part of its path and query.
pub(crate) type Held = (&'static str, &'static str);

/// Two replicas in one world.
pub(crate) struct Pair<'a> {
    pub(crate) world: World<'a>,
    audit: Audit,
    pub(crate) one: Proxied,
    pub(crate) two: Proxied,
}

/// Runs a test with two replicas, of which `one` leads. A leak is taken back after a second, and nodes have host endpoints.
pub(crate) fn on_pair(group: Option<ApiGroup>, before: fn(&World<'_>), test: fn(Pair<'_>)) {
    on_kubernetes(|host, kubernetes| {
        let world = World::new(kubernetes, group);
        before(&world);
        let one = start(host, &world, "one");
        one.controllers.await_log(LEADS, 1).unwrap();
        world.until(&one.controllers, "there is a configuration", || {
            !world.calico("kubecontrollersconfigurations", "default").is_null()
        });
        world.configure(&json!({ "leakGracePeriod": "1s" }));
        let two = start(host, &world, "two");
        test(Pair { world, audit: world.api.audit().unwrap(), one, two });
    });
}

/// Holds the first of each of these requests.
pub(crate) fn hold(replica: &Proxied, held: &[Held]) {
    let faults = |of_etcd: bool| {
        let held = held.iter().filter(move |held| held.1.contains("KV/Txn") == of_etcd);
        held.map(|(method, part)| (Point::First(method, part), Fault::Hold)).collect::<Vec<_>>()
    };
    replica.api.arm_all(&faults(false));
    if let Some(etcd) = &replica.etcd {
        etcd.arm_all(&faults(true));
    }
}

/// Waits until all of them have come and are held.
fn await_held(replica: &Proxied) {
    replica.proxies().for_each(|proxy| proxy.await_held().unwrap());
}

/// Lets them go on to the servers, and waits until so many have been answered. The replica must be frozen: it asks nothing
/// besides, and can take nothing back.
fn let_through(replica: &Proxied, held: usize) {
    let answers = || replica.proxies().map(|proxy| proxy.traffic().answers).sum::<usize>();
    let before = answers();
    replica.proxies().for_each(Proxy::resume);
    await_that(PATIENCE, || Ok(answers() >= before + held)).unwrap();
}

fn start(host: &Host, world: &World<'_>, name: &str) -> Proxied {
    let more = |setup: Setup| setup.env("AUTO_HOST_ENDPOINTS", "enabled");
    Proxied::start(host, world, name, more).unwrap()
}

impl Pair<'_> {
    /// The leader is stopped while it waits for the answers to `held`, which have not reached the servers. The other takes
    /// over and does all of it, until `is_done`. Then the requests arrive, and then the old leader goes on: none of what it
    /// asks is done any more.
    pub(crate) fn freeze_in_the_middle(&self, held: &[Held], is_done: impl Fn(&World<'_>) -> bool) {
        let Pair { world, one, two, .. } = self;
        await_held(one);
        one.controllers.freeze().unwrap();
        await_leader(&two.controllers);
        world.until(&two.controllers, "all is done", || is_done(world));
        let settled = self.settled();
        let_through(one, held.len());
        assert_eq!(world.revisions(), settled, "what was on its way is done after the takeover");
        let refused: Vec<Request> = self.late(&one.user, &two.user);
        let to_api = held.iter().filter(|held| !held.1.contains("KV/Txn")).count();
        // Conflict, or nothing there any more; a creation finds what it would make.
        assert!(refused.iter().all(|request| matches!(request.code, Some(404 | 409))), "{:?}", lines(&refused));
        assert_eq!(refused.len(), to_api, "{:?}", lines(&refused));

        one.controllers.thaw().unwrap();
        one.controllers.await_log(LEADS_NO_MORE, 1).unwrap();
        sleep(CALM);
        assert_eq!(world.revisions(), settled);
        let late = self.late(&one.user, &two.user);
        assert!(!late.iter().any(succeeded), "{:?}", lines(&late));
    }

    /// What is stored, when nothing is written any more.
    fn settled(&self) -> BTreeMap<String, u64> {
        let mut before = self.world.revisions();
        await_that(PATIENCE, || {
            sleep(CALM / 2);
            let now = self.world.revisions();
            Ok(std::mem::replace(&mut before, now.clone()) == now)
        })
        .unwrap();
        before
    }

    /// The writes of `user` that arrived, or were answered, since `next` took the Lease.
    pub(crate) fn late(&self, user: &str, next: &str) -> Vec<Request> {
        let taken = self.taken(next);
        let requests = self.audit.of(user).unwrap().into_iter();
        requests.filter(|request| is_write(request) && request.answered > taken).collect()
    }

    /// When a user took the Lease.
    fn taken(&self, user: &str) -> OffsetDateTime {
        let requests = self.audit.of(user).unwrap();
        let mut leases = requests.iter().filter(|request| request.resource == "leases" && is_write(request));
        leases.find(|request| succeeded(request)).expect("it took the Lease").answered
    }

    /// Kills `two` while it waits for the answers to requests that it holds; `one` takes over.
    pub(crate) fn kill_in_the_middle(mut self, is_done: impl Fn(&World<'_>) -> bool) {
        await_held(&self.two);
        self.two.controllers.kill();
        // They are lost with the connection.
        self.two.proxies().for_each(Proxy::resume);
        let Pair { world, one, .. } = &self;
        let leads = await_that(PATIENCE, || Ok(one.controllers.log()?.matches(LEADS).count() == 2));
        assert!(leads.is_ok(), "{}", one.controllers.log().unwrap());
        world.until(&one.controllers, "all is done", || is_done(world));
    }
}
