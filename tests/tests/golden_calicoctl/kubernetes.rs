//! The steps on an API server: show, configure, and the refusal to release the address of a running pod.

use crate::lab::{Changes, Replayed, on_api_server, rows};

#[test]
fn show_on_an_api_server_prints_upstreams_columns() {
    on_api_server(|lab| {
        for number in ["01", "02"] {
            let Replayed { outcome, changed } = lab.replay(number, &[]);
            assert_eq!(rows(&outcome.stdout, 6), rows(&lab.step(number).stdout, 6), "{number}: {outcome:?}");
            assert_eq!(changed, Changes::new(), "{number}");
        }
        let Replayed { outcome, .. } = lab.replay("03", &[]);
        assert_eq!(outcome.stdout, lab.step("03").stdout);
        let Replayed { outcome, .. } = lab.replay("04", &[]);
        let mut ours = outcome.stdout.lines();
        for line in lab.step("04").stdout.lines() {
            assert!(ours.any(|own| own == line), "{line}: {outcome:?}");
        }
    });
}

#[test]
fn configure_on_an_api_server_writes_as_upstream_does() {
    on_api_server(|lab| {
        let Replayed { outcome, changed } = lab.replay("15", &[]);
        assert_eq!((outcome.exit, outcome.stdout.as_str()), (Some(0), lab.step("15").stdout.as_str()), "{outcome:?}");
        assert_eq!(changed, lab.recorded_changes("15"));
    });
}

/// Upstream releases the address (step 14).
#[test]
fn release_of_a_running_pods_address_is_refused() {
    on_api_server(|lab| {
        let Replayed { outcome, changed } = lab.replay("14", &[]);
        assert_eq!((outcome.exit, changed), (Some(1), Changes::new()), "{outcome:?}");
    });
}
