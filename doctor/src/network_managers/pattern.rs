//! [`Link`]: the facts about an interface that configurations match, and patterns with `*`, `?` and
//! `[…]`.

/// An interface of a pod, as programs see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    /// The name.
    pub(super) name: String,
    /// The kind, which is also the driver.
    pub(super) kind: &'static str,
    /// The MAC address.
    pub(super) mac: &'static str,
}

impl Link {
    /// Returns the host's end of the interface of some pod.
    pub(super) fn of_pod(prefix: &str) -> Self {
        Link {
            name: format!("{prefix}0123456789a"),
            kind: "veth",
            mac: "ee:ee:ee:ee:ee:ee",
        }
    }
}

/// Returns true if a shell pattern matches the whole text.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut read) = (0, 0);
    // The place after the last `*`, and the text that the `*` does not match.
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        if pattern.get(at) == Some(&'*') {
            at += 1;
            star = Some((at, read));
        } else if let Some(length) = one(&pattern[at..], text[read]) {
            at += length;
            read += 1;
        } else if let Some((after, unmatched)) = star {
            (at, read) = (after, unmatched + 1);
            star = Some((after, read));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

/// Returns the length of the first element of a pattern if it matches a character.
fn one(pattern: &[char], character: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '[' if let Some(end) = pattern.iter().skip(2).position(|closing| *closing == ']') => {
            let set = &pattern[1..end + 2];
            let (is_inverted, set) = match set {
                ['!' | '^', rest @ ..] => (true, rest),
                set => (false, set),
            };
            let is_range = set
                .windows(3)
                .any(|range| range[1] == '-' && (range[0]..=range[2]).contains(&character));
            ((is_range || set.contains(&character)) != is_inverted).then_some(end + 3)
        }
        literal => (*literal == character).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_patterns_match_whole_names() {
        for pattern in [
            "*",
            "cali*",
            "c*a*a",
            "cali?123*",
            "[a-c]ali*",
            "[!e]*",
            "cali0123456789a",
            "**",
        ] {
            assert!(matches(pattern, "cali0123456789a"), "{pattern}");
        }
        for pattern in [
            "",
            "cali",
            "ali*",
            "e*",
            "[!c]*",
            "[d-f]*",
            "cali*b",
            "?",
            "[",
            "cali0123456789ab",
        ] {
            assert!(!matches(pattern, "cali0123456789a"), "{pattern}");
        }
        assert!(matches("", "") && matches("*", "") && !matches("?", ""));
    }
}
