//! Benchmarks of parsing a selector and of evaluating it on a node's labels.

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use libcalico::selector::Selector;

const TEXT: &str = "kubernetes.io/os == 'linux' && rack in {'r1', 'r2', 'r3'} && \
                    !has(node-role.kubernetes.io/control-plane)";

fn selectors(c: &mut Criterion) {
    let labels: BTreeMap<String, String> = [
        ("kubernetes.io/os", "linux"),
        ("rack", "r3"),
        ("zone", "z1"),
    ]
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .into();
    c.bench_function("selector/parse", |b| {
        b.iter(|| Selector::parse(black_box(TEXT)))
    });
    if let Ok(selector) = Selector::parse(TEXT) {
        c.bench_function("selector/matches", |b| {
            b.iter(|| selector.matches(black_box(&labels)))
        });
    }
}

criterion_group!(benches, selectors);
criterion_main!(benches);
