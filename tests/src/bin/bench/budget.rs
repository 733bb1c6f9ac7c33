//! The time budget of an ADD: its indispensable parts, each measured alone in the same run, plus 2
//! ms.

use std::time::Duration;

use crate::requests::Requests;
use crate::stores::Costs;

/// Allowance for the other parts of an ADD: the process itself, its decisions, and the kernel
/// settings.
const ALLOWANCE: Duration = Duration::from_millis(2);

/// Returns the budget on etcd or the embedded datastore.
pub(crate) fn on_pairs(floor: Duration, costs: &Costs, reads: u64, writes: u64) -> Duration {
    floor + times(costs.read.p50(), reads) + times(costs.write.p50(), writes) + ALLOWANCE
}

/// Returns the budget on an API server, with the median of the sums of each turn's requests. The
/// sum of the medians would be less: some writes wait long for the disk.
pub(crate) fn on_api_server(floor: Duration, requests: &Requests) -> Duration {
    floor + requests.all.p50() + ALLOWANCE
}

fn times(duration: Duration, count: u64) -> Duration {
    duration * u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn of(millis: [u64; 3]) -> Sample {
        millis.map(Duration::from_millis).into_iter().collect()
    }

    #[test]
    fn budget_on_pairs_counts_each_read_and_write_of_an_add() {
        let costs = Costs {
            read: of([3, 1, 2]),
            write: of([10, 5, 90]),
            first_read: of([70, 70, 70]),
        };
        // The floor of 1 ms, 3 reads of 2 ms, 4 writes of 10 ms, and the allowance of 2 ms.
        assert_eq!(
            on_pairs(Duration::from_millis(1), &costs, 3, 4),
            Duration::from_millis(49)
        );
        assert_eq!(
            on_pairs(Duration::from_millis(1), &costs, 0, 0),
            Duration::from_millis(3)
        );
    }

    #[test]
    fn budget_on_api_server_is_one_connection_and_four_requests() {
        let requests = Requests {
            all: of([4329, 20, 5000]),
            ..Requests::default()
        };
        assert_eq!(
            on_api_server(Duration::from_millis(1), &requests),
            Duration::from_millis(4332)
        );
    }
}
