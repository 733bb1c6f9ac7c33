//! What an ADD may take: everything that it cannot do without, each measured alone in the same run, and 2 ms.

use std::time::Duration;

use crate::requests::Requests;
use crate::stores::Costs;

/// For the rest: the process itself, its decisions, and the kernel settings.
const ALLOWANCE: Duration = Duration::from_millis(2);

/// On a datastore that holds pairs: the floor, and the reads and writes that ADD makes in sequence.
pub(crate) fn on_pairs(floor: Duration, costs: &Costs, reads: u64, writes: u64) -> Duration {
    floor + times(costs.read.p50(), reads) + times(costs.write.p50(), writes) + ALLOWANCE
}

/// On an API server: the floor, one connection, and four requests in sequence. Connecting and one GET are one
/// measurement: they are what a new client's first GET takes. It is the median of each turn's sum, as an ADD's is: writes wait
/// for the disk, most of them shortly and some for long, and of such durations the median of the sum is more than the sum of
/// the medians.
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
    fn pairs_are_read_and_written_as_often_as_add_does() {
        let costs = Costs { read: of([3, 1, 2]), write: of([10, 5, 90]), first_read: of([70, 70, 70]) };
        // 1 + 3 × 2 + 4 × 10 + 2.
        assert_eq!(on_pairs(Duration::from_millis(1), &costs, 3, 4), Duration::from_millis(49));
        assert_eq!(on_pairs(Duration::from_millis(1), &costs, 0, 0), Duration::from_millis(3));
    }

    #[test]
    fn an_api_server_is_connected_to_once_and_asked_four_times() {
        let requests = Requests { all: of([4329, 20, 5000]), ..Requests::default() };
        assert_eq!(on_api_server(Duration::from_millis(1), &requests), Duration::from_millis(4332));
    }
}
