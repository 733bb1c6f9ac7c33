use std::time::Duration;

use super::*;
use crate::api_server::Measured;
use crate::pods::{OneAfterAnother, Series};
use crate::requests::Requests;
use crate::timings::Timings;

fn of(micros: [u64; 3]) -> Sample {
    micros.map(Duration::from_micros).into_iter().collect()
}

fn series(wall: [u64; 3]) -> Series {
    Series {
        wall: of(wall),
        cpu: of([250, 250, 250]),
    }
}

fn details(name: &'static str, stages: &[(&str, u64)]) -> Details {
    let stages = stages
        .iter()
        .map(|(name, micros)| ((*name).to_owned(), *micros))
        .collect();
    let timings = Timings {
        requests: [12, 8],
        stages,
    };
    Details {
        name,
        system_calls: 300,
        commits: None,
        peak_rss: [6 * 1024, 5 * 1024 + 512],
        timings,
    }
}

/// Returns measurements of an ADD that took `add` microseconds, with a budget of 11 ms.
fn measured(add: u64) -> Measured {
    Measured {
        requests: Requests {
            first_get: of([2000, 2500, 2400]),
            get: of([500, 600, 400]),
            post: of([1500; 3]),
            put: of([1600; 3]),
            patch: of([2500; 3]),
            all: of([8000, 20_000, 7000]),
        },
        series: OneAfterAnother {
            floor: series([1000, 1100, 900]),
            floor_with_sysctls: series([1300; 3]),
            operations: [(series([add; 3]), series([14_900, 9_000, 20_000]))],
        },
        details: details("kubernetes", &[("read", 5)]),
        crowd: Crowd {
            name: "kubernetes",
            each: of([1, 2, 3]),
            all: Duration::from_millis(500),
        },
    }
}

fn text(fill: impl FnOnce(&mut Table)) -> String {
    let mut table = Table::default();
    fill(&mut table);
    table.to_string()
}

#[test]
fn every_row_has_as_many_cells_as_the_heading() {
    let all = text(|table| {
        table.api_server(&Ok(measured(7100)));
        table.crowds([measured(1).crowd].iter());
        table.program(&of([1, 2, 3]), 2 << 20);
        table.stages([details("local", &[("parse", 7)])].iter());
    });
    for group in all.split("\n\n") {
        let cells: Vec<usize> = group
            .lines()
            .map(|line| line.matches('|').count())
            .collect();
        assert!(
            cells.len() > 2 && cells.iter().all(|count| *count == cells[0]),
            "{group}"
        );
    }
}

#[test]
fn add_row_compares_with_one_get_and_the_budget() {
    // The budget is 11 ms: 1 ms for the floor, 8 ms for the requests, and the allowance of 2 ms.
    let within = text(|table| table.api_server(&Ok(measured(11_000))));
    assert!(
        within.contains("\n| one GET (a block) | 0.50 | 0.40 |  |\n"),
        "{within}"
    );
    assert!(
        within.contains("\n| ADD | 11.00 | 11.00 | 0.25 | 6.0 | 12 | 22.0 | 11.00 | yes |\n"),
        "{within}"
    );
    assert!(
        within.contains("\n| DEL | 14.90 | 9.00 | 0.25 | 5.5 | 8 | 29.8 |  |  |\n"),
        "{within}"
    );
    let beyond = text(|table| table.api_server(&Ok(measured(11_001))));
    assert!(beyond.contains(" | 11.00 | no |\n"), "{beyond}");
}

#[test]
fn table_without_an_api_server_gives_the_reason() {
    let table = text(|table| table.api_server(&Err("kube-apiserver is not built".into())));
    assert_eq!(
        table,
        "\nKubernetes is left out: kube-apiserver is not built.\n"
    );
}

#[test]
fn each_crowd_yields_one_row() {
    let table = text(|table| table.crowds([measured(1).crowd].iter()));
    assert!(
        table.ends_with("|---|---:|---:|---:|\n| kubernetes | 200 | 0.00 | 0.00 |\n"),
        "{table}"
    );
}

#[test]
fn cells_of_missing_stages_stay_empty() {
    let details = [
        details("local", &[("parse", 7), ("ipam", 8)]),
        details("kubernetes", &[("parse", 1), ("lock", 2)]),
    ];
    let table = text(|table| table.stages(details.iter()));
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(
        rows[0],
        "| stages of an ADD, µs (p50) | parse | ipam | lock | system calls |"
    );
    assert_eq!(
        rows[2..],
        [
            "| local | 7 | 8 |  | 300 |",
            "| kubernetes | 1 |  | 2 | 300 |"
        ]
    );
}
