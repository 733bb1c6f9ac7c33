//! The model of the kernel, which simulations use, does what the kernel does.
//!
//! Random operations of the plugin and of other programs run on the kernel and on the model. After
//! each, the results and the states are equal. `FUZZ_MODEL_SECONDS` sets the duration, and
//! `FUZZ_MODEL_SEED` the first world.

mod changes;
mod draw;
mod facts;
mod node;
mod operation;
mod outcome;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use dataplane::KernelNetwork;
use dataplane::model::KernelModel;
use fastrand::Rng;
use integration_tests::namespaces::{Host, isolated};
use integration_tests::seeds::{Rounds, worlds};

use changes::{ChangesKernel, ChangesModel, OtherPrograms};
use draw::Draw;
use facts::Facts;
use node::Node;
use operation::Operation;
use outcome::Outcome;

const NAME: &str = "FUZZ_MODEL";

/// The numbers of sequences of a world.
const SEQUENCES: Rounds = Rounds { few: 80, many: 80 };

/// The number of sequences that run at a time.
const AT_A_TIME: usize = 4;

/// The number of operations of a sequence.
const OPERATIONS: usize = 40;

/// Maximum time for the kernel to delete the pairs of a namespace that ended.
const CLEANUP: Duration = Duration::from_secs(20);

/// The kinds of results that the first world must contain, so that the comparison covers them.
const REQUIRED: [&str; 22] = [
    "conflict NotAPair",
    "conflict OtherAdd",
    "conflict OtherInterface",
    "conflict OtherPod",
    "conflict Unproven",
    "address is busy",
    "containers run",
    "created a pair",
    "deleted the host end",
    "deleted the pod's end",
    "difference of Address",
    "difference of Link",
    "difference of Peer",
    "difference of Route",
    "difference of State",
    "found suspects",
    "no differences",
    "pod's interface exists",
    "prior Missing",
    "prior Present",
    "refused EEXIST",
    "removal is unproven",
];

#[test]
fn random_operations_on_the_model_end_as_on_the_kernel() {
    isolated(|host| {
        let seen = Mutex::new(BTreeMap::new());
        worlds(NAME, SEQUENCES, |seed, sequences| {
            for kind in compare_all(host, seed, sequences) {
                *seen.lock().unwrap().entry(kind).or_insert(0) += 1;
            }
        });
        let seen = seen.into_inner().unwrap();
        for kind in REQUIRED {
            assert!(seen.contains_key(kind), "no result is {kind:?}: {seen:#?}");
        }
    });
}

/// Runs the sequences of a world, several at a time, because each often waits for the end of a
/// namespace. Returns the kinds of the results.
fn compare_all(host: &Host, seed: u64, sequences: usize) -> Vec<String> {
    let run_every = |first: usize| {
        let mut kinds = Vec::new();
        for number in (first..sequences).step_by(AT_A_TIME) {
            let rng = Rng::with_seed((seed << 16) | number as u64);
            let neighbor = host.neighbor().unwrap();
            kinds.extend(neighbor.on(|there| Ok(compare(there, rng))).unwrap());
        }
        kinds
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME)
            .map(|first| scope.spawn(move || run_every(first)))
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .flat_map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// Runs a sequence on an empty host, and returns the kinds of its results.
fn compare(host: &Host, rng: Rng) -> Vec<String> {
    let network = KernelModel::new();
    let mut on_kernel = ChangesKernel::new(host);
    let mut on_model = ChangesModel::new(&network);
    let mut kernel = Node::new(KernelNetwork);
    let mut model = Node::new(network.clone());
    let (mut draw, mut facts) = (Draw::new(rng), Facts::default());
    let (mut kinds, mut operations) = (Vec::new(), Vec::new());
    for _ in 0..OPERATIONS {
        let operation = draw.operation(&facts);
        operations.push(operation.clone());
        let in_kernel = run(&operation, &mut kernel, &mut on_kernel);
        let in_model = run(&operation, &mut model, &mut on_model);
        facts = Facts::of_model(&network);
        let found = facts_of_kernel(host, &facts, operation.may_end_a_namespace());
        kernel.learn(&found);
        model.learn(&facts);
        assert_eq!(
            (kernel.numbered(in_kernel), found.without_indexes()),
            (model.numbered(in_model.clone()), facts.without_indexes()),
            "the kernel is on the left; after\n{}",
            listed(&operations)
        );
        kinds.extend(in_model.into_iter().flat_map(|outcome| outcome.kinds));
    }
    kinds
}

fn run<N: dataplane::PodNetwork>(
    operation: &Operation,
    node: &mut Node<N>,
    others: &mut impl OtherPrograms,
) -> Vec<Outcome> {
    match operation {
        Operation::Call(call) => node.run(call, others),
        Operation::Change(change) => {
            let is_done = others.change(change);
            vec![Outcome::new(if is_done { "changed" } else { "unchanged" })]
        }
    }
}

/// Returns the facts of the kernel; if a namespace ended, when they are those of the model.
fn facts_of_kernel(host: &Host, expected: &Facts, may_change: bool) -> Facts {
    let deadline = Instant::now() + CLEANUP;
    loop {
        let found = Facts::of_kernel(host);
        let is_expected = found.without_indexes() == expected.without_indexes();
        if is_expected || !may_change || Instant::now() > deadline {
            return found;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn listed(operations: &[Operation]) -> String {
    let lines = operations
        .iter()
        .map(|operation| format!("{operation:?}\n"));
    lines.collect()
}
