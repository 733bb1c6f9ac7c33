//! The effect of `GC_PARALLELISM` on lookups of pods and releases of nodes.

use super::*;
use crate::settings::GcLimits;

const AT_ONCE: usize = 3;
const ALL: u8 = 5;

fn limited(gc_pass: GcPass) -> GcPass {
    let gc_limits = GcLimits {
        parallelism: AT_ONCE,
        ..GcLimits::default()
    };
    let settings = watch::channel(Arc::new(Settings {
        gc_limits,
        ..settings()
    }))
    .1;
    GcPass {
        inputs: PassInputs {
            settings,
            ..gc_pass.inputs
        },
        ..gc_pass
    }
}

fn leaky_blocks(blocks: u8, addresses: u8) -> Index {
    let (owner, grace) = (
        AffinityOwner::Host("node-a".into()),
        Duration::from_secs(600),
    );
    let mut index = Index::new(libcalico::ipam::gc::GcSettings {
        leak_grace: Some(grace),
        ..Default::default()
    });
    index.put_kubernetes_node("node-a", false);
    index.put_calico_node("node-a", Some("node-a"));
    for number in 0..blocks {
        let cidr = format!("10.0.{number}.0/26").parse().unwrap();
        let mut block = Block::new(cidr, &owner, OffsetDateTime::now_utc()).unwrap();
        for address in 0..addresses {
            let pod = format!("gone-{number}-{address}");
            let words = [("node", "node-a"), ("pod", &*pod), ("namespace", "ns")];
            let attributes = words
                .map(|(key, word)| (key.to_owned(), word.to_owned()))
                .into();
            let id = HandleId::new(format!("net.{pod}"));
            let request = BlockRequest {
                handle: Some(&id),
                attributes: &attributes,
                requester: &owner,
                check_affinity: true,
            };
            block
                .assign_address(cidr.nth(address.into()).unwrap(), &request)
                .unwrap();
        }
        index.put_block(&block).unwrap();
    }
    index.examine(Duration::ZERO, Scope::Everything);
    index.examine(grace, Scope::Changed);
    assert_eq!(
        index.suspects(grace, usize::MAX).len(),
        usize::from(blocks * addresses)
    );
    index
}

/// Returns the number of concurrent requests while `work` waits for the responses.
async fn under_way(index: Index, work: impl AsyncFnOnce(&mut GcPass)) -> usize {
    let (_dir, calico) = embedded();
    let asked = Arc::new(AtomicUsize::new(0));
    let mut gc_pass = limited(new_pass(
        silent_kubernetes(asked.clone()),
        calico,
        index,
        Leadership::always(),
    ));
    // The paused clock advances only when no task can run.
    assert!(
        timeout(ANSWER, work(&mut gc_pass)).await.is_err(),
        "no answer came, and the work ended"
    );
    asked.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn gc_parallelism_limits_concurrent_pod_lookups() {
    let release = async |gc_pass: &mut GcPass| gc_pass.release_leaks(GcMode::Reclaim).await;
    assert_eq!(under_way(leaky_blocks(1, ALL), release).await, AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn gc_parallelism_limits_concurrent_releases_of_deleted_nodes() {
    let mut index = Index::new(libcalico::ipam::gc::GcSettings::default());
    for number in 0..ALL {
        let node = format!("gone-{number}");
        index.put_calico_node(&node, Some(&node));
        let cidr = format!("10.0.{number}.0/26").parse().unwrap();
        index
            .put_block(
                &Block::new(cidr, &AffinityOwner::Host(node), OffsetDateTime::now_utc()).unwrap(),
            )
            .unwrap();
    }
    index.examine(Duration::ZERO, Scope::Everything);
    assert_eq!(
        index.nodes_to_release(Duration::ZERO).len(),
        usize::from(ALL)
    );
    let release = async |gc_pass: &mut GcPass| gc_pass.release_deleted_nodes().await;
    assert_eq!(under_way(index, release).await, AT_ONCE);
}
