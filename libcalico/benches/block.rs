//! Benchmarks of operations of an ADD or DEL on a /26 block, of its encoding in etcd and on an API
//! server, and of the start of a block walk.

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use libcalico::ipam::{AffinityOwner, Block, BlockRequest, BlockWalk, HandleId, Reservations};
use libcalico::kubernetes::{ApiGroup, Codec, Request, json_bytes};
use libcalico::net::Cidr;
use libcalico::store::{Kind, ReadBatch, Write, decode_entry};
use time::OffsetDateTime;

const NOW: OffsetDateTime = time::macros::datetime!(2026-08-22 01:02:03 UTC);

struct Pod {
    handle: HandleId,
    attributes: BTreeMap<String, String>,
    owner: AffinityOwner,
}

impl Pod {
    fn new(n: usize) -> Self {
        let attributes = [
            ("node", "node1".to_owned()),
            ("namespace", "default".to_owned()),
            ("pod", format!("web-{n}")),
            ("timestamp", format!("2026-08-22 01:02:03.{n:09} +0000 UTC")),
        ];
        Pod {
            handle: HandleId::for_container("k8s-pod-network", &format!("{n:064x}")),
            attributes: attributes
                .map(|(key, value)| (key.to_owned(), value))
                .into(),
            owner: AffinityOwner::Host("node1".into()),
        }
    }

    fn request(&self) -> BlockRequest<'_> {
        BlockRequest {
            handle: Some(&self.handle),
            attributes: &self.attributes,
            requester: &self.owner,
            check_affinity: true,
        }
    }

    fn take_from(&self, block: &mut Block) {
        let assigned = block.assign(1, &self.request(), &Reservations::none());
        assert!(black_box(assigned).is_ok_and(|ips| ips.len() == 1));
        block.count_write();
    }
}

fn range(text: &str) -> Cidr {
    text.parse().expect("a literal CIDR")
}

fn block(used: usize) -> Block {
    let mut block = Block::new(range("10.65.166.128/26"), &Pod::new(0).owner, NOW)
        .expect("a /26 is not too large");
    (0..used).for_each(|n| Pod::new(n).take_from(&mut block));
    block
}

fn operations(c: &mut Criterion) {
    for used in [0, 32, 63] {
        let (before, pod) = (block(used), Pod::new(used));
        c.bench_function(&format!("assign one, {used} of 64 used"), |b| {
            b.iter_batched_ref(
                || before.clone(),
                |block| pod.take_from(block),
                BatchSize::SmallInput,
            )
        });
        let after = block(used + 1);
        c.bench_function(
            &format!("release by handle, {} of 64 used", used + 1),
            |b| {
                b.iter_batched_ref(
                    || after.clone(),
                    |block| assert_eq!(block.release_by_handle(&pod.handle, None, 0, NOW), Ok(1)),
                    BatchSize::SmallInput,
                )
            },
        );
    }
}

fn codec(c: &mut Criterion) {
    for used in [0, 32, 63] {
        let value = block(used);
        let stored = value.encode().expect("a block encodes");
        c.bench_function(&format!("parse, {used} of 64 used"), |b| {
            b.iter(|| Block::decode(black_box(&stored)))
        });
        c.bench_function(&format!("encode, {used} of 64 used"), |b| {
            b.iter(|| black_box(&value).encode())
        });
    }
}

/// A read begins with the bytes of the API server's answer, and a write ends with the bytes of the
/// request.
fn api_server(c: &mut Criterion) {
    let codec = Codec::new(ApiGroup::CrdV1);
    for used in [0, 32, 63] {
        let value = block(used);
        let body_of_write = || {
            let write = Write::create(&value.cidr, &value).expect("a block encodes");
            match codec.request(&write) {
                Ok(Request::Create { body, .. }) => json_bytes(&body),
                other => panic!("{other:?}"),
            }
        };
        c.bench_function(&format!("write to API server, {used} of 64 used"), |b| {
            b.iter(body_of_write)
        });
        let answer = body_of_write();
        let mut batch = ReadBatch::new();
        batch.get::<Block>(&value.cidr);
        c.bench_function(&format!("read from API server, {used} of 64 used"), |b| {
            b.iter(|| {
                let object =
                    serde_json::from_slice(black_box(&answer)).expect("the answer is JSON");
                let decoded = codec.decode(&batch.ranges()[0], object);
                decode_entry::<Block>(&decoded.expect("the object is a block").entry)
            })
        });
    }
}

fn walk(c: &mut Criterion) {
    c.bench_function("first block of a /64 in /122", |b| {
        b.iter(|| BlockWalk::new(range("fd00:65::/64"), 122, black_box("node1"), NOW).next())
    });
}

criterion_group!(benches, operations, codec, api_server, walk);
criterion_main!(benches);
