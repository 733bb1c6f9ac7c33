//! Release times of clocks that were ahead.

use libcalico::ipam::ReleaseRequest;
use libcalico::store::Store;
use time::Duration as Span;
use time::format_description::well_known::Rfc2822;

use super::*;

/// Returns a client of an API server whose clock shows `time`, and the number of its requests.
fn server_at(time: OffsetDateTime) -> (kube::Client, Arc<AtomicUsize>) {
    let requests = Arc::<AtomicUsize>::default();
    let counted = requests.clone();
    let date = time.format(&Rfc2822).unwrap().replace("+0000", "GMT");
    let service = tower::service_fn(move |_: hyper::Request<kube::client::Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let answer = hyper::Response::builder()
            .header("date", &date)
            .body(kube::client::Body::empty());
        async move { Ok::<_, std::convert::Infallible>(answer.unwrap()) }
    });
    (kube::Client::new(service, "default"), requests)
}

/// Returns a block with an allocation and a release, both of the time `at`.
fn block_of(at: OffsetDateTime) -> Block {
    let owner = AffinityOwner::Host("node-a".into());
    let mut block = Block::new("10.0.0.0/26".parse().unwrap(), &owner, at).unwrap();
    for (address, name) in [("10.0.0.1", "net.stays"), ("10.0.0.2", "net.gone")] {
        let (id, time) = (
            HandleId::new(name),
            format!("{} {:02}:00:00 +0000 UTC", at.date(), at.hour()),
        );
        let attributes = [("timestamp".to_owned(), time)].into();
        let request = BlockRequest {
            handle: Some(&id),
            attributes: &attributes,
            requester: &owner,
            check_affinity: true,
        };
        block
            .assign_address(address.parse().unwrap(), &request)
            .unwrap();
    }
    let request = ReleaseRequest {
        ip: "10.0.0.2".parse().unwrap(),
        handle: None,
        sequence: None,
    };
    block.release(&[request], 60, at).unwrap();
    block
}

#[tokio::test]
async fn release_time_ahead_of_the_api_server_is_corrected_once() {
    let now = OffsetDateTime::now_utc();
    for (written, server, is_wrong) in [
        (now + Span::days(365), now, true),
        // The clock here is behind.
        (now + Span::days(1), now + Span::days(1), false),
        (now, now, false),
    ] {
        let (_dir, calico) = embedded();
        let block = block_of(written);
        calico.create(&block.cidr, &block).await.unwrap();
        let mut index = Index::new(libcalico::ipam::gc::GcSettings::default());
        index.put_block(&block).unwrap();
        let (client, requests) = server_at(server);
        let mut gc_pass = new_pass(client, calico.clone(), index, Leadership::always());
        gc_pass.correct_release_times().await;
        gc_pass.correct_release_times().await;
        assert_eq!(
            requests.load(Ordering::Relaxed),
            usize::from(written > now),
            "at most one request a minute"
        );
        let stored = calico.get::<Block>(&block.cidr).await.unwrap().value;
        let released = |block: &Block| {
            block
                .allocation("10.0.0.2".parse().unwrap())
                .and_then(|held| held.released_at())
        };
        let expected = if is_wrong {
            server.replace_nanosecond(0).ok()
        } else {
            released(&block)
        };
        assert_eq!(released(&stored), expected, "{written}");
        assert_eq!(stored.allocated().count(), 2);
    }
}
