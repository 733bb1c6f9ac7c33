//! The watchdog detects a pass that waits forever for a response: in the lookup of a leak's owner,
//! or of KubeVirt.

use super::*;
use crate::gc::run_passes;
use crate::status::Status;

const RIGHT: Duration = Duration::from_secs(30);
const PROLONGED: Duration = Duration::from_secs(10);

/// Returns the liveness at each 100 s of 2000 s, while garbage collection runs with an API server
/// that never responds.
async fn liveness(index: Index) -> Vec<bool> {
    let (dir, calico) = embedded();
    let asked = Arc::new(AtomicUsize::new(0));
    let term = || LeadershipTerm::Until(Deadline::now().plus(RIGHT));
    let (election, leads) = watch::channel(term());
    let context = new_context(
        silent_kubernetes(asked.clone()),
        calico,
        Leadership::new(leads),
    );
    let gc_pass = pass_of(&context, index);
    gc_pass.inputs.cache.mark_all_listed();
    let status = Status::new(dir.path().join("status.json"));
    let watchdog = context.watchdog.clone();
    let mut live = Vec::new();
    tokio::select! {
        () = run_passes(&context, gc_pass) => unreachable!("nobody stopped it"),
        () = watchdog.watch(
            status.clone(), CancellationToken::new(),
        ) => unreachable!("nobody stopped it"),
        // Each renewal wakes the task of the pass, which does not count as progress of the pass.
        () = async { loop {
            sleep(PROLONGED).await;
            election.send_replace(term());
        } } => {}
        () = async { for _ in 0..20 {
            sleep(Duration::from_secs(100)).await;
            live.push(status.is_live());
        } } => {}
    }
    assert_eq!(
        asked.load(Ordering::Relaxed),
        1,
        "the pass waits for its first answer"
    );
    live
}

/// Returns a liveness that ends after 900 s.
fn fails() -> Vec<bool> {
    (1..=20).map(|hundreds| hundreds <= 9).collect()
}

#[tokio::test(start_paused = true)]
async fn gc_pass_stuck_in_a_leak_recheck_fails_liveness() {
    assert_eq!(liveness(leaky().0).await, fails());
}

/// The discovery comes before the assessment, and does not end with the right to write.
#[tokio::test(start_paused = true)]
async fn gc_pass_stuck_in_kubevirt_discovery_fails_liveness() {
    let owner = [
        ("node", "node-a"),
        ("pod", "launcher"),
        ("namespace", "ns"),
        ("vmi-name", "vm"),
    ];
    let of_machine = leaked(
        libcalico::ipam::gc::GcSettings::default(),
        "net.vmi.ns.vm",
        [&owner, &[]],
    )
    .0;
    assert!(of_machine.has_vmis());
    assert_eq!(liveness(of_machine).await, fails());
}
