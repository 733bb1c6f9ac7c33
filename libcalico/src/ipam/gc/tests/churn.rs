//! Half an hour of garbage collection in a busy cluster under a simulated clock.

use std::time::Duration;

use super::cluster::{Cluster, GRACE, QUEUES};

const PODS: u32 = 40;

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

#[test]
fn half_an_hour_of_churn_releases_no_used_address_and_every_leak() {
    let mut numbers = Numbers(7);
    let mut cluster = Cluster::new(30);
    for n in 0..4 {
        cluster.node(&format!("n{n}"), true);
        cluster.claim(&format!("10.0.{n}.0/26"), &format!("n{n}"));
        cluster.claim(&format!("fd00::{n}:0/122"), &format!("n{n}"));
    }
    let (mut added, mut refused, mut released) = (0, 0, 0);
    let end = cluster.now + Duration::from_secs(30 * 60);
    while cluster.now < end {
        let pod = format!("p{}", numbers.below(PODS));
        match numbers.below(8) {
            0 | 1 => {
                let node = format!("n{}", numbers.below(4));
                cluster.schedule(&pod, &node);
            }
            2 | 3 => {
                let dual = numbers.below(2) == 0;
                let wants = cluster
                    .pods
                    .get(&pod)
                    .is_some_and(|pod| pod.addresses.is_empty() || numbers.below(10) == 0);
                if wants {
                    if cluster.add(&pod, dual) {
                        added += 1
                    } else {
                        refused += 1
                    }
                }
            }
            4 | 5 => cluster.report(&pod),
            6 => {
                let del = numbers.below(10) != 0;
                cluster.delete(&pod, del);
            }
            _ => {
                let queue = QUEUES[numbers.below(5) as usize];
                if numbers.below(200) == 0 {
                    cluster.relist(queue)
                } else {
                    cluster.deliver(queue, 50)
                }
            }
        }
        cluster.now += Duration::from_millis(200);
        if numbers.below(4) == 0 {
            let plan = cluster.decide(|n| n % 20 == 19);
            released += cluster.apply(&plan);
            cluster.run_rest_of_pass();
        }
        cluster.check();
    }
    assert!(
        added > 200 && released > 20 && refused == 0,
        "{added} added, {released} released, {refused} refused"
    );
    for (name, pod) in cluster.pods.clone() {
        // A pod that never reports an address would keep the addresses that an earlier pod of its
        // name left behind.
        if pod.addresses.is_empty() {
            cluster.delete(&name, false)
        } else {
            cluster.report(&name)
        }
    }
    cluster.deliver_all();
    cluster.pass();
    cluster.now += GRACE;
    for _ in 0..2 {
        cluster.pass();
        cluster.deliver_all();
    }
    assert_eq!(cluster.leaked(), Vec::<std::net::IpAddr>::new());
    assert_eq!(cluster.index.leaks(), (0, 0));
}
