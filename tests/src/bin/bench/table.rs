//! The figures as Markdown for docs/performance.md.

mod api_server;
mod pairs;

use std::fmt::{self, Display, Write as _};

use crate::pods::{Crowd, Details};
use crate::sample::{Sample, ms};

/// Groups of rows, each with a heading.
#[derive(Default)]
pub(crate) struct Table {
    text: String,
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Table {
    fn line(&mut self, line: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn row<C: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut line = String::from("|");
        for cell in cells {
            line.push_str(&format!(" {} |", cell.as_ref()));
        }
        self.line(&line);
    }

    fn heading(&mut self, columns: &[&str]) {
        if !self.text.is_empty() {
            self.line("");
        }
        self.row(columns);
        self.line(&format!("|---{}|", "|---:".repeat(columns.len() - 1)));
    }

    fn times(&mut self, name: &str, sample: &Sample, more: &str) {
        self.row([name, &ms(sample.p50()), &ms(sample.min()), more]);
    }

    pub(crate) fn crowds<'a>(&mut self, crowds: impl Iterator<Item = &'a Crowd>) {
        self.heading(&[
            &format!("{} ADDs at once", crate::PODS),
            "per second",
            "p50 ms",
            "p99 ms",
        ]);
        for crowd in crowds {
            let per_second = crate::PODS as f64 / crowd.all.as_secs_f64();
            let (p50, p99) = (ms(crowd.each.p50()), ms(crowd.each.percentile(99)));
            self.row([crowd.name, &format!("{per_second:.0}"), &p50, &p99]);
        }
    }

    pub(crate) fn program(&mut self, start: &Sample, size: u64) {
        self.heading(&["the program", ""]);
        self.row([
            "one binary for both names",
            &format!("{} MiB", mib(size / 1024)),
        ]);
        self.row(["`calico -v`, p50", &format!("{} ms", ms(start.p50()))]);
    }

    pub(crate) fn stages<'a>(&mut self, details: impl Iterator<Item = &'a Details>) {
        let details: Vec<_> = details.collect();
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in details.iter().flat_map(|detail| &detail.timings.stages) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let columns = ["stages of an ADD, µs (p50)"]
            .into_iter()
            .chain(names.iter().copied());
        self.heading(&columns.chain(["system calls"]).collect::<Vec<_>>());
        for detail in details {
            let micros = |name: &&str| {
                let stage = detail
                    .timings
                    .stages
                    .iter()
                    .find(|(found, _)| found == name);
                stage.map_or(String::new(), |(_, micros)| micros.to_string())
            };
            let stages = names.iter().map(micros);
            self.row(
                [detail.name.to_owned()]
                    .into_iter()
                    .chain(stages)
                    .chain([detail.system_calls.to_string()]),
            );
        }
    }
}

fn mib(kib: u64) -> String {
    format!("{:.1}", kib as f64 / 1024.0)
}

#[cfg(test)]
mod tests;
