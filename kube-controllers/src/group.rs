//! Whether Calico's objects moved to another API group, as upstream's migration to `projectcalico.org/v3` moves them.

use std::time::Duration;

use libcalico::kubernetes::ApiGroup;
use tokio::time::sleep;

/// How often the API server is asked.
const PERIOD: Duration = Duration::from_secs(60);

/// Waits until `ask` has told two times in a row that the group is another than `group`, and returns that one: an API server that
/// starts may not know all groups yet.
pub(crate) async fn changed<E>(group: ApiGroup, ask: impl AsyncFn() -> Result<ApiGroup, E>) -> ApiGroup {
    let mut told = None;
    loop {
        sleep(PERIOD).await;
        match ask().await {
            Ok(other) if other != group && told == Some(other) => return other,
            Ok(now) => told = Some(now),
            // A server that is away says nothing about groups.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use ApiGroup::{CrdV1, V3};

    #[tokio::test(start_paused = true)]
    async fn a_group_that_two_looks_in_a_row_found_changed_is_told() {
        for (answers, asked) in [
            (&[Ok(CrdV1), Ok(V3), Ok(V3), Ok(V3)][..], 3),
            (&[Ok(V3), Ok(CrdV1), Ok(V3), Ok(V3)], 4),
            (&[Ok(V3), Err("away"), Ok(V3)], 3),
        ] {
            let left = RefCell::new(answers.iter());
            let now = changed(CrdV1, async || left.borrow_mut().next().copied().unwrap()).await;
            assert_eq!((now, answers.len() - left.borrow().len()), (V3, asked), "{answers:?}");
        }
    }
}
