//! Tests that random sequences of operations preserve the invariants of a consistent block
//! (IPAM-64).

use std::collections::VecDeque;

use ::time::Duration;
use proptest::prelude::*;

use super::*;
use crate::ipam::Handle;

#[derive(Debug, Clone)]
enum Operation {
    Assign { n: usize, handle: usize },
    AssignAddress { ordinal: usize, handle: usize },
    Release { ordinals: Vec<usize> },
    ReleaseByHandle { handle: usize },
    Collect,
    Wait { seconds: i64 },
}

const CAPACITY: usize = 8;

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let handle = 0..4usize;
    let operation = prop_oneof![
        4 => (0..4usize, handle.clone()).prop_map(|(n, handle)| Operation::Assign { n, handle }),
        1 => (0..CAPACITY, handle.clone())
            .prop_map(|(ordinal, handle)| Operation::AssignAddress { ordinal, handle }),
        3 => prop::collection::vec(0..CAPACITY + 2, 0..4)
            .prop_map(|ordinals| Operation::Release { ordinals }),
        2 => handle.prop_map(|handle| Operation::ReleaseByHandle { handle }),
        1 => Just(Operation::Collect),
        1 => (0..40i64).prop_map(|seconds| Operation::Wait { seconds }),
    ];
    prop::collection::vec(operation, 0..60)
}

/// A block and the expected state after each operation.
struct ModelBlock {
    block: Block,
    handles: BTreeMap<HandleId, Handle>,
    free: VecDeque<usize>,
    cooldown: i64,
    reserved: Reservations,
    now: OffsetDateTime,
}

impl ModelBlock {
    fn new(cooldown: i64, reserved: &[u8]) -> Self {
        let ranges = reserved
            .iter()
            .map(|ordinal| Cidr::host(ip(&format!("10.0.0.{ordinal}"))));
        ModelBlock {
            block: Block::new(cidr("10.0.0.0/29"), &host("node1"), NOW).unwrap(),
            handles: BTreeMap::new(),
            free: (0..CAPACITY).collect(),
            cooldown,
            reserved: Reservations::new(ranges),
            now: NOW,
        }
    }

    fn apply(&mut self, operation: &Operation) {
        self.block.collect_garbage(self.cooldown, self.now).unwrap();
        self.note_freed();
        match operation {
            Operation::Assign { n, handle } => self.assign(*n, *handle),
            Operation::AssignAddress { ordinal, handle } => self.assign_address(*ordinal, *handle),
            Operation::Release { ordinals } => self.release(ordinals),
            Operation::ReleaseByHandle { handle } => self.release_by_handle(*handle),
            Operation::Collect => {}
            Operation::Wait { seconds } => self.now += Duration::seconds(*seconds),
        }
        self.note_freed();
    }

    fn request<T>(
        &mut self,
        handle: usize,
        ask: impl FnOnce(&mut Block, &BlockRequest<'_>, &Reservations) -> T,
    ) -> T {
        let request = BlockRequest {
            handle: Some(&handle_id(handle)),
            attributes: &attributes(&format!("pod{handle}")),
            requester: &host("node1"),
            check_affinity: true,
        };
        ask(&mut self.block, &request, &self.reserved)
    }

    fn assign(&mut self, n: usize, handle: usize) {
        let number = self.block.sequence_number;
        let assigned = self
            .request(handle, |block, request, reserved| {
                block.assign(n, request, reserved)
            })
            .unwrap();
        let expected: Vec<usize> = self
            .free
            .iter()
            .copied()
            .filter(|&o| !self.reserved.contains(address(o)))
            .take(n)
            .collect();
        assert_eq!(
            assigned,
            expected.iter().map(|&o| address(o)).collect::<Vec<_>>(),
            "first in, first out"
        );
        self.free.retain(|ordinal| !expected.contains(ordinal));
        for ordinal in expected {
            assert_eq!(self.block.sequence_of(ordinal), Some(number));
        }
        if !assigned.is_empty() {
            self.handles
                .entry(handle_id(handle))
                .or_default()
                .increment(self.block.cidr, assigned.len());
            self.block.count_write();
        }
    }

    fn assign_address(&mut self, ordinal: usize, handle: usize) {
        let assigned = self.request(handle, |block, request, _| {
            block.assign_address(address(ordinal), request)
        });
        assert_eq!(assigned.is_ok(), self.free.contains(&ordinal));
        if assigned.is_ok() {
            self.free.retain(|&free| free != ordinal);
            self.handles
                .entry(handle_id(handle))
                .or_default()
                .increment(self.block.cidr, 1);
            self.block.count_write();
        }
    }

    fn release(&mut self, ordinals: &[usize]) {
        let requests: Vec<ReleaseRequest> = ordinals
            .iter()
            .map(|&ordinal| {
                let held = self.block.allocation(address(ordinal));
                ReleaseRequest {
                    ip: address(ordinal),
                    handle: held.and_then(|held| held.handle()),
                    sequence: held.and_then(|held| held.sequence),
                }
            })
            .collect();
        let released = self
            .block
            .release(&requests, self.cooldown, self.now)
            .unwrap();
        let distinct: std::collections::BTreeSet<_> = ordinals.iter().collect();
        assert_eq!(
            released.released.len() + released.unallocated.len(),
            distinct.len()
        );
        for (handle, n) in &released.per_handle {
            self.take_off(handle, *n);
        }
        if !released.released.is_empty() {
            self.block.count_write();
        }
    }

    fn release_by_handle(&mut self, handle: usize) {
        let handle = handle_id(handle);
        let expected = self.block.addresses_of(&handle).len();
        let released = self
            .block
            .release_by_handle(&handle, None, self.cooldown, self.now)
            .unwrap();
        assert_eq!(released, expected);
        assert!(self.block.addresses_of(&handle).is_empty());
        if released > 0 {
            self.take_off(&handle, released);
            self.block.count_write();
        }
    }

    fn take_off(&mut self, handle: &HandleId, n: usize) {
        let stored = self.handles.get_mut(handle).unwrap();
        stored.decrement(handle, self.block.cidr, n).unwrap();
        if stored.is_empty() {
            self.handles.remove(handle);
        }
    }

    fn note_freed(&mut self) {
        let freed = (0..CAPACITY).filter(|&o| self.block.allocations[o].is_none());
        let fresh: Vec<usize> = freed
            .filter(|ordinal| !self.free.contains(ordinal))
            .collect();
        self.free.extend(fresh);
    }

    fn check(&self) {
        let block = &self.block;
        assert_eq!(block.verify(), Ok(()));
        assert!(
            block.unallocated.iter().eq(&self.free),
            "{:?} is not {:?}",
            block.unallocated,
            self.free
        );
        for ordinal in 0..CAPACITY {
            let (held, free) = (
                block.allocations[ordinal].is_some(),
                block.unallocated.contains(&ordinal),
            );
            assert!(held != free, "ordinal {ordinal} is free or held once");
            assert_eq!(block.sequence_of(ordinal).is_some(), held);
        }
        for index in 0..block.attributes.len() {
            assert!(
                block.allocations.contains(&Some(index)),
                "attribute {index} is referred to"
            );
        }
        for handle in (0..4).map(handle_id) {
            let counted = self
                .handles
                .get(&handle)
                .and_then(|stored| stored.block.get(&block.cidr))
                .copied();
            assert_eq!(
                counted.unwrap_or(0) as usize,
                block.addresses_of(&handle).len(),
                "count of {handle}"
            );
        }
        assert_eq!(Block::decode(&block.encode().unwrap()).unwrap(), *block);
    }
}

fn handle_id(n: usize) -> HandleId {
    HandleId::new(format!("net.c{n}"))
}

fn address(ordinal: usize) -> IpAddr {
    ip(&format!("10.0.0.{ordinal}"))
}

proptest! {
    #[test]
    fn every_ordinal_is_free_or_allocated_once(
        operations in operations(),
        cooldown in prop_oneof![Just(0i64), 1..60i64],
        reserved in prop::collection::vec(0..8u8, 0..3),
    ) {
        let mut model = ModelBlock::new(cooldown, &reserved);
        for operation in &operations {
            model.apply(operation);
            model.check();
        }
    }
}
