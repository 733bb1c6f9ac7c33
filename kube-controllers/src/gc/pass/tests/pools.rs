//! The leader posts an Event when the use of a pool crosses a threshold.

use libcalico::ipam::gc::PoolShape;
use libcalico::ipam::{IpamConfig, IpamConfigKey, Reservations};
use libcalico::kubernetes::ApiGroup;
use libcalico::store::Store;
use serde_json::json;
use tokio::time::advance;

use super::conflicts::Server;
use super::*;
use crate::controllers::testing::refusing_kubernetes;

/// The only block of the pool, with 16 addresses.
const BLOCK: &str = "10.0.0.0/28";

/// Returns the block with this number of addresses in use.
fn block(in_use: usize) -> Block {
    let owner = AffinityOwner::Host("node-a".into());
    let mut block = Block::new(BLOCK.parse().unwrap(), &owner, OffsetDateTime::now_utc()).unwrap();
    let attributes = BTreeMap::new();
    let request = BlockRequest {
        handle: None,
        attributes: &attributes,
        requester: &owner,
        check_affinity: true,
    };
    block
        .assign(in_use, &request, &Reservations::none())
        .unwrap();
    block
}

fn pool(uid: &str) -> PoolShape {
    PoolShape {
        cidr: BLOCK.parse().unwrap(),
        block_prefix: 28,
        uid: uid.into(),
        in_service: true,
    }
}

fn index(in_use: usize) -> Index {
    let mut index = Index::new(libcalico::ipam::gc::GcSettings::default());
    index.put_kubernetes_node("node-a", false);
    index.put_calico_node("node-a", Some("node-a"));
    index.put_pool("small", pool("u1"));
    index.put_block(&block(in_use)).unwrap();
    index
}

/// Changes the number of addresses in use, and runs the next pass that counts.
async fn use_addresses(replica: &mut GcPass, in_use: usize, wait: Duration) {
    replica
        .inputs
        .cache
        .index()
        .put_block(&block(in_use))
        .unwrap();
    advance(wait).await;
    replica.run(Scope::Changed).await;
}

fn told(server: &Server) -> Vec<String> {
    let events = server.events.lock().unwrap();
    events
        .iter()
        .map(|event| event["reason"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn pool_tells_each_crossing_of_a_threshold_once() {
    let (_dir, calico) = embedded();
    let server = Server::default();
    let mut replica = new_pass(server.client(), calico, index(12), Leadership::always());
    replica.run(Scope::Everything).await;
    let (first, second) = ("IPPoolUsage80", "IPPoolUsage95");
    let short = Duration::from_secs(10);
    for (in_use, wait, expected) in [
        (12, short, &[][..]),
        (13, short, &[first][..]),
        (14, short, &[first]),
        (16, short, &[first, second]),
        (13, short, &[first, second]),
        (11, short, &[first, second]),
        (13, Duration::from_secs(600), &[first, second, first]),
    ] {
        use_addresses(&mut replica, in_use, wait).await;
        assert_eq!(told(&server), expected, "{in_use} in use");
    }
    let event = server.events.lock().unwrap()[0].clone();
    let message = "81 % of the 16 usable addresses of IP pool small are in use; 3 are free; create \
                   another pool, or see `calico-ipam usage`";
    assert_eq!(event["message"], message);
    let object = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "name": "small", "uid": "u1",
    });
    assert_eq!(
        (&event["involvedObject"], &event["type"]),
        (&object, &json!("Warning"))
    );
    assert_eq!(event["metadata"]["namespace"], "default");
}

#[tokio::test(start_paused = true)]
async fn event_has_the_uid_that_the_api_server_shows() {
    let (in_store, reversed) = (
        "fe392417-dc50-4cba-9ef8-45cd23ab67ef",
        "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7",
    );
    for (group, uid) in [(ApiGroup::CrdV1, reversed), (ApiGroup::V3, in_store)] {
        let (_dir, calico) = embedded();
        let server = Server::default();
        let mut index = index(13);
        index.put_pool("small", pool(in_store));
        let mut replica = new_pass(server.client(), calico, index, Leadership::always());
        replica.inputs.mode = Mode::Kubernetes(group);
        replica.run(Scope::Everything).await;
        let event = server.events.lock().unwrap()[0].clone();
        let object = json!({
            "apiVersion": group.api_version(), "kind": "IPPool", "name": "small", "uid": uid,
        });
        assert_eq!(event["involvedObject"], object);
    }
}

#[tokio::test(start_paused = true)]
async fn replica_started_above_a_threshold_posts_no_second_event() {
    let (_dir, calico) = embedded();
    let server = Server::default();
    for in_use in [13, 14, 14] {
        let mut replica = new_pass(
            server.client(),
            calico.clone(),
            index(in_use),
            Leadership::always(),
        );
        replica.run(Scope::Everything).await;
        assert_eq!(told(&server), ["IPPoolUsage80"]);
    }
}

#[tokio::test(start_paused = true)]
async fn standby_counts_and_posts_no_event_until_it_leads() {
    let (_dir, calico) = embedded();
    let server = Server::default();
    let (sender, term) = watch::channel(LeadershipTerm::No);
    let mut replica = new_pass(server.client(), calico, index(12), Leadership::new(term));
    replica.run(Scope::Everything).await;
    use_addresses(&mut replica, 13, Duration::from_secs(10)).await;
    assert_eq!(
        replica
            .inputs
            .cache
            .index()
            .rooms()
            .next()
            .map(|named| named.room.free),
        Some(3)
    );
    assert_eq!(told(&server).len(), 0);
    sender.send_replace(LeadershipTerm::Always);
    replica.run(Scope::Changed).await;
    assert_eq!(told(&server), ["IPPoolUsage80"]);
}

#[tokio::test(start_paused = true)]
async fn event_that_could_not_be_posted_is_posted_after_the_next_count() {
    let (_dir, calico) = embedded();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let client = refusing_kubernetes(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Err(503)
    });
    let mut replica = new_pass(client, calico, index(13), Leadership::always());
    for expected in 1..4 {
        replica.run(Scope::Everything).await;
        assert_eq!(asked.load(Ordering::Relaxed), expected);
    }
}

/// The Event of the first crossing exists.
#[tokio::test(start_paused = true)]
async fn second_crossing_whose_event_fails_is_posted_after_the_next_count() {
    let (_dir, calico) = embedded();
    let server = Server::default();
    let mut replica = new_pass(server.client(), calico, index(12), Leadership::always());
    replica.run(Scope::Everything).await;
    let short = Duration::from_secs(10);
    use_addresses(&mut replica, 13, short).await;
    use_addresses(&mut replica, 11, short).await;
    server.failure.store(503, Ordering::Relaxed);
    use_addresses(&mut replica, 13, Duration::from_secs(600)).await;
    assert_eq!(told(&server), ["IPPoolUsage80"]);
    server.failure.store(0, Ordering::Relaxed);
    use_addresses(&mut replica, 14, short).await;
    assert_eq!(told(&server), ["IPPoolUsage80", "IPPoolUsage80"]);
}

/// For example by a quota of the namespace `default`.
#[tokio::test(start_paused = true)]
async fn refused_event_is_posted_after_the_pause_if_the_pool_is_still_above_the_threshold() {
    let (_dir, calico) = embedded();
    for (later, expected) in [(14, vec!["IPPoolUsage80"]), (2, Vec::new())] {
        let server = Server::default();
        let mut replica = new_pass(
            server.client(),
            calico.clone(),
            index(12),
            Leadership::always(),
        );
        replica.run(Scope::Everything).await;
        server.failure.store(403, Ordering::Relaxed);
        for in_use in [13, 14, 13] {
            use_addresses(&mut replica, in_use, Duration::from_secs(10)).await;
        }
        assert_eq!(server.posts.load(Ordering::Relaxed), 1, "in the pause");
        server.failure.store(0, Ordering::Relaxed);
        use_addresses(&mut replica, later, Duration::from_secs(600)).await;
        assert_eq!(told(&server), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn count_waits_for_its_interval_and_uses_settings_of_the_last_five_minutes() {
    let (_dir, calico) = embedded();
    let server = Server::default();
    let mut replica = new_pass(
        server.client(),
        calico.clone(),
        index(4),
        Leadership::always(),
    );
    replica.run(Scope::Everything).await;
    let fullest = |replica: &GcPass| {
        let index = replica.inputs.cache.index();
        let fullest = index
            .rooms()
            .next()
            .and_then(|named| named.room.fullest.clone());
        fullest.map(|(_, addresses)| addresses)
    };
    let config = IpamConfig {
        auto_allocate_blocks: false,
        strict_affinity: true,
        ..IpamConfig::absent()
    };
    calico.create(&IpamConfigKey, &config).await.unwrap();
    let wider = PoolShape {
        cidr: "10.0.0.0/24".parse().unwrap(),
        ..pool("u1")
    };
    replica.inputs.cache.index().put_pool("small", wider);
    replica.run(Scope::Changed).await;
    assert_eq!(fullest(&replica), Some(12), "not yet counted again");
    assert!(
        replica.next_deadline() <= Duration::from_secs(10),
        "the next pass counts"
    );
    advance(Duration::from_secs(10)).await;
    replica.run(Scope::Changed).await;
    assert_eq!(fullest(&replica), Some(12 + 15 * 16));
    advance(Duration::from_secs(290)).await;
    replica.run(Scope::Everything).await;
    assert_eq!(fullest(&replica), Some(12), "the node may claim no block");
}
