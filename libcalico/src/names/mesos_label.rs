//! Converts Mesos labels, which may contain any character, to Kubernetes labels.

/// Converts the key or the value of a Mesos label to a valid label (CNI-153).
///
/// `/` becomes `.`; a run of other forbidden characters becomes a single `-`; a run of `.` and `-` that contains a `.`
/// becomes a single `.`; both are removed at either end.
pub fn sanitise_mesos_label(text: &str) -> String {
    dots_from_mixed_runs(&dashes_for_forbidden(text)).trim_matches(is_separator).to_owned()
}

fn dashes_for_forbidden(text: &str) -> String {
    let mut allowed = String::with_capacity(text.len());
    let mut in_run = false;
    for c in text.chars().map(|c| if c == '/' { '.' } else { c }) {
        let forbidden = !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        match (forbidden, in_run) {
            (false, _) => allowed.push(c),
            (true, false) => allowed.push('-'),
            (true, true) => {}
        }
        in_run = forbidden;
    }
    allowed
}

fn dots_from_mixed_runs(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_separator) {
        let (before, from_run) = rest.split_at(start);
        let (run, after) = from_run.split_at(from_run.find(|c| !is_separator(c)).unwrap_or(from_run.len()));
        result.push_str(before);
        result.push_str(if run.contains('.') { "." } else { run });
        rest = after;
    }
    result.push_str(rest);
    result
}

fn is_separator(c: char) -> bool {
    matches!(c, '.' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_vectors() {
        for (text, label) in [
            ("-my-val", "my-val"),
            ("$my..val", "my.val"),
            ("m$y.val", "m-y.val"),
            ("//my/val/", "my.val"),
            ("some_val-with.lots*of^weird#characters", "some_val-with.lots-of-weird-characters"),
            ("a--b", "a--b"),
            ("a$$$b", "a-b"),
            ("a-.-b", "a.b"),
            ("ä", ""),
            ("", ""),
        ] {
            assert_eq!(sanitise_mesos_label(text), label, "{text:?}");
        }
    }
}
