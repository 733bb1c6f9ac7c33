//! Tests [`Watcher`] with a scripted source and a paused clock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::*;

type Object = (&'static str, u32);
type Objects = Vec<ObjectChange<Object, &'static str>>;

enum Answer {
    Page(Objects, Option<u32>),
    Watch(u32),
    Open,
    Step(Objects, u32),
    End,
    Fail(WatchFailure),
    After(Duration, Box<Answer>),
    Never,
}

use Answer::*;

#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Script {
    async fn respond(&self, request: String) -> Answer {
        self.requests.lock().unwrap().push(request);
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            None | Some(Never) => std::future::pending().await,
            Some(After(wait, answer)) => {
                sleep(wait).await;
                *answer
            }
            Some(answer) => answer,
        }
    }
}

impl WatchSource for Script {
    type Value = Object;
    type Key = &'static str;
    type Token = u32;
    type Position = u32;
    const LONGEST_SILENCE: Duration = Duration::from_secs(300);

    fn kind(&self) -> &'static str {
        "Thing"
    }

    async fn list(&mut self, page: Option<u32>) -> Result<super::Page<Self>, WatchFailure> {
        match self
            .respond(format!("list {}", page.unwrap_or_default()))
            .await
        {
            Answer::Page(objects, Some(token)) => Ok(super::Page {
                objects,
                next: NextPage::Page(token),
            }),
            Answer::Page(objects, None) => Ok(super::Page {
                objects,
                next: NextPage::Watch(1),
            }),
            Watch(position) => Ok(super::Page {
                objects: Vec::new(),
                next: NextPage::Watch(position),
            }),
            Fail(failure) => Err(failure),
            _ => panic!("unexpected request for a list"),
        }
    }

    async fn open(&mut self, from: &u32) -> Result<(), WatchFailure> {
        match self.respond(format!("watch {from}")).await {
            Open => Ok(()),
            Fail(failure) => Err(failure),
            _ => panic!("unexpected request for a watch"),
        }
    }

    async fn next(&mut self) -> Result<Option<WatchStep<Self>>, WatchFailure> {
        match self.respond("next".into()).await {
            Answer::Step(changes, position) => Ok(Some(WatchStep { changes, position })),
            End => Ok(None),
            Fail(failure) => Err(failure),
            _ => panic!("unexpected request for a change"),
        }
    }
}

fn script(answers: impl IntoIterator<Item = Answer>) -> (Watcher<Script>, Script) {
    let script = Script::default();
    script.answers.lock().unwrap().extend(answers);
    (Watcher::new(script.clone()), script)
}

fn put(name: &'static str, value: u32) -> ObjectChange<Object, &'static str> {
    ObjectChange::Upsert((name, value))
}

fn lost() -> Answer {
    Fail(WatchFailure::lost("cut"))
}

fn expired() -> Answer {
    Fail(WatchFailure::Expired("too old".into()))
}

fn missing() -> Answer {
    Fail(WatchFailure::Missing("404".into()))
}

/// Returns the events of the watch until no event comes for an hour, as text.
async fn event_log(watch: &mut Watcher<Script>) -> String {
    let mut events = Vec::new();
    while let Ok(event) = tokio::time::timeout(Duration::from_secs(3600), watch.next()).await {
        events.push(match event {
            WatchEvent::ListStart => "(".to_owned(),
            WatchEvent::Upsert((name, value)) => format!("{name}{value}"),
            WatchEvent::Delete(name) => format!("-{name}"),
            WatchEvent::ListEnd => ")".to_owned(),
        });
    }
    events.join(" ")
}

#[tokio::test(start_paused = true)]
async fn watch_delivers_listed_pages_and_then_changes() {
    let (mut watch, script) = script([
        Page(vec![put("a", 1)], Some(5)),
        Page(vec![put("b", 1)], None),
        Open,
        Step(vec![put("a", 2), ObjectChange::Delete("b")], 2),
        Step(vec![], 7),
        Never,
    ]);
    let stats = watch.stats();
    assert!(!stats.read().is_synced);
    assert_eq!(event_log(&mut watch).await, "( a1 b1 ) a2 -b");
    assert_eq!(
        script.requests.lock().unwrap()[..5],
        ["list 0", "list 5", "watch 1", "next", "next"]
    );
    let report = stats.read();
    assert_eq!(
        (
            report.is_synced,
            report.lists,
            report.changes,
            report.unreadable
        ),
        (true, 1, 4, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn only_the_failed_page_is_requested_again() {
    let (mut watch, script) = script([
        lost(),
        Page(vec![put("a", 1)], Some(5)),
        lost(),
        lost(),
        Page(vec![put("b", 1)], None),
        Never,
    ]);
    assert_eq!(event_log(&mut watch).await, "( a1 b1 )");
    assert_eq!(
        script.requests.lock().unwrap()[..5],
        ["list 0", "list 0", "list 5", "list 5", "list 5"]
    );
}

#[tokio::test(start_paused = true)]
async fn expired_list_position_restarts_the_list() {
    let (mut watch, _) = script([
        Page(vec![put("a", 1)], Some(5)),
        expired(),
        Page(vec![put("b", 1)], None),
        Never,
    ]);
    assert_eq!(event_log(&mut watch).await, "( a1 ( b1 )");
}

#[tokio::test(start_paused = true)]
async fn interrupted_watch_resumes_at_its_position() {
    let second = Duration::from_secs(1);
    let (mut watch, script) = script([
        Watch(3),
        Open,
        Step(vec![put("a", 1)], 4),
        After(second, Box::new(End)),
        Open,
        After(second, Box::new(lost())),
        Open,
        Step(vec![put("a", 2)], 5),
        Never,
    ]);
    assert_eq!(event_log(&mut watch).await, "( ) a1 a2");
    let requests = script.requests.lock().unwrap();
    let watches: Vec<_> = requests
        .iter()
        .filter(|request| request.starts_with("watch"))
        .collect();
    assert_eq!(watches[..3], ["watch 3", "watch 4", "watch 4"]);
    assert_eq!(
        requests
            .iter()
            .filter(|request| request.starts_with("list"))
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn watch_closed_at_once_is_retried_with_pauses() {
    let cut = || [Open, End];
    let (mut watch, script) = script(
        [Watch(3)]
            .into_iter()
            .chain((0..20).flat_map(|_| cut()))
            .chain([Open, Never]),
    );
    let begin = Instant::now();
    let drain = async {
        loop {
            watch.next().await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(60), drain).await;
    let requests = script
        .requests
        .lock()
        .unwrap()
        .iter()
        .filter(|request| request.starts_with("watch"))
        .count();
    assert!(
        (8..=20).contains(&requests),
        "{requests} in {:?}",
        begin.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn expired_watch_position_triggers_a_new_list() {
    let (mut watch, _) = script([
        Page(vec![put("a", 1)], None),
        Open,
        expired(),
        Page(vec![put("b", 1)], None),
        expired(),
        Watch(9),
        Never,
    ]);
    assert_eq!(event_log(&mut watch).await, "( a1 ) ( b1 ) ( )");
}

#[tokio::test(start_paused = true)]
async fn list_that_is_answered_after_a_refusal_is_awaited_until_its_last_page() {
    let refused = Fail(WatchFailure::Refused("no".into()));
    let (mut watch, _) = script([refused, Page(vec![put("a", 1)], Some(2)), Never]);
    let stats = watch.stats();
    assert_eq!(event_log(&mut watch).await, "( a1");
    assert!(stats.read().is_awaited());
}

/// Upstream also lists again after five errors at one revision (KC-409).
#[tokio::test(start_paused = true)]
async fn watch_position_refused_five_times_triggers_a_new_list() {
    let refused = || Fail(WatchFailure::Refused("no".into()));
    let (mut watch, script) = script([
        Watch(3),
        refused(),
        refused(),
        refused(),
        refused(),
        Open,
        Step(vec![], 4),
        refused(),
        refused(),
        refused(),
        refused(),
        refused(),
        Watch(8),
        Never,
    ]);
    assert_eq!(event_log(&mut watch).await, "( ) ( )");
    assert_eq!(script.requests.lock().unwrap().last().unwrap(), "watch 8");
}

#[tokio::test(start_paused = true)]
async fn unreadable_watched_object_is_skipped_alone() {
    let bad = |key| ObjectChange::Unreadable {
        name: "x".into(),
        key,
        reason: "no number".into(),
    };
    let (mut watch, _) = script([
        Page(vec![put("a", 1), bad(None), put("b", 1)], None),
        Open,
        Step(vec![bad(Some("b"))], 2),
        Never,
    ]);
    let stats = watch.stats();
    assert_eq!(event_log(&mut watch).await, "( a1 b1 ) -b");
    assert_eq!(stats.read().unreadable, 2);
}

#[tokio::test(start_paused = true)]
async fn missing_kind_is_reported_empty_and_polled() {
    let (mut watch, _) = script([
        missing(),
        missing(),
        missing(),
        Page(vec![put("a", 1)], None),
        Never,
    ]);
    let stats = watch.stats();
    assert_eq!(watch.next().await, WatchEvent::ListStart);
    assert_eq!(watch.next().await, WatchEvent::ListEnd);
    assert!(stats.read().is_synced && stats.read().is_missing);
    assert_eq!(event_log(&mut watch).await, "( a1 )");
    assert!(!stats.read().is_missing);
}

#[tokio::test(start_paused = true)]
async fn kind_that_stays_missing_is_requested_once_a_minute() {
    let (mut watch, script) = script((0..1000).map(|_| missing()));
    assert_eq!(event_log(&mut watch).await, "( )");
    let requests = script.requests.lock().unwrap().len();
    assert!((55..=70).contains(&requests), "{requests} in an hour");
}

#[tokio::test(start_paused = true)]
async fn vanished_kind_is_reported_empty_only_after_repeated_checks() {
    let (mut watch, _) = script(
        [
            Page(vec![put("a", 1)], None),
            Open,
            missing(),
            missing(),
            missing(),
            Page(vec![put("a", 2)], None),
            Open,
        ]
        .into_iter()
        .chain((0..9).map(|_| missing())),
    );
    // The kind comes back within half a minute, and then stays missing.
    assert_eq!(event_log(&mut watch).await, "( a1 ) ( a2 ) ( )");
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_reconnected() {
    let (mut watch, script) = script([
        Never,
        Watch(1),
        Open,
        Never,
        Open,
        Step(vec![put("a", 1)], 2),
        Never,
    ]);
    let (begin, stats) = (Instant::now(), watch.stats());
    for expected in [
        WatchEvent::ListStart,
        WatchEvent::ListEnd,
        WatchEvent::Upsert(("a", 1)),
    ] {
        assert_eq!(watch.next().await, expected);
    }
    assert_eq!(
        stats.read().failures,
        1,
        "only the list without a response: an idle watch is no failure"
    );
    assert!(
        begin.elapsed() >= Duration::from_secs(360),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(
        script
            .requests
            .lock()
            .unwrap()
            .iter()
            .filter(|request| *request == "watch 1")
            .count(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_a_busy_server_is_respected() {
    let busy = WatchFailure::Lost {
        reason: "429".into(),
        retry_after: Some(Duration::from_secs(30)),
    };
    let (mut watch, _) = script([Fail(busy), Watch(1), Never]);
    let begin = Instant::now();
    watch.next().await;
    assert!(begin.elapsed() >= Duration::from_secs(30));
}
