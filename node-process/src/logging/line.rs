//! Formats an event as one line: `2026-11-21 12:00:00.123 [INFO][4711] cni-plugin/add 42: message
//! key=value`, as upstream does.

use std::fmt::{self, Debug};

use chrono::Local;
use netconf::printable;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use super::subject::Subject;

/// The format of events. A line ends with the fields of the spans, or outside of all spans with
/// fields with those of the attachment.
pub struct LineFormat {
    component: &'static str,
    pid: u32,
    suffix: String,
}

/// The format of the fields of spans.
pub struct Fields;

#[derive(Default)]
struct Collected {
    message: String,
    pairs: Vec<(&'static str, String)>,
}

impl LineFormat {
    /// Creates the format. `component` is the first part of the source in each line.
    #[must_use]
    pub fn new(component: &'static str) -> Self {
        Self {
            component,
            pid: std::process::id(),
            suffix: String::new(),
        }
    }

    /// Adds the fields of an attachment to each line outside of all spans with fields.
    #[must_use]
    pub fn with_subject(mut self, subject: &Subject) -> Self {
        self.suffix = subject.line_suffix();
        self
    }
}

impl<S> FormatEvent<S, Fields> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, Fields>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let meta = event.metadata();
        let mut event_fields = Collected::default();
        event.record(&mut event_fields);
        write!(
            out,
            "{} [{}][{}] {}/{} {}: {}",
            Local::now().format("%Y-%m-%d %H:%M:%S%.3f"),
            level_name(*meta.level()),
            self.pid,
            self.component,
            module_of(meta.target()),
            meta.line().unwrap_or_default(),
            event_fields.message,
        )?;
        event_fields.write_pairs(&mut out)?;
        let mut is_of_span = false;
        for span in ctx.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<Fields>>() {
                out.write_str(fields)?;
                is_of_span |= !fields.is_empty();
            }
        }
        if !is_of_span {
            out.write_str(&self.suffix)?;
        }
        out.write_char('\n')
    }
}

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut collected = Collected::default();
        fields.record(&mut collected);
        collected.write_pairs(&mut writer)
    }
}

impl Collected {
    /// Writes ` key=value` for each pair, ordered by key (CNI-225).
    fn write_pairs(&mut self, out: &mut Writer<'_>) -> fmt::Result {
        self.pairs.sort_by_key(|(key, _)| *key);
        self.pairs
            .iter()
            .try_for_each(|(key, value)| write!(out, " {key}={value}"))
    }
}

impl Visit for Collected {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = printable::line(value).into_owned(),
            name => self.pairs.push((name, format!("{value:?}"))),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = printable::line(&format!("{value:?}")).into_owned();
        match field.name() {
            "message" => self.message = text,
            name => self.pairs.push((name, text)),
        }
    }
}

/// Returns the path of an event's module without the crate's name.
fn module_of(target: &str) -> &str {
    target.split_once("::").map_or(target, |(_, module)| module)
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("buffer").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(events: impl FnOnce()) -> String {
        logged_about(&Subject::default(), events)
    }

    fn logged_about(subject: &Subject, events: impl FnOnce()) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let layer = tracing_subscriber::fmt::layer()
            .fmt_fields(Fields)
            .event_format(LineFormat::new("ipam").with_subject(subject))
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), events);
        let bytes = buffer.0.lock().expect("buffer").clone();
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn log_line_has_time_level_pid_place_message_and_sorted_fields() {
        let text = logged(|| {
            let error = io::Error::other("no space left");
            tracing::warn!(
                target: "ipam_plugin::assign", pool = "a \"b\"", blocks = 2, error = %error,
                "pool skipped",
            );
        });
        let head = regex_like(&text);
        assert_eq!(head, "dddd-dd-dd dd:dd:dd.ddd ");
        let rest = &text[head.len()..];
        let expected = format!("[WARNING][{}] ipam/assign ", std::process::id());
        assert!(rest.starts_with(&expected), "{rest}");
        assert!(
            rest.ends_with(": pool skipped blocks=2 error=no space left pool=\"a \\\"b\\\"\"\n"),
            "{rest}"
        );
    }

    /// Shows SEC-30.
    #[test]
    fn log_line_escapes_control_characters() {
        const TEXT: &str = "a\n2026 [INFO]\r\x1b[2K\u{9b}1A\u{202e}\x7f";
        let text = logged(|| {
            let _span = tracing::info_span!("add", span = %TEXT, quoted = TEXT).entered();
            tracing::info!(display = %TEXT, debug = ?TEXT, text = TEXT, "message of {TEXT}");
            tracing::info!(TEXT);
        });
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n'),
            "{text:?}"
        );
    }

    #[test]
    fn fields_of_the_surrounding_span_follow_the_event_fields() {
        let text = logged(|| {
            let _span = tracing::info_span!("add", ContainerID = "c1").entered();
            tracing::info!(step = 1, "started");
        });
        assert!(
            text.ends_with(": started step=1 ContainerID=\"c1\"\n"),
            "{text}"
        );
    }

    #[test]
    fn log_line_ends_with_the_attachment_of_its_call_or_deferred_del() {
        let subject = |id: &str, pod: &str| Subject {
            container_id: id.into(),
            namespace: "default".into(),
            pod: pod.into(),
            endpoint: format!("node1-k8s-{pod}-eth0"),
        };
        let call = subject("c2", "web");
        let text = logged_about(&call, || {
            tracing::info!(address = "10.0.0.1", "first");
            subject("c1", "db")
                .span("c2")
                .in_scope(|| tracing::error!("second"));
            std::thread::scope(|scope| {
                let here = tracing::dispatcher::get_default(Clone::clone);
                scope.spawn(move || {
                    tracing::dispatcher::with_default(&here, || tracing::info!("third"))
                });
            });
        });
        let ends: Vec<_> = text
            .lines()
            .map(|line| line.rsplit_once(": ").unwrap().1)
            .collect();
        let fields = r#"ContainerID="c2" Namespace="default" Pod="web" WorkloadEndpoint="node1-k8s-web-eth0""#;
        let debt = r#"ContainerID="c1" Namespace="default" Pod="db" ReplayedBy="c2" WorkloadEndpoint="node1-k8s-db-eth0""#;
        let expected = [
            format!("first address=\"10.0.0.1\" {fields}"),
            format!("second {debt}"),
            format!("third {fields}"),
        ];
        assert_eq!(ends, expected);
    }

    fn regex_like(text: &str) -> String {
        text.chars()
            .take(24)
            .map(|c| if c.is_ascii_digit() { 'd' } else { c })
            .collect()
    }
}
