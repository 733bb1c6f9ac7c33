//! The table of the API server.

use super::{Table, mib};
use crate::api_server::Measured;
use crate::budget;
use crate::sample::ms;

impl Table {
    /// Adds the table, or the reason why there is no API server.
    pub(crate) fn api_server(&mut self, measured: &Result<Measured, String>) {
        match measured {
            Ok(measured) => {
                self.requests(measured);
                self.operations_on_kubernetes(measured);
            }
            Err(reason) => {
                self.line("");
                self.line(&format!("Kubernetes is left out: {reason}."));
            }
        }
    }

    fn requests(
        &mut self,
        Measured {
            requests, series, ..
        }: &Measured,
    ) {
        self.heading(&["alone, beside an API server", "p50 ms", "min ms", "CPU ms"]);
        self.floor(series);
        for (name, sample) in [
            ("new client: connect, TLS and one GET", &requests.first_get),
            ("one GET (a block)", &requests.get),
            ("one POST (a handle)", &requests.post),
            ("one PUT (a block)", &requests.put),
            ("one PATCH (a pod's status)", &requests.patch),
        ] {
            self.times(name, sample, "");
        }
    }

    fn operations_on_kubernetes(
        &mut self,
        Measured {
            requests,
            series,
            details,
            ..
        }: &Measured,
    ) {
        self.heading(&[
            "one IPv4 pod on an API server",
            "p50 ms",
            "min ms",
            "CPU ms",
            "peak RSS MiB",
            "requests",
            "÷ GET",
            "budget ms",
            "within",
        ]);
        let get = requests.get.p50();
        let budget = budget::on_api_server(series.floor.wall.p50(), requests);
        let [(add, del)] = &series.operations;
        for (index, (verb, series)) in [("ADD", add), ("DEL", del)].into_iter().enumerate() {
            let wall = series.wall.p50();
            let verdict = if wall <= budget { "yes" } else { "no" };
            // Only ADD has a budget.
            let (budget, verdict) = if index == 0 {
                (ms(budget), verdict)
            } else {
                Default::default()
            };
            self.row([
                verb,
                &ms(wall),
                &ms(series.wall.min()),
                &ms(series.cpu.p50()),
                &mib(details.peak_rss[index]),
                &details.timings.requests[index].to_string(),
                &format!("{:.1}", wall.as_secs_f64() / get.as_secs_f64()),
                &budget,
                verdict,
            ]);
        }
    }
}
