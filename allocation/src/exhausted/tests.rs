use super::*;

/// Runs searches one after the other, each from one time to another, in seconds. Returns the
/// periods of validity.
fn noted(searches: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("no_free_address");
    let time = |seconds: i64| OffsetDateTime::UNIX_EPOCH + Duration::seconds(seconds);
    let search = Search {
        key: "pool".into(),
        state: 1,
    };
    let note = |&(from, to): &(i64, i64)| {
        let notes = SearchNotes::read(&file, time(from));
        let release = notes.begin_search();
        let outcome = SearchOutcome::Exhausted {
            search: search.clone(),
            release,
            pools: Vec::new(),
            own: BTreeMap::new(),
        };
        notes.store(vec![outcome], time(to));
        let counts = |second: &i64| {
            SearchNotes::read(&file, time(*second))
                .note_of(&search)
                .is_some()
        };
        let counts: Vec<i64> = (from..to + 100).filter(counts).collect();
        (counts[0], counts[counts.len() - 1] + 1)
    };
    searches.iter().map(note).collect()
}

#[test]
fn exhaustion_record_is_valid_from_its_search_end_for_at_most_a_minute() {
    // The third note is valid until 113 instead of 123, because its search took 50 seconds.
    let searches = [(0, 8), (13, 43), (53, 103), (113, 200)];
    assert_eq!(
        noted(&searches),
        [(8, 13), (43, 53), (103, 113), (200, 205)]
    );
}

#[test]
fn record_expired_for_over_a_minute_does_not_double() {
    assert_eq!(
        noted(&[(0, 0), (64, 64), (134, 134)]),
        [(0, 5), (64, 74), (134, 139)]
    );
}

#[test]
fn exhaustion_record_file_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("no_free_address");
    let notes = SearchNotes::read(&file, OffsetDateTime::UNIX_EPOCH);
    // A killed process leaves its draft.
    fs::write(os::atomic_file::draft_name(&file), "[").unwrap();
    let release = notes.begin_search();
    for number in 0..100 {
        let search = Search {
            key: format!("pool {number}"),
            state: 1,
        };
        let (pools, own) = (Vec::new(), BTreeMap::new());
        notes.store(
            vec![SearchOutcome::Exhausted {
                search,
                release,
                pools,
                own,
            }],
            OffsetDateTime::UNIX_EPOCH,
        );
    }
    let left = notes_in(&file);
    assert_eq!(
        (left.len(), &*left[MAX_NOTES - 1].search.key),
        (MAX_NOTES, "pool 99")
    );
    let names: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn search_notes_of_0_1_0_are_read_and_written_unchanged() {
    let stored = include_str!("../../../tests/formats/0.1.0/hints/no_free_address");
    let stored_release = include_str!("../../../tests/formats/0.1.0/hints/no_free_address.release");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("no_free_address");
    fs::write(&file, stored).unwrap();
    fs::write(releases_of(&file), stored_release).unwrap();
    let made = OffsetDateTime::from_unix_timestamp(1_787_360_523).unwrap();
    let search = Search {
        key: "IPv4 of host:node1, strict, 10.244.0.0/25 in /26".into(),
        state: 12_345_678_901_234_567_890,
    };
    let pools = vec![SearchedPool {
        cidr: "10.244.0.0/25".parse().unwrap(),
        in_use: 127,
        has_room: true,
    }];
    let full = FullBlock {
        revision: "4711".into(),
        in_use: 64,
    };
    let own = BTreeMap::from([("10.244.0.0/26".parse().unwrap(), full)]);
    let notes = SearchNotes::read(&file, made);
    let note = Note {
        search: search.clone(),
        release: 11_223_344_556_677_889_900,
        made: made.unix_timestamp(),
        holds: 5,
        pools: pools.clone(),
        own: own.clone(),
    };
    assert_eq!(notes.note_of(&search), Some(&note));
    let release = notes.begin_search();
    assert_eq!(release, Some(note.release));

    fs::remove_file(&file).unwrap();
    let outcome = SearchOutcome::Exhausted {
        search: search.clone(),
        release,
        pools,
        own,
    };
    notes.store(vec![outcome], made);
    assert_eq!(fs::read_to_string(&file).unwrap(), stored);
    // The number of a release is random.
    drop(ReleaseGuard::on(Some(&file)));
    let later = fs::read_to_string(releases_of(&file)).unwrap();
    assert!(
        later != stored_release && later.parse::<u64>().is_ok(),
        "{later}"
    );
    assert_eq!(SearchNotes::read(&file, made).note_of(&search), None);
}
